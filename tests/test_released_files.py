"""Files of the CDSP release: recognised by their names, loaded whole, and computed with as the release does."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
import yaml
from conftest import run_train
from released import KINDS, Plain, released_state_dict
from thin_networks import ThinResNet
from torch import Tensor

import models
from inference.trained import TrainedModel
from models.pretrained import is_cdsp_file, load_weights, released_type, unwrapped, weights_in
from support.errors import UserError

CPU = torch.device("cpu")


def save(path: Path, weights: dict[str, Tensor], prefix: str = "module.") -> Path:
    """Write a file as the release's train.py does, scores of NumPy included."""
    named = {prefix + name: value for name, value in weights.items()}
    scores = (np.float64(0.7), np.array([0.5, 0.9]), np.float64(0.9))
    torch.save({"epoch": 3, "state_dict": named, "optimizer": {}, "best_pred": scores}, path)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_released_files_load_whole_and_give_the_logits_of_the_release(kind, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(torchvision.models, "get_model", lambda name, **_: ThinResNet(50, [3, 4, 6, 3]))
    model_type, num_keys = KINDS[kind]
    weights = released_state_dict(kind)
    assert len(weights) == num_keys
    path = save(tmp_path / "r.pth", weights, "module." if "lorm" in kind else "")
    checkpoint = TrainedModel(path, {"model_type": model_type, "numclasses": 21})
    line = f"--checkpoint {path} has the weight names of a released CDSP file: --stride_in_1x1 is set"
    assert caplog.messages == [line]
    model = checkpoint.model("auto", CPU).double()
    assert load_weights(model, weights) == (num_keys, [], [])
    image = torch.randint(0, 256, (1, 65, 49, 3), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(image)["logits"]
        plain = Plain({name: value.double() for name, value in weights.items()}, frozen=True)
        expected = plain.logits(*plain.features(image))
    assert logits.shape == expected.shape
    # float32 rounds mean and std: 1e-7. The stride in its other place changes logits by 1e-1 of their range.
    assert (logits - expected).abs().max() < 1e-5 * expected.abs().max()
    assert expected.std() > 0.01


def test_no_file_of_ours_or_torchvisions_is_taken_for_a_released_one():
    with torch.device("meta"):
        others = [models.build(name, layers=50, num_classes=21) for name in models.HEADS]
        others += [torchvision.models.resnet50()]
        deeplab = torchvision.models.segmentation.deeplabv3_resnet50(weights_backbone=None).state_dict()
    for model in others:
        assert released_type(model.state_dict()) is None
        assert not is_cdsp_file(model.state_dict())
    assert released_type(deeplab) == "deeplabv3_torchvision"
    assert not is_cdsp_file(deeplab)


@pytest.mark.parametrize("prefix", ["", "model.", "model.module.", "_orig_mod.", "net.segmenter."])
def test_names_of_the_modules_around_a_model_are_dropped(prefix):
    """Lightning saves the names of the attributes in which it has the model, and those of its loss."""
    names = ["backbone.layer4.0.conv1.weight", "backbone.layer4.0.bn1.weight", "head.classifier.weight"]
    wrapped = dict.fromkeys((*(prefix + name for name in names), "criterion.weight"), torch.zeros(1))
    assert list(weights_in({"state_dict": wrapped})) == [*names, "criterion.weight"]
    assert list(weights_in({"model": wrapped, "config": {}})) == list(wrapped)  # a run's names are the model's own


@pytest.mark.parametrize("name", ["model", "module", "_orig_mod", "backbone", ""])
def test_a_tensor_with_the_name_of_a_wrapper_is_no_wrapper(name):
    assert list(weights_in({name: torch.zeros(3)})) == [name]


def test_another_model_type_is_refused_and_the_right_one_named(tmp_path):
    path = save(tmp_path / "r.pth", released_state_dict("deeplabV3_lorm"))
    # 17 weights of the head's last part have other names there: those of ours would fit by their shape.
    with pytest.raises(UserError, match=r"17 weights of a deeplabv3p .* --model_type deeplabv3p_cdsp_lorm$"):
        TrainedModel(path, {"model_type": "deeplabv3p", "numclasses": 21}).model("auto", CPU)


@pytest.fixture
def thin_file(tmp_path) -> Path:
    """A released res50_ASPP_lorm of a thin ResNet-50 and 5 classes."""
    return save(tmp_path / "r.pth", released_state_dict("res50_ASPP_lorm", num_classes=5))


def test_training_from_a_released_file_has_its_stride_in_every_file_of_the_run(demo_root, tmp_path, thin_file, capsys):
    given = {"dataset_path": demo_root, "logdir": tmp_path / "log", "layers": 50, "name": "x", "pretrained": thin_file}
    folder = run_train(**given)
    said = capsys.readouterr().out
    assert f"set to fit --pretrained {thin_file}: --stride_in_1x1" in said
    assert re.search(rf"start weights: \d+ from {thin_file}; left random: none; in the file but not used: none", said)
    assert TrainedModel(folder / "best.pt").model("auto", CPU).backbone.layer2[0].conv1.stride == (2, 2)
    # The command that began the run does not name the flag; the file may be gone by now.
    thin_file.unlink()
    assert run_train(**given | {"epochs": 2, "resume": "auto"}) == folder
    said = capsys.readouterr().out
    assert "set to fit --resume auto: --stride_in_1x1" in said
    assert yaml.safe_load((folder / "config.yaml").read_text())["stride_in_1x1"] is True


def test_a_checkpoint_with_flags_that_are_gone_loads_unless_its_images_were_of_another_kind(tmp_path):
    flags_of = {"model_type": "res50_ASPP", "layers": 18, "numclasses": 5, "image_stats": "", "cache": "none"}
    weights = models.build("res50_ASPP", layers=18, num_classes=5).state_dict()
    torch.save({"model": weights, "config": flags_of}, tmp_path / "a.pt")
    assert TrainedModel(tmp_path / "a.pt").model("auto", CPU).num_classes == 5
    torch.save({"model": weights, "config": flags_of | {"image_stats": '{"dtype": "uint16"}'}}, tmp_path / "b.pt")
    with pytest.raises(UserError, match=r"b\.pt: trained with --image_stats .* 8-bit RGB"):
        TrainedModel(tmp_path / "b.pt")
    torch.save({"model": weights, "config": flags_of | {"model_type": "unet"}}, tmp_path / "c.pt")
    with pytest.raises(UserError, match=r"c\.pt: --model_type unet is not in this version"):
        TrainedModel(tmp_path / "c.pt")


def test_names_of_torch_compile_are_unwrapped():
    assert list(unwrapped({"_orig_mod.last.weight": torch.zeros(1)})) == ["last.weight"]
