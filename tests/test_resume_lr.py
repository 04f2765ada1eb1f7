"""The learning rate: its curve, and that a resumed run keeps it, whatever changes the processes and the batch."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from conftest import flags

from data.sampler import TrainSampler
from distributed.group import Group
from flags import parse_flags
from support.errors import UserError
from training.record.messages import log_schedule
from training.schedule import Schedule, lr_factor
from training.settle import split_batchsize

IMAGES, EPOCHS = 48, 3

# Flags that make a global batch of 8 or of 16 on 1 and on 2 processes.
WAYS = {
    "batchsize": lambda batch, processes: {"batchsize": batch // processes},
    "accum_steps": lambda batch, processes: {"batchsize": 2, "accum_steps": batch // processes // 2},
    "total_batchsize": lambda batch, processes: {"total_batchsize": batch, "accum_steps": 2},
}
# (global batch, processes) at the beginning and on resuming
CHANGES = [((8, 2), (8, 1)), ((8, 1), (8, 2)), ((8, 2), (16, 1)), ((8, 1), (16, 2))]
CHANGES += [((16, 2), (8, 1)), ((16, 1), (8, 2)), ((8, 2), (16, 2)), ((8, 1), (16, 1))]
SCALINGS = ["linear", "sqrt", "none"]


def plain_rule(scaling: str, size: float) -> float:
    return {"linear": size, "sqrt": size**0.5, "none": 1.0}[scaling]


def learning_rate(processes: int = 1, saved: SimpleNamespace | None = None, images: int = IMAGES, **values) -> Schedule:
    values = {"dataset_path": "data", "epochs": EPOCHS, "lr": 0.5} | values
    cfg = split_batchsize(parse_flags(flags(**values)), Group(torch.device("cpu"), world_size=processes))
    batch = {"batch_size": cfg.batchsize, "accum_steps": cfg.accum_steps}
    return Schedule(cfg, TrainSampler(images, **batch, seed=0, world_size=processes), saved)


def saved_by(rate: Schedule) -> SimpleNamespace:
    return SimpleNamespace(origin=rate.origin)


def at(rate: Schedule, step: float) -> float:
    """The learning rate after as many steps of the current batch."""
    return rate.lr(SimpleNamespace(step=step, epoch=0, samples=step * rate.sampler.global_batch))


def test_warm_up_and_length():
    # The default is a tenth of the run: 2 of 20 epochs of 3 steps. The rate rises by a sixth a step.
    rate = learning_rate(images=6, lr=0.6, epochs=20, warmup_epochs=None)
    assert [at(rate, step) for step in (0, 1, 5, 6)] == pytest.approx([0.1, 0.2, 0.6, 0.6])
    assert at(learning_rate(images=6, max_steps=40, warmup_epochs=None), 0) == pytest.approx(0.5 / 4)
    # Steps override epochs. Up in 4, then down in 8: half-way, in step 8, it is at a half, and at the 12th at 0.
    rate = learning_rate(images=6, lr=0.6, max_steps=12, warmup_epochs=5, warmup_steps=4)
    assert [at(rate, step) for step in (0, 3, 4, 8, 12)] == pytest.approx([0.15, 0.6, 0.6, 0.3, 0.0])
    rate = learning_rate(images=6, lr=0.6, epochs=20, warmup_epochs=0.5)  # 1.5 steps, rounded to 2
    assert [at(rate, step) for step in (0, 1)] == pytest.approx([0.3, 0.6])
    assert lr_factor(2, 10, 2.5) == 1.0  # never above the peak
    for values in ({"max_steps": 4, "warmup_epochs": None, "warmup_steps": 4}, {"max_steps": 3, "warmup_epochs": 1}):
        with pytest.raises(UserError, match="would never reach --lr"):
            learning_rate(images=6, **values)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize(("before", "after"), [*itertools.product(WAYS, WAYS)])
def test_lr_lies_on_the_promised_curve(before, after, scaling, caplog):
    """The batch of the beginning keeps the lr of the beginning; another one has it scaled by the rule."""
    for (batch, processes), (new_batch, new_processes) in CHANGES:
        old = learning_rate(processes, lr_scaling=scaling, **WAYS[before](batch, processes))
        new_flags = WAYS[after](new_batch, new_processes)
        new = learning_rate(new_processes, saved_by(old), lr_scaling=scaling, **new_flags)
        assert (old.sampler.global_batch, new.sampler.global_batch) == (batch, new_batch)
        # A new run multiplies --lr by the rule for its processes, unless --total_batchsize says the batch.
        factor = 1.0 if before == "total_batchsize" else plain_rule(scaling, processes)
        change = plain_rule(scaling, new_batch / batch)
        for samples in (0, 48, 64, 128):  # of 3 x 48, both batches divide them
            # No warm-up: a cosine to 0, at the share of the samples that are done.
            fall = 0.5 * (1 + math.cos(math.pi * samples / (EPOCHS * IMAGES)))
            assert at(old, samples / batch) == pytest.approx(0.5 * factor * fall, rel=1e-9)
            assert at(new, samples / new_batch) == pytest.approx(0.5 * factor * change * fall, rel=1e-9)
        caplog.clear()
        log_schedule(new)
        lr = f"lr {0.5 * factor * change:g}"
        product = [f"{lr} = --lr 0.5 x {factor * change:g} (--lr_scaling {scaling})"] if factor * change != 1 else []
        assert lr in caplog.messages[0]
        assert caplog.messages[1 : 1 + len(product)] == product
        assert len(caplog.messages) == 1 + len(product) + (batch != new_batch)


def test_total_batch_size_is_divided_and_leaves_the_lr():
    rate = learning_rate(4, total_batchsize=32, accum_steps=2)
    assert (rate.cfg.batchsize, at(rate, 0)) == (4, 0.5)  # 32 / (4 * 2)
    resumed = learning_rate(8, saved_by(rate), total_batchsize=32, accum_steps=2)
    assert (resumed.cfg.batchsize, at(resumed, 0)) == (2, 0.5)
    with pytest.raises(UserError, match=r"--total_batchsize 32 is not divisible by 3 .* 2: use 30 or another multiple"):
        learning_rate(3, total_batchsize=32, accum_steps=2)


def test_a_run_from_the_weights_of_another_has_the_lr_of_a_new_run():
    """--reset_data_offset: --lr x 2 for 2 processes, whatever the other run had, here x 4."""
    old = learning_rate(4, batchsize=4)
    assert at(learning_rate(2, saved_by(old), batchsize=8, resume="x.pt", reset_data_offset=True), 0) == 0.5 * 2


@pytest.mark.parametrize(("batch", "new_batch"), [(8, 16), (16, 8)])
@pytest.mark.parametrize("length", [{"max_steps": 40, "epochs": None}, {"epochs": 10}])
@pytest.mark.parametrize("warmup", [{"warmup_steps": 6, "warmup_epochs": None}, {"warmup_epochs": 2}])
def test_warm_up_ends_where_it_did(batch, new_batch, length, warmup):
    """After as many steps in a run by steps, after as many samples in one by epochs, in whichever unit it is given."""
    values = {"lr_scaling": "none", **length, **warmup}
    old = learning_rate(**values | {"batchsize": batch})
    new = learning_rate(1, saved_by(old), **values | {"batchsize": new_batch})
    steps = warmup.get("warmup_steps") or 2 * IMAGES // batch  # of the batch at the beginning
    end = steps if "max_steps" in length else steps * batch / new_batch
    assert at(old, steps - 1) == at(old, steps) == 0.5
    assert at(old, steps - 2) < 0.5 > at(old, steps + 1)
    assert at(new, end - 1) == at(new, end) == 0.5
    assert at(new, end - 2) < 0.5 > at(new, end + 1)
