"""Files of the CDSP release: recognised by their names, loaded whole, and computed with as the release does."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
import yaml
from conftest import finish, flags, free_port, run_train, start
from thin_networks import ThinResNet
from torch import Tensor

import evaluate
import export
import models
import predict
from config import parse
from distributed.group import Group
from errors import UserError
from models.pretrained import load_weights, needs_stride_in_1x1, released_type
from trained import Checkpoint
from utils import get_model, get_start

CPU = torch.device("cpu")

# The release's files: which --model_type each is here, and how many entries its state_dict() has for a ResNet-50 and 21
# classes, counted once by running it.
KINDS = {
    "deeplabV2": ("res50_ASPP", 354),
    "res50_ASPP_lorm": ("res50_ASPP_lorm", 359),
    "deeplabV3p": ("deeplabv3p_cdsp", 374),
    "deeplabV3_lorm": ("deeplabv3p_cdsp_lorm", 379),
}


def released_state_dict(kind: str, layers: int = 50, num_classes: int = 21) -> dict[str, Tensor]:
    """Random weights under the names that the release's models/KIND.py gives them."""
    resnet = torchvision.models.get_model(f"resnet{layers}", weights=None).state_dict()
    weights = {name: value for name, value in resnet.items() if not name.startswith("fc.")}
    channels = weights["layer4.0.downsample.1.bias"].shape[0]
    generator = torch.Generator().manual_seed(0)

    def conv(name: str, out_channels: int, in_channels: int, size: int = 1) -> None:
        values = torch.randn(out_channels, in_channels, size, size, generator=generator)
        weights[f"{name}.weight"] = values / (in_channels * size**2) ** 0.5

    def norm(name: str, width: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            weights[f"{name}.{part}"] = 0.5 + torch.rand(width, generator=generator)
        weights[f"{name}.num_batches_tracked"] = torch.tensor(3)

    v3plus = kind in ("deeplabV3p", "deeplabV3_lorm")
    head, width = ("layer5" if kind == "deeplabV2" else "layer_pred0"), 256 if v3plus else num_classes
    for number, size in enumerate((1, 3, 3, 3), start=1):
        conv(f"{head}.aspp{number}.atrous_conv", width, channels, size)
        norm(f"{head}.aspp{number}.bn", width)
    conv(f"{head}.global_avg_pool.1", width, channels)
    norm(f"{head}.global_avg_pool.2", width)
    joined, joined_norm = ("prject.0", "prject.1") if v3plus else ("conv1", "bn1")
    conv(f"{head}.{joined}", width, 5 * width)
    norm(f"{head}.{joined_norm}", width)
    if v3plus:
        for name, in_channels, out_channels, size in (("reduce.", channels // 8, 48, 1), ("fuse.", 304, 256, 3)):
            conv(f"{name}0", out_channels, in_channels, size)
            norm(f"{name}1", out_channels)
        conv("fuse.3", 256, 256, 3)
        norm("fuse.4", 256)
        conv("classifier", num_classes, 256)
        weights["classifier.bias"] = torch.randn(num_classes, generator=generator)
    lorm = {"res50_ASPP_lorm": "layer_camatt", "deeplabV3_lorm": "layer_lorm"}.get(kind)
    if lorm:
        for name in ("query_conv", "key_conv"):
            conv(f"{lorm}.{name}", channels, channels)
            weights[f"{lorm}.{name}.bias"] = torch.rand(channels, generator=generator)
        weights[f"{lorm}.gamma"] = torch.rand(1, generator=generator)
    return weights


def plain_logits(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """The release's logits in eval mode, from its weights by their names; x (B, 3, H, W), normalised.

    DESIGN.md 4.3 in plain calls: stride of layer2 on the first 1x1 convolution, rates 12, 18, 24 on classes. DeepLabV3+
    has rates 6, 12, 18, a ReLU after ASPP, and at stride 4 layer1's 48 channels before ASPP's 256.
    """

    def conv(name: str, x: Tensor, stride: int = 1, dilation: int = 1) -> Tensor:
        kernel = weights[f"{name}.weight"]
        padding = dilation * (kernel.shape[2] // 2)
        return F.conv2d(x, kernel, weights.get(f"{name}.bias"), stride, padding, dilation)

    def norm(name: str, x: Tensor) -> Tensor:
        weight, bias, mean, var = (
            weights[f"{name}.{part}"].view(-1, 1, 1) for part in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) / (var + 1e-5).sqrt() * weight + bias

    def block(name: str, x: Tensor, stride: int, dilation: int) -> Tensor:
        y = norm(f"{name}.bn1", conv(f"{name}.conv1", x, stride)).relu()
        y = norm(f"{name}.bn2", conv(f"{name}.conv2", y, dilation=dilation)).relu()
        y = norm(f"{name}.bn3", conv(f"{name}.conv3", y))
        if f"{name}.downsample.0.weight" in weights:
            x = norm(f"{name}.downsample.1", conv(f"{name}.downsample.0", x, stride))
        return (x + y).relu()

    x = norm("bn1", conv("conv1", x, 2)).relu()
    x = F.max_pool2d(x, 3, 2, 1, ceil_mode=True)
    for number in range(3):
        x = block(f"layer1.{number}", x, 1, 1)
    low = x
    for number in range(4):
        x = block(f"layer2.{number}", x, 2 if number == 0 else 1, 1)
    for number in range(6):
        x = block(f"layer3.{number}", x, 1, 2)
    for number, dilation in enumerate((4, 8, 16)):
        x = block(f"layer4.{number}", x, 1, dilation)

    v3plus = "classifier.weight" in weights
    head = "layer5" if "layer5.conv1.weight" in weights else "layer_pred0"
    branches = []
    for number, rate in enumerate((1, 6, 12, 18) if v3plus else (1, 12, 18, 24), start=1):
        branches.append(
            norm(f"{head}.aspp{number}.bn", conv(f"{head}.aspp{number}.atrous_conv", x, dilation=rate)).relu()
        )
    pooled = norm(f"{head}.global_avg_pool.2", conv(f"{head}.global_avg_pool.1", x.mean((2, 3), keepdim=True))).relu()
    branches.append(pooled.expand(-1, -1, *x.shape[2:]))
    joined = torch.cat(branches, 1)
    if not v3plus:
        return norm(f"{head}.bn1", conv(f"{head}.conv1", joined))
    high = norm(f"{head}.prject.1", conv(f"{head}.prject.0", joined)).relu()
    high = F.interpolate(high, size=low.shape[2:], mode="bilinear", align_corners=True)
    y = torch.cat([norm("reduce.1", conv("reduce.0", low)).relu(), high], 1)
    y = norm("fuse.1", conv("fuse.0", y)).relu()
    return conv("classifier", norm("fuse.4", conv("fuse.3", y)).relu())


@pytest.fixture
def thin(monkeypatch) -> None:
    """All networks are thin ones in this test."""
    monkeypatch.setattr(torchvision.models, "get_model", lambda name, **_: ThinResNet(int(name.removeprefix("resnet"))))


def save(path: Path, weights: dict[str, Tensor], prefix: str = "module.") -> Path:
    """Write a file as the release's train.py does, scores of NumPy included."""
    named = {prefix + name: value for name, value in weights.items()}
    scores = (np.float64(0.7), np.array([0.5, 0.9]), np.float64(0.9))
    torch.save({"epoch": 3, "state_dict": named, "optimizer": {}, "best_pred": scores}, path)
    return path


@pytest.mark.full_size
@pytest.mark.parametrize("kind", KINDS)
def test_b5_b7_released_files_load_whole_and_give_the_logits_of_the_release(kind, tmp_path):
    model_type, num_keys = KINDS[kind]
    weights = released_state_dict(kind)
    assert len(weights) == num_keys
    path, said = save(tmp_path / "r.pth", weights, "module." if "lorm" in kind else ""), []
    checkpoint = Checkpoint(str(path), {"model_type": model_type, "numclasses": 21}, said.append)
    assert said == [f"--checkpoint {path} has the weight names of a released CDSP file: --stride_in_1x1 is set"]
    model = checkpoint.model("auto", CPU).double()
    assert load_weights(model, weights) == (num_keys, [], [])
    image = torch.randint(0, 256, (1, 65, 49, 3), generator=torch.Generator().manual_seed(0))
    mean, std = 255 * torch.tensor([0.485, 0.456, 0.406]), 255 * torch.tensor([0.229, 0.224, 0.225])
    with torch.no_grad():
        logits = model(image)["logits"]
        x = ((image - mean) / std).permute(0, 3, 1, 2).double()
        expected = plain_logits({name: value.double() for name, value in weights.items()}, x)
    assert logits.shape == expected.shape
    # float32 rounds mean and std: 1e-7. The stride in its other place changes logits by 1e-1 of their range.
    assert (logits - expected).abs().max() < 1e-5 * expected.abs().max()
    assert expected.std() > 0.01


def test_b5_no_file_of_ours_or_torchvisions_is_taken_for_a_released_one():
    with torch.device("meta"):
        others = [models.build(name, layers=50, num_classes=21) for name in models.MODELS]
        others += [
            torchvision.models.resnet50(),
            torchvision.models.segmentation.deeplabv3_resnet50(weights_backbone=None),
        ]
    for model in others:
        assert released_type(model.state_dict()) is None
        assert not needs_stride_in_1x1(model.state_dict(), "x")


def test_b7_another_model_type_is_refused_and_the_right_one_named(tmp_path, thin):
    path = save(tmp_path / "r.pth", released_state_dict("deeplabV3_lorm"))
    # 17 weights of the head's last part have other names there: those of ours would fit by their shape.
    with pytest.raises(UserError, match=r"17 weights of a deeplabv3p .* --model_type deeplabv3p_cdsp_lorm$"):
        Checkpoint(str(path), {"model_type": "deeplabv3p", "numclasses": 21}).model("auto", CPU)


def test_b5_released_resnet_18_is_refused(demo_root, tmp_path):
    """The first convolution of its blocks is not dilated; ours is: with the same weights logits are off by half."""
    path = save(tmp_path / "r.pth", released_state_dict("deeplabV2", layers=18))
    with pytest.raises(UserError, match=rf"^--checkpoint {path}: a released CDSP file of ResNet-18 or 34"):
        Checkpoint(str(path), {"model_type": "res50_ASPP", "layers": 18, "numclasses": 21})
    with pytest.raises(UserError, match=rf"^--pretrained {path}: a released CDSP file of ResNet-18 or 34"):
        run_train(dataset_path=demo_root, logdir=tmp_path / "log", pretrained=path)
    assert not (tmp_path / "log").exists()


@pytest.fixture
def thin_file(tmp_path, thin) -> Path:
    """A released res50_ASPP_lorm of a thin ResNet-50 and 5 classes."""
    return save(tmp_path / "r.pth", released_state_dict("res50_ASPP_lorm", num_classes=5))


def test_b5_training_from_a_released_file_has_its_stride_in_every_file_of_the_run(
    demo_root, tmp_path, thin_file, capsys
):
    given = {"dataset_path": demo_root, "logdir": tmp_path / "log", "layers": 50, "name": "x", "pretrained": thin_file}
    folder = run_train(**given)
    said = capsys.readouterr().out
    assert f"--pretrained {thin_file} has the weight names of a released CDSP file: --stride_in_1x1 is set" in said
    assert re.search(rf"start weights: \d+ from {thin_file}; left random: none; in the file but not used: none", said)
    assert yaml.safe_load((folder / "config.yaml").read_text())["stride_in_1x1"] is True
    for name in ("last.pt", "best.pt"):
        checkpoint = Checkpoint(str(folder / name), {})
        assert checkpoint.cfg.stride_in_1x1
        assert checkpoint.model("auto", CPU).backbone.layer2[0].conv1.stride == (2, 2)
    assert "--stride_in_1x1" not in capsys.readouterr().out

    # The command that began the run does not name the flag; the file may be gone by now.
    thin_file.unlink()
    assert run_train(**given | {"epochs": 2, "resume": "auto"}) == folder
    said = capsys.readouterr().out
    assert "--stride_in_1x1 is on, as in the checkpoint" in said
    assert "flags changed since: epochs: 1 -> 2\n" in said
    assert yaml.safe_load((folder / "config.yaml").read_text())["stride_in_1x1"] is True


def test_b5_stride_is_set_for_other_heads_and_not_where_the_flag_is_given(demo_root, thin_file):
    for values, lines in (({}, 1), ({"stride_in_1x1": True}, 0)):
        cfg = parse(flags(dataset_path=demo_root, layers=50, model_type="deeplabv3", pretrained=thin_file, **values))
        said: list[str] = []
        cfg, start = get_start(cfg, Group(CPU), None, said.append)
        assert len(said) == lines
        assert get_model(cfg, Group(CPU), said.append, start)[0].backbone.layer2[0].conv1.stride == (2, 2)


def test_b5_rank_0_alone_reads_the_file_and_all_build_one_model(demo_root, tmp_path, thin_file):
    """Two processes end where one does. The file has 5 classes, the run 7, so that the head is drawn by --head_init, too."""
    elsewhere = tmp_path / "without r.pth"
    elsewhere.mkdir()
    results = []
    for world_size in (1, 2):
        words = flags(
            dataset_path=demo_root, logdir=tmp_path, name=f"of{world_size}", layers=50, pretrained="r.pth", numclasses=7,
            head_init="release", freeze_bn=True, l_lorm=0.01, batchsize=None, total_batchsize=4, epochs=None, max_steps=2,
        )  # fmt: skip
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": world_size}
        folders = [tmp_path, elsewhere][:world_size]
        group = [
            start(words, folder, "tests/train_float64.py", RANK=rank, LOCAL_RANK=rank, **env)
            for rank, folder in enumerate(folders)
        ]
        ended = finish(group)
        assert [status for status, _, _ in ended] == [0] * world_size, ended
        results.append(torch.load(tmp_path / f"of{world_size}" / "last.pt", weights_only=True))
    assert results[1]["config"]["stride_in_1x1"]
    for name, value in results[0]["model"].items():
        torch.testing.assert_close(results[1]["model"][name], value, rtol=1e-9, atol=1e-12)


def test_b5_every_program_sets_the_stride_and_says_so_once(demo_root, tmp_path, thin_file, capsys):
    words = ["--checkpoint", str(thin_file), "--layers", "50", "--numclasses", "5", "--device", "cpu"]
    runs = {
        evaluate: ["--dataset_path", str(demo_root), "--dataset", "Dense", "--workers", "0"],
        predict: ["--input", str(demo_root / "JPEGImages"), "--output", str(tmp_path / "out"), "--workers", "0"],
        export: ["--format", "torch", "--output", str(tmp_path / "out"), "--images", str(demo_root / "JPEGImages")],
    }
    for program, more in runs.items():
        assert not program.main([*words, *more])
        said = capsys.readouterr().out
        assert said.count(f"{thin_file} has the weight names of a released CDSP file: --stride_in_1x1 is set") == 1
