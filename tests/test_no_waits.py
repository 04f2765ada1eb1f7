"""A training step has no operation whose result the CPU waits for.

Run on a GPU that is not there (benchmarks/absent_gpu.py): it has no values to give, so every wait is an error.
"""

import pytest

from benchmarks.absent_gpu import AbsentGPU, Waits
from benchmarks.our_step import our_step
from flags import parse_flags

TINY = ["--dataset", "ScribblePseudoDsDc", "--numclasses", "5", "--layers", "50", "--pretrained", "none"]
TINY += ["--amp", "none", "--crop_size", "33", "--batchsize", "2", "--warmup_epochs", "0"]
TINY += ["--fused_blocks", "on"]

STEPS = [
    pytest.param([], id="five losses, LoRM, float32"),
    pytest.param(["--amp", "bf16", "--lorm_scope", "all"], id="bf16, scope all"),
    pytest.param(["--amp", "fp16", "--lorm_scope", "all"], id="fp16, scope all"),
    pytest.param(["--amp", "bf16", "--accum_steps", "2", "--grad_checkpointing"], id="bf16, 2 micro-batches"),
    pytest.param(["--amp", "fp16", "--accum_steps", "2"], id="fp16, 2 micro-batches"),
    pytest.param(["--ema", "0.99"], id="ema"),
    pytest.param(["--optimizer", "adamw", "--head_lr_factor", "2", "--no_decay_norm_bias"], id="adamw in groups"),
    pytest.param(["--clip_grad", "1", "--freeze_backbone", "2"], id="clipped, frozen, float32"),
    pytest.param(["--optimizer", "adamw", "--clip_grad", "1", "--amp", "fp16"], id="adamw, clipped, fp16"),
    pytest.param(["--loss", "dice+lovasz"], id="losses by region"),
    pytest.param(["--dataset", "ScribbleOnly", "--model_type", "res50_ASPP", "--l_crf", "0.2"], id="few pixels, CRF"),
    pytest.param(["--fused_blocks", "off", "--amp", "bf16"], id="separate modules"),
    pytest.param(["--report_training_batch_acc"], id="pixel accuracy of the batches"),
    pytest.param(["--class_weights", "balanced"], id="class weights"),  # copied to the GPU in the first step alone
]


def check_step(flags: list[str], world_size: int) -> None:
    with our_step(parse_flags([*TINY, *flags]), AbsentGPU(), world_size) as (step, state):
        step()
    assert state.step == 3
    assert all(parameter.is_meta for parameter in state.raw_model.parameters())  # the step was not done on the CPU


@pytest.mark.parametrize("flags", STEPS)
@pytest.mark.parametrize("world_size", [1, 8])
def test_no_step_waits(flags, world_size):
    check_step(flags if world_size == 1 else [*flags, "--sync_bn", "off"], world_size)


@pytest.mark.parametrize("flags", [[], ["--amp", "bf16", "--accum_steps", "2", "--grad_checkpointing"]])
def test_no_step_with_batch_norm_over_8_ranks_waits(flags):
    check_step(flags, world_size=8)


def test_a_wait_in_a_step_is_found(monkeypatch):
    def read_and_update(*args) -> None:
        next(state.raw_model.parameters()).sum().item()
        update(*args)

    with our_step(parse_flags(TINY), AbsentGPU()) as (step, state):
        update = state.optimizer_step
        monkeypatch.setattr(state, "optimizer_step", read_and_update)
        with pytest.raises(Waits, match="reads a value"):
            step()
