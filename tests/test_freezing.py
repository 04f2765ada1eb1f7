"""--freeze_backbone: the first parts keep their weights and statistics, cost nothing, and all else is the same."""

import copy

import pytest
import torch
from conftest import ALONE, DENSE, assert_same_run, start_group, succeed
from test_models import foreground
from torch import nn

import models
from flags import parse_flags
from models.layers import blocks
from models.memory import fuse_blocks
from models.segmenter import Segmenter
from support.errors import UserError
from training import checkpoint
from utils import get_model

PARTS = [("conv1", "bn1"), ("layer1",), ("layer2",), ("layer3",), ("layer4",)]


def build(layers: int, **options) -> Segmenter:
    torch.manual_seed(0)
    model = models.build("deeplabv3p_lorm", layers=layers, num_classes=4, **options).double().train()
    model.head.classifier[2].p = 0.0  # dropout draws by the order of values in memory
    return model


def trained(model: Segmenter) -> torch.Tensor:
    """Do a forward and backward pass on noise, and return the loss."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (2, 65, 81, 3), dtype=torch.uint8, generator=generator)
    pseudo = torch.randint(0, 4, (2, 65, 81), dtype=torch.uint8, generator=generator)
    outputs = model(images, foreground(model, pseudo))
    loss = outputs["logits"].square().mean() + 1e-4 * outputs["lorm"]
    loss.backward()
    return loss.detach()


def use_plain_modules(model: nn.Module, monkeypatch) -> None:
    """Let torch's own modules and autograd do what the fused functions do."""
    fuse_blocks(model, False)
    monkeypatch.setattr("models.layers.convolution.Conv2d._conv_forward", nn.Conv2d._conv_forward)


@pytest.mark.parametrize("layers", [18, 50])
@pytest.mark.parametrize(("num_parts", "many_pixels"), [(0, True), (1, False), (3, True), (5, False)])
def test_gradients_are_those_of_torchs_modules_and_frozen_parts_have_none(layers, num_parts, many_pixels, monkeypatch):
    monkeypatch.setattr(blocks, "saves_time", lambda *args: many_pixels)
    model = build(layers, freeze_backbone=num_parts)
    plain, before = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    loss = trained(model)
    with monkeypatch.context() as patch:
        use_plain_modules(plain, patch)
        torch.testing.assert_close(loss, trained(plain))
    frozen = {part for parts in PARTS[:num_parts] for part in parts}
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        room, part, *_ = name.split(".")
        is_frozen = room == "backbone" and part in frozen
        assert ours.requires_grad != is_frozen, name
        assert (ours.grad is None) == is_frozen, name
        if not is_frozen:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-12)
    for name, value in model.state_dict().items():
        if name.startswith("backbone") and name.endswith("num_batches_tracked"):
            assert value == before[name] + (name.split(".")[1] not in frozen), name
        if name.startswith("backbone") and name.split(".")[1] in frozen:
            assert torch.equal(value, before[name]), name


def test_random_weights_that_stay_random_are_warned_of(demo_run, capfd):
    demo_run(**DENSE, freeze_backbone=5)
    assert "--freeze_backbone 5 with --pretrained none: frozen weights stay random" in "".join(capfd.readouterr())
    with pytest.raises(UserError, match=r"--freeze_backbone 99: the backbone has 5 parts"):
        demo_run(**DENSE, freeze_backbone=99)


def test_frozen_weights_stay_in_a_run_of_two_processes_whatever_else_is_on(demo_flags, tmp_path):
    """DDP, batch norm over processes, EMA, bf16, accumulation and checkpointing; compared with a run without the last.

    So the two have the same weights, statistics, optimizer and metrics, bit for bit.
    """
    words = demo_flags(freeze_backbone=2, accum_steps=2, batchsize=1, amp="bf16", ema=0.9, sync_bn="on")
    words += ["--optimizer", "adamw"]
    succeed(start_group(2, [*words, "--name", "plain"], tmp_path))
    succeed(start_group(2, [*words, "--name", "all", "--grad_checkpointing"], tmp_path))
    assert_same_run(tmp_path / "all", tmp_path / "plain")
    content = vars(checkpoint.read_run(tmp_path / "all" / "last.pt"))
    first = get_model(parse_flags(words), ALONE)[0].state_dict()  # what the run began with
    for part in ("model", "ema"):
        for name, value in content[part].items():
            same = torch.equal(value, first[name])
            frozen = name.startswith(("backbone.conv1", "backbone.bn1", "backbone.layer1"))
            assert same if frozen else (not same or not value.any()), (part, name)
