"""The network of --pretrained FILE: what a run takes from it, and what the log says of weights that do not fit."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torchvision
from conftest import flags

import models
from distributed.group import Group
from flags import Config, check_flags, parse_flags
from models.pretrained import load_start_weights
from support.errors import UserError
from training.network_flags import fit_network, keep_network, new_part
from training.start_weights import network_of, read_start_file, read_start_weights

CPU = torch.device("cpu")


def test_start_weights_for_classes_of_other_names_are_named(demo_root, tmp_path, caplog):
    content = {
        "config": {"numclasses": 2, "layers": 18, "model_type": "res50_ASPP_lorm"},
        "texts": {"classes": "sky\nroad"},
    }
    content |= {"model": {"head.x": torch.zeros(2)}}
    cfg = parse_flags(flags(dataset_path=demo_root, pretrained=tmp_path / "x.pt", numclasses=2))
    cfg = replace(cfg, model_type="res50_ASPP")  # the same head, without LoRM
    for text in ("", "sky\nroad", "sky\nwater"):
        read_start_weights(replace(cfg, texts={"classes": text}), Group(CPU), content, network_of(content))
    warning = f"--pretrained {tmp_path}/x.pt: its head was trained for classes of other names: 'road' is 'water' now"
    assert [line for line in caplog.messages if "other names" in line] == [warning]
    read_start_weights(
        replace(cfg, numclasses=3, texts={"classes": "a\nb\nc"}), Group(CPU), content, network_of(content)
    )  # a new head
    assert caplog.messages.count(warning) == 1


RESNET18 = torchvision.models.resnet18().state_dict()
OWN = {"model_type": "net.py:Net", "model_args": ["width=16"]}
CDSP = torchvision.models.resnet50().state_dict() | {"layer_pred0.aspp1.x": torch.zeros(1)}
CDSP |= {"layer_pred0.prject.0.weight": torch.zeros(1), "layer_lorm.x": torch.zeros(1)}
OURS = {"model_type": "deeplabv3p_lorm", "backbone": "timm:x", "output_stride": 8, "head_channels": 96, "numclasses": 9}


@pytest.mark.parametrize(
    ("content", "given", "expected"),
    [
        (RESNET18, {}, {"layers": 18}),
        (RESNET18, {"layers": 50}, {"layers": 50}),
        (RESNET18, {"backbone": "timm:x"}, {"backbone": "timm:x", "layers": Config().layers}),
        (OURS, {"layers": 18}, {"backbone": "resnet", "layers": 18, "head_channels": Config().head_channels}),
        # Another project's file has a config of its own, and a backbone that is none of ours.
        ({"config": {"lr": 0.1, "backbone": "resnet"}, "model": RESNET18}, {}, {"layers": 18}),
        ({"config": {"backbone": "swin", "layers": 3}, "model": RESNET18}, {}, {"layers": 18, "backbone": "resnet"}),
        (CDSP, {}, {"model_type": "deeplabv3p_cdsp_lorm", "layers": 50, "stride_in_1x1": True}),
        (CDSP, {"layers": 101}, {"model_type": "res50_ASPP_lorm", "layers": 101, "stride_in_1x1": True}),
        (CDSP, {"layers": 18}, {"layers": 18, "stride_in_1x1": False}),
        # The names of the weights are sure, an entry of another project's config is not.
        ({"config": {"layers": 18}, "model": CDSP}, {}, {"layers": 50}),
        # A run's checkpoint: the demo has pseudo-labels, so the head keeps LoRM; with dense masks it has none.
        (OURS, {}, OURS | {"numclasses": 5}),
        (OURS, {"dataset": "Dense"}, OURS | {"numclasses": 5, "model_type": "deeplabv3p"}),
        # Another head on the same backbone; another backbone, whose features the head does not fit.
        (OURS, {"model_type": "deeplabv3"}, {"model_type": "deeplabv3", "backbone": "timm:x", "head_channels": 256}),
        (OURS, {"backbone": "timm:y"}, {"backbone": "timm:y", "model_type": "deeplabv3p_multi_lorm"}),
        # The stride of the features is no other backbone: neither here nor of a ResNet.
        (OURS, {"backbone": "timm:x", "output_stride": 16}, OURS | {"numclasses": 5, "output_stride": 16}),
        ({"model_type": "linear", "stride_in_1x1": True}, {"output_stride": 8}, {"stride_in_1x1": True}),
        # LoRM is no other head.
        (OURS, {"model_type": "deeplabv3p", "dataset": "Dense"}, {"model_type": "deeplabv3p", "head_channels": 96}),
        # The config.yaml of another run sets the default. The file wins: without the stride its weights would load too,
        # and give wrong results.
        ({"model_type": "linear", "stride_in_1x1": True}, {"no_stride_in_1x1": True}, {"stride_in_1x1": True}),
        ({"model_type": "linear_lorm"}, {}, {"model_type": "res50_ASPP_lorm"}),  # of another version
        ({"model_type": "linear"}, {}, {"model_type": "linear"}),  # has no form with LoRM
        ({"model_type": "net.py:Net"}, {}, {"model_type": "res50_ASPP_lorm"}),  # code that the user does not name
        (OWN, {"model_type": "net.py:Net"}, {"model_args": ("width=16",)}),
        (OWN, {"model_type": "other.py:Net"}, {"model_args": ()}),
        (OWN | {"stride_in_1x1": False}, {"stride_in_1x1": True, "layers": 50}, {"stride_in_1x1": True}),
        ({"model_type": "smp:Unet", "layers": 34}, {"model_type": "smp:Unet"}, {"layers": 34}),
        # A head that this version does not have, beside a stride that its weights need.
        ({"model_type": "head_of_old", "layers": 50, "stride_in_1x1": True}, {}, {"stride_in_1x1": True}),
    ],
)
def test_the_network_is_that_of_the_start_weights_unless_the_user_sets_it(demo_root, content, given, expected):
    if "model_type" in content:
        content = {"config": content, "texts": {}, "step": 1, "model": {}, "ema": None}
    cfg = parse_flags(flags(dataset_path=demo_root, **{"layers": None, "pretrained": "x.pt"} | given))
    found = fit_network(cfg, network_of(content))
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.full_size
@pytest.mark.parametrize(("theirs", "layers"), [(50, 18), (101, 50)])
def test_weights_of_another_depth_are_named(theirs, layers, caplog):
    """All weights of ResNet-50 are in a ResNet-101 by name and shape."""
    cfg = replace(Config(), layers=layers, pretrained="x.pt")
    content = torchvision.models.get_model(f"resnet{theirs}").state_dict()
    start = read_start_weights(cfg, Group(CPU), content, network_of(content))
    load_start_weights(models.build("res50_ASPP", num_classes=4, layers=layers), start, cfg.network)
    assert re.search(rf"x.pt does not fit ResNet-{layers} \(\d+ .*\): use --layers {theirs}$", caplog.messages[0])


@pytest.mark.parametrize(
    "words", [{"head_channels": 32}, {"output_stride": 16}, {"betas": "0.9,0.99"}, {"model_args": ["width=8"]}]
)
def test_flags_that_need_the_files_network_are_checked_once_it_is_known(demo_root, words):
    cfg = parse_flags(flags(dataset_path=demo_root, pretrained="x.pt", **words))
    name = next(iter(words))
    if name != "betas":  # of the optimizer: tests/test_recipe.py
        with pytest.raises(UserError, match=f"^--{name} "):
            check_flags(cfg, is_final=True)
    with pytest.raises(UserError, match=f"^--{name} "):
        parse_flags(flags(dataset_path=demo_root, pretrained="none", **words))


@pytest.mark.parametrize(("word", "meant"), [("ImageNet", "imagenet"), ("COCO", "coco"), ("None", "none")])
def test_capitals_make_no_file_of_a_word(demo_root, tmp_path, monkeypatch, word, meant):
    monkeypatch.chdir(tmp_path)
    words = flags(dataset_path=demo_root, pretrained=word, model_type="deeplabv3_torchvision", layers=50)
    cfg = parse_flags(words)
    assert (cfg.pretrained, cfg.start_file) == (meant, "")
    Path("run.yaml").write_text("pretrained:\n")  # says nothing: it is not "none"
    with pytest.raises(UserError, match=r"pretrained"):
        parse_flags([*flags(dataset_path=demo_root), "--config", "run.yaml"])


def test_a_file_must_be_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, said in (
        ("x.safetensors", r"x\.safetensors: cannot be read \(.*No such file .*\): name a FILE"),
        ("https://x.org/a.pth", r"https://x\.org/a\.pth: download the file"),
    ):
        with pytest.raises(UserError, match=f"^--pretrained {said}"):
            read_start_file(replace(Config(), pretrained=name), Group(CPU))


def test_a_resumed_run_keeps_the_name_of_its_start_weights(demo_root, caplog):
    caplog.set_level("INFO", logger="segtrain")
    saved = SimpleNamespace(config={"pretrained": "first.pt", "backbone": "timm:x", "layers": 50, "head_channels": 96})
    cfg = parse_flags(flags(dataset_path=demo_root, resume="auto", pretrained="second.pt", layers=18))
    kept = keep_network(cfg, saved)
    assert "pretrained" not in kept.typed  # so that no check blames a value that nobody typed
    assert (kept.pretrained, kept.backbone, kept.head_channels) == ("first.pt", "timm:x", 96)
    assert caplog.messages == [
        "set to fit --resume auto: --backbone timm:x --head_channels 96",
        "--pretrained second.pt is not used: --resume brings the weights",
    ]


def test_a_resumed_run_keeps_its_stride_against_a_set_one(demo_root):
    """With the wrong one, all weights fit, and the results are wrong."""
    saved = SimpleNamespace(config={"backbone": "resnet", "layers": 50, "stride_in_1x1": True})
    cfg = parse_flags([*flags(dataset_path=demo_root, resume="auto", layers=50), "--no_stride_in_1x1"])
    assert keep_network(cfg, saved).stride_in_1x1


def test_the_files_stride_replaces_a_set_one(demo_root, caplog):
    caplog.set_level("INFO", logger="segtrain")
    cfg = parse_flags(flags(dataset_path=demo_root, pretrained="x.pt", no_stride_in_1x1=True, layers=50))
    assert fit_network(cfg, network_of(CDSP)).stride_in_1x1
    assert caplog.messages[0].startswith(
        "set to fit --pretrained x.pt: --model_type deeplabv3p_cdsp_lorm --stride_in_1x1"
    )
    assert caplog.messages[0].endswith("; --stride_in_1x1 is not as you set it, because these weights need it")


@pytest.mark.parametrize(
    ("content", "words", "part"),
    [
        (RESNET18, {}, "the head"),
        (OURS, {"numclasses": 9}, ""),
        (OURS, {"numclasses": 9, "dataset": "Dense", "model_type": "deeplabv3p"}, ""),  # LoRM is no part of the head
        (OURS, {"numclasses": 9, "output_stride": 16}, ""),
        (OURS, {}, "the head's last layer"),
        (OURS, {"numclasses": 9, "model_type": "deeplabv3"}, "the head"),
        (OURS, {"numclasses": 9, "head_channels": 32}, "the head"),
        (OURS, {"numclasses": 9, "backbone": "timm:y"}, "the head"),
    ],
)
def test_what_is_new_gets_the_learning_rate_of_a_new_part(demo_root, content, words, part):
    found = network_of({"config": content} if "model_type" in content else content)
    cfg = fit_network(parse_flags(flags(dataset_path=demo_root, pretrained="x.pt", layers=None, **words)), found)
    assert new_part(cfg, found) == part


def test_another_size_of_the_images_is_named(demo_root, caplog):
    caplog.set_level("INFO", logger="segtrain")
    content = {"config": {"model_type": "res50_ASPP", "long_side": 320}, "model": {}}
    others = {"config": "x.yaml", "model": {"classifier.0.convs.0.0.weight": torch.zeros(1)}}  # another project's
    for long_side in (0, 320, 640):
        cfg = parse_flags(flags(dataset_path=demo_root, dataset="Dense", pretrained="x.pt", long_side=long_side))
        read_start_weights(cfg, Group(CPU), content, network_of(content))
    other = replace(cfg, model_type="deeplabv3_torchvision")
    read_start_weights(other, Group(CPU), others, network_of(others))
    said = [line for line in caplog.messages if "--long_side" in line]
    assert [line.rsplit("(")[1] for line in said] == ["not set now)", "now 640)"]
