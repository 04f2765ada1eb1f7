"""Networks that draw random numbers, for dropout or stochastic depth: one batch gets the same draws everywhere."""

import pytest
import torch
from conftest import FAULTS, FLOAT64, assert_same_run, finish, read_metrics, start, start_group, succeed

import models
from models import compiled
from support.errors import STOPPED
from tests.drawing import make_draw
from tests.test_grad_checkpointing import trained
from training.state import TrainState


def drawing(name: str, **options) -> models.Segmenter:
    pytest.importorskip("timm")
    torch.manual_seed(0)
    model = models.build("deeplabv2", backbone=f"timm:{name}", num_classes=4, **options).train()
    make_draw(model.backbone)
    return model


def after_a_step(model: torch.nn.Module, seed: int = 2, **how) -> list[torch.Tensor]:
    """The losses of a step, and the weights after it, which tell the gradients. seed: of the draws."""
    torch.manual_seed(seed)
    losses = trained(model, steps=1, **how)
    return [*losses, *model.state_dict().values()]


@pytest.mark.parametrize("name", ["test_vit", "test_convnext"])
@pytest.mark.parametrize("how", [{}, {"amp": "bf16"}, {"accum_steps": 2}], ids=str)
def test_recomputed_blocks_draw_what_they_drew(name, how):
    """If the backward pass drew other numbers, gradients would be those of another network."""
    expected = after_a_step(drawing(name), **how)
    assert all(map(torch.equal, after_a_step(drawing(name, grad_checkpointing=True), **how), expected))
    assert not torch.equal(after_a_step(drawing(name), 3, **how)[0], expected[0])  # the network does draw


def test_compiled_blocks_draw_what_they_drew(monkeypatch):
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    expected = after_a_step(drawing("test_vit"))
    for options in ({}, {"grad_checkpointing": True}):
        model = drawing("test_vit", **options)
        compiled.compile_blocks(model)
        torch.testing.assert_close(after_a_step(model), expected, rtol=1e-5, atol=1e-7)


def test_two_processes_recompute_what_they_drew_and_resume_bit_for_bit(demo_flags, tmp_path):
    """Stochastic depth under DistributedDataParallel, stopped in mid-epoch."""
    pytest.importorskip("timm")
    words = demo_flags(
        model_type="deeplabv2", backbone="timm:test_vit", dataset="ScribblePseudo", batchsize=1, epochs=2, ema=0.5,
    )  # fmt: skip
    succeed(start_group(2, ["draws", "all", *words, "--name", "plain"], tmp_path, FAULTS))
    words += ["--grad_checkpointing", "--name", "cut", "--resume", "auto"]
    finish(start_group(2, ["draws+signal_mid_epoch", "all", *words], tmp_path, FAULTS), status=STOPPED)
    succeed(start_group(2, ["draws", "all", *words], tmp_path, FAULTS))
    assert_same_run(tmp_path / "cut", tmp_path / "plain")


def test_each_forward_pass_draws_other_numbers(demo_run, monkeypatch):
    seeds, seed_forward = [], TrainState.seed_forward
    monkeypatch.setattr(
        TrainState, "seed_forward", lambda *args: seed_forward(*args) or seeds.append(torch.initial_seed())
    )
    demo_run(epochs=2, accum_steps=2)
    assert len(set(seeds)) == len(seeds) == 8


def test_same_run_at_any_number_of_processes_and_resumed_with_another(demo_flags, tmp_path):
    """deeplabv3's head has dropout. Two processes, or one with twice the accumulation from the second step on.

    In float64 with frozen batch norm: the order of a sum then shows in the last digits only.
    """
    words = demo_flags(
        model_type="deeplabv3", dataset="Dense", freeze_bn=True, batchsize=1, accum_steps=2, lr_scaling="none",
        epochs=2, val_epoch_frequency=0,
    )  # fmt: skip
    succeed(start_group(2, [*words, "--name", "whole"], tmp_path, FLOAT64))
    words += ["--name", "changed", "--resume", "auto"]
    finish(start_group(2, words, tmp_path, FLOAT64, STOP_AT_STEP=1), status=STOPPED)  # of 2 an epoch
    succeed([start([*words, "--accum_steps", "4"], tmp_path, FLOAT64)])
    whole, changed = (tmp_path / name for name in ("whole", "changed"))
    losses = [line["loss"] for line in read_metrics(whole, "train")]
    assert len(losses) == 4
    assert [line["loss"] for line in read_metrics(changed, "train")] == pytest.approx(losses, rel=1e-9)
    weights, expected = (torch.load(folder / "last.pt", weights_only=True)["model"] for folder in (changed, whole))
    torch.testing.assert_close(weights, expected, rtol=1e-9, atol=1e-12)
