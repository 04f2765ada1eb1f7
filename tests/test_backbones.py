"""Networks of timm as backbones: timm's features, every parameter trained, weights from files, runs that resume."""

import pytest
import torch
from conftest import assert_same_run, finish, flags, read_metrics, start, start_group, succeed
from torch import nn

import models
from models.layers import fold
from models.pretrained import StartWeights, load_start_weights
from models.timm_backbone import TimmBackbone
from models.timm_weights import read_timm_weights
from optimization.average import WeightAverage
from runs import checkpoint
from support.errors import STOPPED, UserError
from tests.test_grad_checkpointing import trained

timm = pytest.importorskip("timm")


def build(name: str, model_type: str = "deeplabv3p_multi", **options) -> models.Segmenter:
    torch.manual_seed(0)
    model = models.build(model_type, backbone=f"timm:{name}", num_classes=4, head_channels=16, **options)
    models.freeze_unused(model)
    return model


def test_parameters_that_no_output_needs_are_not_trained():
    """A linear head takes HRNet's deepest features, which need nothing that the last exchange sends to finer ones."""
    model = build("hrnet_w18_small", "deeplabv2").train()
    frozen = {
        name.removeprefix("backbone.body.") for name, value in model.named_parameters() if not value.requires_grad
    }
    parts = ("stage4.0.fuse_layers.0.", "stage4.0.fuse_layers.1.", "stage4.0.fuse_layers.2.")
    parts += ("incre_modules.0.", "incre_modules.1.", "incre_modules.2.")
    assert all(name.startswith(parts) for name in frozen)
    assert {part for part in parts if any(name.startswith(part) for name in frozen)} == set(parts)
    model(torch.randint(0, 256, (2, 65, 97, 3), dtype=torch.uint8))["logits"].sum().backward()
    assert all((value.grad is not None) == value.requires_grad for value in model.parameters())


@pytest.mark.parametrize("name", ["test_efficientnet", "tf_mobilenetv3_small_minimal_100", "test_vit"])
@pytest.mark.parametrize("size", [(64, 96), (65, 97)])
def test_features_and_gradients_are_those_of_timm(name, size):
    """Our convolutions and batch norms compute the same; in float64, so that only rounding remains."""
    ours = TimmBackbone(name).double().train()
    theirs = timm.create_model(name, num_classes=0, **ours.facts.options).double().train()
    theirs.load_state_dict(ours.body.state_dict(), strict=False)
    below, right = (-side % ours.facts.multiple for side in size)
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    found = ours(x)
    expected = theirs.forward_intermediates(
        nn.functional.pad(x, (0, right, 0, below)), indices=ours.facts.indices, norm=True, intermediates_only=True
    )
    weights = [torch.randn_like(values) for values in found]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    torch.autograd.backward(found, weights)
    torch.autograd.backward(expected, weights)
    theirs_by_name = dict(theirs.named_parameters())
    largest = max(float(parameter.grad.abs().max()) for parameter in ours.parameters())
    for parameter_name, parameter in ours.body.named_parameters():
        torch.testing.assert_close(
            parameter.grad, theirs_by_name[parameter_name].grad, rtol=1e-9, atol=1e-12 * largest, msg=parameter_name
        )


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


@pytest.mark.parametrize(("name", "left"), [("test_efficientnet", 0), ("test_resnet", 1)])
def test_folded_network_computes_the_same(name, left):
    """test_resnet's first convolutions are a sequence of their own, so that the norm after it stays."""
    model = build(name).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(generator=generator)
            norm.running_var.uniform_(0.5, 2, generator=generator)
    x = torch.randint(0, 256, (1, 65, 97, 3), dtype=torch.uint8, generator=generator)
    with torch.no_grad():
        assert fold._norms_follow(name, 0)
        expected, copied = model(x)["logits"], fold.folded(model)
        torch.testing.assert_close(copied(x)["logits"], expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert sum(isinstance(module, nn.BatchNorm2d) for module in copied.backbone.modules()) == left


def test_network_whose_norms_come_before_is_not_folded(monkeypatch):
    """A norm that is registered after the convolution but computed before it: folding would change the result."""
    fold._norms_follow.cache_clear()

    class NormFirst(TimmBackbone):
        def __init__(self, name, **options):
            super().__init__("test_resnet", **options)
            block = nn.Sequential()
            block.conv, block.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
            self.first = block

        def forward(self, images):
            return super().forward(self.first.conv(self.first.norm(images)))

    monkeypatch.setattr(fold, "TimmBackbone", NormFirst)
    with torch.no_grad():
        assert not fold._norms_follow("norm_first", 0)
        monkeypatch.undo()
        fold._norms_follow.cache_clear()
        assert fold._norms_follow("test_resnet", 0)


@pytest.mark.parametrize("name", ["test_efficientnet", "test_vit"])
def test_grad_checkpointing_changes_no_bit(name):
    plain, checkpointed = (build(name, grad_checkpointing=flag).train() for flag in (False, True))
    steps = [[torch.randint(0, 256, (2, 65, 65, 3), dtype=torch.uint8)] for _ in range(2)]
    for model in (plain, checkpointed):
        for (images,) in steps:
            model(images)["logits"].square().mean().backward()
    assert len(checkpointed.backbone.blocks()) >= 2
    for (found, one), (_, other) in zip(plain.state_dict().items(), checkpointed.state_dict().items(), strict=True):
        assert torch.equal(one, other), found
    for (found, one), (_, other) in zip(plain.named_parameters(), checkpointed.named_parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), found


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


def test_feature_size_of_a_crop_as_small_as_the_stride():
    backbone = TimmBackbone("test_efficientnet", output_stride=32)
    assert backbone.feature_size(32, 32) == (1, 1)
    assert backbone.feature_size(33, 64) == (2, 2)


def test_one_position_and_batch_norm_is_one_line(demo_root, tmp_path):
    words = flags(dataset_path=demo_root, logdir=tmp_path, **TINY_TIMM | {"crop_size": 32, "batchsize": 1})
    [(status, _, err)] = finish([start([*words, "--output_stride", "32"], tmp_path)])
    assert status == 2
    assert "--batchsize 1 with --crop_size 32" in err
    assert "Traceback" not in err


def test_lorm_takes_the_features_of_any_network():
    model = build("test_vit", "res50_ASPP_lorm").train()
    losses = trained(model, steps=2)
    assert all(loss.isfinite() for loss in losses)
    assert losses[0] != losses[1]


def saved(tmp_path, content, name="net.pth"):
    torch.save(content, tmp_path / name)
    return str(tmp_path / name)


def test_weights_from_files_of_timm_of_others_and_of_ours(tmp_path):
    network = timm.create_model("test_efficientnet")
    content = network.state_dict()
    plain = TimmBackbone("test_efficientnet")
    first = content["conv_stem.weight"]
    for source in (content, {"state_dict": {f"module.{name}": value for name, value in content.items()}}):
        start = read_timm_weights(plain, saved(tmp_path, source), checkpoint.read)
        assert torch.equal(start.state_dict["backbone.body.conv_stem.weight"], first)
    renamed = {f"_layer{number}": value for number, value in enumerate(content.values())}
    start = read_timm_weights(plain, saved(tmp_path, renamed), checkpoint.read)
    assert all(
        torch.equal(value, content[name.removeprefix("backbone.body.")]) for name, value in start.state_dict.items()
    )
    import safetensors.torch

    safetensors.torch.save_file(content, tmp_path / "net.safetensors")
    start = read_timm_weights(plain, str(tmp_path / "net.safetensors"), checkpoint.read)
    assert torch.equal(start.state_dict["backbone.body.conv_stem.weight"], first)
    ours = {"model": build("test_efficientnet").state_dict()}
    start = read_timm_weights(plain, saved(tmp_path, ours), checkpoint.read)
    assert set(start.state_dict) == set(ours["model"])


def test_unet_takes_all_strides_of_a_network_undilated():
    model = build("test_efficientnet", "unet").eval()
    assert model.backbone.strides == (2, 4, 8, 16, 32)
    images = torch.zeros(1, 65, 97, 3, dtype=torch.uint8)
    assert model(images)["logits"].shape == (1, 4, 33, 49)
    assert build("convnext_atto", "unet").backbone.strides == (4, 8, 16, 32)
    with pytest.raises(UserError, match=r"--model_type unet with --backbone timm:test_vit: all of its .* one stride"):
        build("test_vit", "unet")


def test_position_embeddings_of_another_size_are_resized(tmp_path):
    """test_vit has 160 / 16 = 10 positions a side; an image of 65x97 needs 5 x 7."""
    body = TimmBackbone("test_vit")
    assert body.body.pos_embed.shape[1] in (100, 101)
    assert [tuple(x.shape[2:]) for x in body(torch.randn(1, 3, 65, 97))] == [(5, 7)]
    larger = timm.create_model("test_vit", img_size=224).state_dict()  # 14 x 14
    start = read_timm_weights(body, saved(tmp_path, larger), checkpoint.read)
    assert start.state_dict["backbone.body.pos_embed"].shape == body.body.pos_embed.shape


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet51", {}, "--backbone timm:resnet51: timm .* has no such network: try resnet"),
        ("resnet50.nonsense", {}, r"--backbone timm:resnet50.nonsense: timm cannot build it \(Invalid pretrained tag"),
        ("test_vit", {"output_stride": 8}, "--output_stride 8: timm:test_vit has a stride of its own"),
        ("mixer_s16_224", {}, "--backbone timm:mixer_s16_224: takes images of one size only"),
        ("crossvit_tiny_240", {}, "--backbone timm:crossvit_tiny_240: takes images of one size only"),
        ("lambda_resnet26t", {}, "--backbone timm:lambda_resnet26t: has 3-D convolutions, .*: choose another"),
    ],
)
def test_what_a_network_cannot_do_is_one_line(name, options, message):
    with pytest.raises(UserError, match=message) as error:
        TimmBackbone(name, **options)
    assert "\n" not in str(error.value)


def test_weights_of_another_backbone_are_refused_though_the_head_fits():
    other = build("test_vit", "deeplabv2").state_dict()
    model = build("test_efficientnet", "deeplabv2")
    other |= {f"head.{name}": value for name, value in model.head.state_dict().items()}
    with pytest.raises(UserError, match=r"x\.pt: none of its backbone's weights fits: check --backbone"):
        load_start_weights(model, StartWeights("x.pt", other), layers=50)


def test_weights_that_do_not_fit_are_one_line(tmp_path, monkeypatch):
    body = TimmBackbone("test_efficientnet")
    other = saved(tmp_path, timm.create_model("test_resnet").state_dict())
    with pytest.raises(UserError, match=f"--pretrained {other}: no weights for timm:test_efficientnet") as error:
        read_timm_weights(body, other, checkpoint.read)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="imagenet_v1: only torchvision's ResNet"):
        read_timm_weights(body, "imagenet_v1", checkpoint.read)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\x00" * 7)
    with pytest.raises(UserError, match="not a whole safetensors file"):
        read_timm_weights(body, str(broken), checkpoint.read)

    def no_network(*args, **options):
        raise OSError("no route to the host")

    monkeypatch.setattr("models.timm_weights.create", no_network)
    with pytest.raises(UserError, match=r"no route to the host\): connect, give a FILE, or use --pretrained none"):
        read_timm_weights(body, "imagenet", checkpoint.read)


def test_without_timm_the_flag_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(UserError, match=r"needs the package timm: .*pip install -e '\S*\[timm\]'$"):
        TimmBackbone("a network that no test built before")


TINY_TIMM = {"backbone": "timm:test_efficientnet", "model_type": "deeplabv3p_multi", "head_channels": 8}
TINY_TIMM |= {"dataset": "Dense", "crop_size": 65}


def test_run_is_saved_scored_and_resumed_bit_for_bit(demo_root, tmp_path):
    words = flags(dataset_path=demo_root, logdir=tmp_path, epochs=2, ema=0.9, **TINY_TIMM)
    program = "tests/train_float64.py"
    cut = start([*words, "--name", "cut"], tmp_path, program, STOP_AT_STEP="3")
    succeed([start([*words, "--name", "whole"], tmp_path, program)])
    [(status, _, _)] = finish([cut])
    assert status == STOPPED
    succeed([start([*words, "--name", "cut", "--resume", "auto"], tmp_path, program)])
    assert_same_run(tmp_path / "cut", tmp_path / "whole")
    score = ["--checkpoint", str(tmp_path / "whole" / "best.pt"), "--device", "cpu", "--workers", "0"]
    [out] = succeed([start(score, tmp_path, "evaluate.py")])
    best = max(line["miou"] for line in read_metrics(tmp_path / "whole", "val"))
    assert f"{100 * best:.2f}" in out


def test_same_losses_on_one_and_two_processes(demo_root, tmp_path):
    """Promise 1 with synchronised batch norm of timm's class, in float64."""
    words = flags(
        dataset_path=demo_root, logdir=tmp_path, epochs=2, batchsize=None, val_epoch_frequency=0,
        sync_bn="on", lr_scaling="none", total_batchsize=4, **TINY_TIMM,
    )  # fmt: skip
    for world_size in (1, 2):
        results = finish(
            start_group(world_size, [*words, "--name", str(world_size)], tmp_path, "tests/train_float64.py"),
            timeout=300,
        )
        assert [status for status, _, _ in results] == [0] * world_size, results
    whole, halves = (read_metrics(tmp_path / name, "train") for name in "12")
    assert len(whole) == 4
    for one, other in zip(whole, halves, strict=True):
        assert other["losses"] == pytest.approx(one["losses"], rel=1e-9)
