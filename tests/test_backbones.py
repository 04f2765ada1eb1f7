"""Networks of timm as backbones: timm's features, every parameter trained, weights from files, runs that resume."""

import struct
from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

import pytest
import torch
from conftest import REPO, read_metrics, refused, score
from torch import nn

import models
from distributed.group import Group
from flags import Config
from models import fold, timm_backbone
from models.pretrained import StartWeights, load_start_weights
from models.timm_backbone import TimmBackbone
from models.timm_weights import read_timm_weights
from support.errors import UserError
from support.shell import install_command
from training import checkpoint
from training.average import WeightAverage
from training.start_weights import read_start_file, read_start_weights

timm = pytest.importorskip("timm")
CPU = torch.device("cpu")


def build(name: str, model_type: str = "deeplabv3p_multi", **options) -> models.Segmenter:
    torch.manual_seed(0)
    model = models.build(model_type, backbone=f"timm:{name}", num_classes=4, head_channels=16, **options)
    model.backbone.freeze_unused(model.head)
    return model


def test_parameters_that_no_output_needs_are_not_trained():
    """A linear head takes HRNet's deepest features, which need nothing that the last exchange sends to finer ones."""
    model = build("hrnet_w18_small", "deeplabv2").train()
    frozen = {name for name, value in model.named_parameters() if not value.requires_grad}
    assert any("stage4.0.fuse_layers.0." in name for name in frozen)
    model(torch.randint(0, 256, (2, 65, 97, 3), dtype=torch.uint8))["logits"].sum().backward()
    assert {name for name, value in model.named_parameters() if value.grad is None} == frozen


def test_padding_that_no_position_needs_is_cut_off():
    """HRNet takes multiples of 32: 70x40 is padded to 96x64. At stride 4, 18 of 24 and 10 of 16 positions count."""
    backbone = TimmBackbone("hrnet_w18_small_v2").eval()
    x = torch.randn(1, 3, 70, 40)
    padded = nn.functional.pad(x, (0, 24, 0, 26))
    with torch.no_grad():
        found, whole = backbone(x), backbone(padded)
    assert tuple(found[0].shape[2:]) == (18, 10)
    assert tuple(found[-1].shape[2:]) == (3, 2)
    torch.testing.assert_close(found[0], whole[0][:, :, :18, :10])


@pytest.mark.parametrize("same", [True, False])
def test_norms_are_folded_only_if_a_trial_gives_the_same(monkeypatch, same):
    """The trial itself is in test_own_network.py."""
    monkeypatch.setattr(fold, "_timm_folds_exactly", fold._timm_folds_exactly.__wrapped__)  # without its cache
    if not same:
        monkeypatch.setattr(fold, "_same_if_folded", lambda backbone: False)
    copied = fold.fold_batch_norm(build("test_resnet")).backbone
    assert same == any(isinstance(module, fold.FoldedConv) for module in copied.modules())


def test_norms_with_an_activation_are_folded_too():
    """A copy that lost the activations would fail the trial, and predict as slowly as the model."""
    copied = fold.fold_batch_norm(build("test_efficientnet")).backbone
    assert not any(isinstance(module, nn.BatchNorm2d) for module in copied.modules())


@pytest.mark.parametrize("name", ["efficientvit_m0", "tiny_vit_5m_224"])
def test_average_of_weights_forgets_what_the_network_kept(name):
    """In evaluation some networks keep tables computed from weights until train()."""
    model = build(name)
    average = WeightAverage(model, decay=0.0)
    average.module.eval()
    images = torch.randint(0, 256, (1, 65, 97, 3), dtype=torch.uint8)
    with torch.no_grad():
        average.update(model)
        average.module(images)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 10)
        average.update(model)
        assert torch.equal(average.module(images)["logits"], model.eval()(images)["logits"])


def test_weights_from_files_of_timm_and_of_ours():
    network = timm.create_model("test_efficientnet")
    content = network.state_dict()
    plain = TimmBackbone("test_efficientnet")
    first = content["conv_stem.weight"]
    for prefix in ("", "module.", "model._orig_mod."):
        source = {"state_dict": {prefix + name: value for name, value in content.items()}}
        start = read_timm_weights(plain, "x.pth", source)
        assert torch.equal(start.state_dict["backbone.body.conv_stem.weight"], first)
    renamed = {f"_layer{number}": value for number, value in enumerate(content.values())}
    start = read_timm_weights(plain, "x.pth", renamed)
    for name, value in start.state_dict.items():
        assert torch.equal(value, content[name.removeprefix("backbone.body.")])
    ours = {"model": build("test_efficientnet").state_dict()}
    start = read_timm_weights(plain, "x.pth", ours)
    assert set(start.state_dict) == set(ours["model"])


def test_position_embeddings_of_another_size_are_resized():
    """test_vit has 160 / 16 = 10 positions a side; an image of 65x97 needs 5 x 7."""
    body = TimmBackbone("test_vit")
    assert body.body.pos_embed.shape[1] in (100, 101)
    assert [tuple(x.shape[2:]) for x in body(torch.randn(1, 3, 65, 97))] == [(5, 7)]
    larger = timm.create_model("test_vit", img_size=224).state_dict()  # 14 x 14
    start = read_timm_weights(body, "x.pth", larger)
    assert start.state_dict["backbone.body.pos_embed"].shape == body.body.pos_embed.shape


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet51", {}, "--backbone timm:resnet51: timm .* has no such network: try resnet"),
        ("resnet50.nonsense", {}, r"--backbone timm:resnet50.nonsense: timm cannot build it \(Invalid pretrained tag"),
        ("test_vit", {"output_stride": 8}, "--output_stride 8: timm:test_vit has a stride of its own"),
        ("mixer_s16_224", {}, "--backbone timm:mixer_s16_224: takes images of one size only"),
        ("crossvit_tiny_240", {}, "--backbone timm:crossvit_tiny_240: takes images of one size only"),
    ],
)
def test_what_a_network_cannot_do_is_one_line(name, options, message):
    with pytest.raises(UserError, match=message) as error:
        TimmBackbone(name, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("version", ["1.0.31", "1.1.0.dev0", "1.0.9", "0.9.99"])
def test_an_older_timm_is_refused(monkeypatch, version):
    monkeypatch.setattr(timm, "__version__", version)
    is_old = version in ("1.0.9", "0.9.99")
    with refused(f"needs timm 1.0.31 or newer, not {version}: {install_command('timm')}") if is_old else nullcontext():
        TimmBackbone("test_efficientnet")
    assert f'"timm>={timm_backbone.OLDEST},<2"' in (REPO / "pyproject.toml").read_text()


def test_weights_of_another_backbone_are_refused_though_the_head_fits():
    model = build("test_efficientnet", "deeplabv2")
    other = build("test_vit", "deeplabv2").state_dict()
    other |= {f"head.{name}": value for name, value in model.head.state_dict().items()}
    with pytest.raises(UserError, match=r"x\.pt: none of its backbone's weights fits: check --backbone"):
        load_start_weights(model, StartWeights("x.pt", other), "ResNet-50")


def test_weights_that_do_not_fit_are_one_line(monkeypatch):
    body = TimmBackbone("test_efficientnet")
    other = timm.create_model("test_resnet").state_dict()
    with pytest.raises(UserError, match=r"--pretrained x\.pth: no weights for timm:test_efficientnet") as error:
        read_timm_weights(body, "x.pth", other)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="imagenet_v1: only torchvision's ResNet"):
        read_timm_weights(body, "imagenet_v1", {})
    monkeypatch.setattr("models.timm_weights.create", mock.Mock(side_effect=OSError("no route to the host")))
    said = r"no route to the host\): connect to the network, give a FILE, or use --pretrained none"
    with pytest.raises(UserError, match=said):
        read_timm_weights(body, "imagenet", {})


def test_a_safetensors_file_is_read_whole_or_refused(tmp_path):
    import safetensors.torch

    content = timm.create_model("test_efficientnet").state_dict()
    file = tmp_path / "net.safetensors"
    safetensors.torch.save_file(content, file)
    cfg = replace(Config(), backbone="timm:test_efficientnet", model_type="deeplabv3p_multi", pretrained=str(file))
    start = read_start_weights(cfg, Group(CPU), *read_start_file(cfg, Group(CPU)))
    assert torch.equal(start.state_dict["backbone.body.conv_stem.weight"], content["conv_stem.weight"])
    claims = b'{"w":{"dtype":"F32","shape":[25000000000],"data_offsets":[0,100000000000]}}'
    for broken in (b"\x00" * 7, struct.pack("<Q", 2**60), struct.pack("<Q", len(claims)) + claims):
        file.write_bytes(broken)
        with pytest.raises(UserError, match=f"^--pretrained {file}: not an intact safetensors file"):
            read_start_file(cfg, Group(CPU))


def test_without_timm_the_flag_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    said = r"--backbone timm:NAME needs packages that are missing .*pip install -e '\S*\[timm\]'$"
    with pytest.raises(UserError, match=said):
        TimmBackbone("a network that no test built before")


TINY_TIMM = {"backbone": "timm:test_efficientnet", "model_type": "deeplabv3p_multi", "head_channels": 8}
TINY_TIMM |= {"dataset": "Dense", "crop_size": 65}


def test_a_run_with_another_default_head_goes_on(demo_run):
    """Earlier versions had res50_ASPP for networks of timm, too."""
    values = TINY_TIMM | {"name": "x", "max_steps": 1, "epochs": None, "head_channels": None}
    demo_run(**values | {"model_type": "res50_ASPP"})
    folder = demo_run(**values | {"model_type": None, "max_steps": 2, "resume": "auto"})
    config = checkpoint.read_model(folder / "last.pt").config
    assert (folder.name, config["model_type"]) == ("x", "res50_ASPP")
    assert [line["step"] for line in read_metrics(folder, "val")] == [1, 2]
    folder = demo_run(**values | {"model_type": None, "name": "y"})
    assert checkpoint.read_model(folder / "last.pt").config["model_type"] == "deeplabv3p_multi"


def test_run_is_trained_saved_and_scored(demo_run, tmp_path):
    """test_draws.py has runs that are stopped and resumed."""
    folder = demo_run(epochs=2, ema=0.9, **TINY_TIMM)
    best = max(line["miou"] for line in read_metrics(folder, "val"))
    assert score(folder / "best.pt", tmp_path)["miou"] == pytest.approx(best)
