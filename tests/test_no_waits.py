"""A training step has no operation whose result the CPU waits for.

Run on a GPU that is not there (benchmarks/absent_gpu.py): it has no values to give, so every wait is an error.
"""

import pytest

from benchmarks.absent_gpu import AbsentGPU, Waits
from benchmarks.our_step import our_step
from flags import parse_flags
from flags.loss_weights import LOSSES

TINY = ["--dataset", "ScribblePseudoDsDc", "--numclasses", "5", "--layers", "50", "--pretrained", "none"]
TINY += ["--amp", "none", "--crop_size", "33", "--batchsize", "2", "--warmup_epochs", "0"]
TINY += ["--fused_blocks", "on"]

# Flags that do not depend on each other share a step. The class weights are copied to the GPU in the first step alone.
STEPS = [
    "",
    "--amp bf16 --lorm_scope all --ema 0.99 --optimizer adamw --head_lr_factor 2 --no_decay_norm_bias",
    "--amp fp16 --lorm_scope all --optimizer adamw --clip_grad 1",
    "--amp bf16 --accum_steps 2 --grad_checkpointing --class_weights balanced",
    "--amp fp16 --accum_steps 2 --report_training_batch_acc",
    "--clip_grad 1 --freeze_backbone 2",
    f"--loss {'+'.join(LOSSES)}",
    "--dataset ScribbleOnly --model_type res50_ASPP --l_crf 0.2",
    "--fused_blocks off --amp bf16",
]


@pytest.mark.parametrize(
    ("flags", "world_size"),
    [
        *((f"{flags} --sync_bn off", 8) for flags in STEPS),
        *((STEPS[number], 1) for number in (0, 4)),
        *((STEPS[number], 8) for number in (0, 3)),  # with batch norm over the ranks
    ],
)
def test_no_step_waits(flags, world_size):
    with our_step(parse_flags([*TINY, *flags.split()]), AbsentGPU(), world_size) as (step, state):
        step()
    assert state.step == 3
    assert all(parameter.is_meta for parameter in state.raw_model.parameters())  # the step was not done on the CPU


def test_a_wait_in_a_step_is_found(monkeypatch):
    def read_and_update(*args) -> None:
        next(state.raw_model.parameters()).sum().item()
        update(*args)

    with our_step(parse_flags(TINY), AbsentGPU()) as (step, state):
        update = state.optimizer_step
        monkeypatch.setattr(state, "optimizer_step", read_and_update)
        with pytest.raises(Waits, match="reads a value"):
            step()
