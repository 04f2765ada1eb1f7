"""The learning rate of a resumed run is continuous, whatever changes the processes and the global batch."""

import itertools
import math

import pytest
import torch
from conftest import finish, flags, read_metrics, start, start_group
from optimizer import begin, get_optimizer, saved_origin
from torch import nn

import config
import utils
from distributed.group import Group
from errors import STOPPED
from runs import checkpoint

CPU = torch.device("cpu")
IMAGES, EPOCHS = 48, 3
FLOAT64 = "tests/train_float64.py"

# Flags that make a global batch of 8 or of 16 on 1 and on 2 processes: {(global batch, processes): flags}.
WAYS = {
    "batchsize": {
        (8, 1): {"batchsize": 8},
        (8, 2): {"batchsize": 4},
        (16, 1): {"batchsize": 16},
        (16, 2): {"batchsize": 8},
    },
    "accum_steps": {
        (batch, processes): {"batchsize": 2, "accum_steps": batch // processes // 2}
        for batch in (8, 16)
        for processes in (1, 2)
    },
    "total_batchsize": {
        (batch, processes): {"total_batchsize": batch, "accum_steps": 2} for batch in (8, 16) for processes in (1, 2)
    },
}
CHANGES = [  # (global batch, processes) at the beginning and on resuming
    ((8, 2), (8, 1)),
    ((8, 1), (8, 2)),
    ((8, 2), (16, 1)),
    ((8, 1), (16, 2)),
    ((16, 2), (8, 1)),
    ((16, 1), (8, 2)),
    ((8, 2), (16, 2)),
    ((8, 1), (16, 1)),
]


def plain_rule(scaling: str, size: float) -> float:
    return {"linear": size, "sqrt": size**0.5, "none": 1.0}[scaling]


def plain_factor(way: str, scaling: str, processes: int) -> float:
    """What a new run multiplies --lr by: the rule of the processes, which --total_batchsize switches off."""
    return 1.0 if way == "total_batchsize" else plain_rule(scaling, processes)


def settings(processes: int, **values) -> tuple[config.Config, Group]:
    group = Group(CPU, world_size=processes)
    return utils.share_batch(
        config.parse(flags(**{"dataset_path": "data", "epochs": EPOCHS, "lr": 0.5} | values)), group
    ), group


def schedule(cfg, group, origin, say=lambda _: None):
    global_batch = cfg.batchsize * cfg.accum_steps * group.world_size
    return get_optimizer(cfg, nn.Linear(1, 1), group, IMAGES // global_batch, origin, say)[1], global_batch


def begun(cfg, group) -> dict:
    return begin(cfg, group.world_size, IMAGES // (cfg.batchsize * cfg.accum_steps * group.world_size))


@pytest.mark.parametrize("scaling", ["linear", "sqrt", "none"])
@pytest.mark.parametrize(("before", "after"), [*itertools.product(WAYS, WAYS)])
def test_lr_lies_on_the_promised_curve(before, after, scaling):
    """The batch of the beginning keeps the lr of the beginning; another one has it scaled by the rule."""
    for (batch, processes), (new_batch, new_processes) in CHANGES:
        old_cfg, old_group = settings(processes, lr_scaling=scaling, **WAYS[before][batch, processes])
        cfg, group = settings(new_processes, lr_scaling=scaling, **WAYS[after][new_batch, new_processes])
        origin = begun(old_cfg, old_group)
        old_lr_at, old_batch = schedule(old_cfg, old_group, origin)
        lines: list[str] = []
        lr_at, now = schedule(cfg, group, origin, lines.append)
        assert (old_batch, now) == (batch, new_batch)
        factor = plain_factor(before, scaling, processes)
        change = plain_rule(scaling, new_batch / batch)
        for samples in (0, 48, 64, 128):  # of 3 x 48, both batches divide them
            # No warm-up: a cosine to 0, at the share of the samples that are done.
            fall = 0.5 * (1 + math.cos(math.pi * samples / (EPOCHS * IMAGES)))
            assert old_lr_at(samples / batch) == pytest.approx(0.5 * factor * fall, rel=1e-9)
            assert lr_at(samples / new_batch) == pytest.approx(0.5 * factor * change * fall, rel=1e-9)
        # The log says the same, and "kept" of the same batch only.
        assert f"global batch {new_batch} = " in lines[0] or f"--total_batchsize {new_batch} " in lines[0]
        assert f"lr 0.5 x {factor * change:g} " in lines[0] or f"lr {0.5 * factor * change:g}, as given" in lines[0]
        if len(lines) > 1:
            assert f"began with {processes} process(es), a global batch of {batch} and --lr x {factor:g};" in lines[1]
            assert ("so the factor is kept" in lines[1]) == (batch == new_batch)
            if batch != new_batch and scaling != "none":
                assert f"--lr_scaling {scaling} multiplies the lr by {change:g}" in lines[1]


@pytest.mark.parametrize("scaling", ["linear", "sqrt", "none"])
@pytest.mark.parametrize("before", WAYS)
def test_file_without_the_factor_gets_it_from_its_flags(before, scaling):
    for batch, processes in itertools.product((8, 16), (1, 2)):
        cfg, group = settings(processes, lr_scaling=scaling, **WAYS[before][batch, processes])
        old = {"origin": {"world_size": processes, "global_batch": batch}, "config": config.as_dict(cfg)}
        assert saved_origin(old, IMAGES) == begun(cfg, group)
        assert old["origin"] == {"world_size": processes, "global_batch": batch}  # as it was


def test_file_without_the_factor_of_a_run_that_had_changed_its_batch():
    """Begun by 2 processes x 4, resumed by the old code with --total_batchsize 16, which left --lr as it was."""
    cfg, group = settings(1, total_batchsize=16)
    old = {"origin": {"world_size": 2, "global_batch": 8}, "config": config.as_dict(cfg)}
    lr_at, _ = schedule(cfg, group, saved_origin(old, IMAGES))
    assert lr_at(0) == 0.5


def test_a_new_lr_is_what_is_multiplied():
    old_cfg, old_group = settings(2, batchsize=4)
    cfg, group = settings(1, total_batchsize=8)
    cfg.lr = 0.1
    lr_at, _ = schedule(cfg, group, begun(old_cfg, old_group))
    assert lr_at(0) == pytest.approx(0.1 * 2)


@pytest.mark.parametrize(("batch", "new_batch"), [(8, 16), (16, 8)])
@pytest.mark.parametrize("length", [{"max_steps": 40, "epochs": None}, {"epochs": 10}])
@pytest.mark.parametrize("warmup", [{"warmup_steps": 6, "warmup_epochs": None}, {"warmup_epochs": 2}])
def test_warm_up_is_over_where_it_was(batch, new_batch, length, warmup):
    """Of a run by steps after as many steps, of one by epochs after as many samples, in whichever unit it is given."""
    values = {"lr_scaling": "none", **length, **warmup}
    old_cfg, old_group = settings(1, **values | {"batchsize": batch})
    cfg, group = settings(1, **values | {"batchsize": new_batch})
    origin = begun(old_cfg, old_group)
    (old_lr_at, _), (lr_at, _) = schedule(old_cfg, old_group, origin), schedule(cfg, group, origin)
    steps = warmup.get("warmup_steps") or 2 * IMAGES // batch  # of the batch at the beginning
    end = steps if "max_steps" in length else steps * batch / new_batch
    assert old_lr_at(steps - 1) == old_lr_at(steps) == 0.5
    assert old_lr_at(steps - 2) < 0.5 > old_lr_at(steps + 1)
    assert lr_at(end - 1) == lr_at(end) == 0.5
    assert lr_at(end - 2) < 0.5 > lr_at(end + 1)


@pytest.mark.parametrize("new_batch", [8, 16, 20])
def test_warm_up_of_a_tenth_of_the_run_is_over_where_it_was(new_batch):
    """3 of the 30 steps of batch 8, which are half an epoch: 1.5 of 15 steps of batch 16, 1 of 10 of batch 20."""
    old_cfg, old_group = settings(1, epochs=5, warmup_epochs=None, batchsize=8)
    cfg, group = settings(1, epochs=5, warmup_epochs=None, lr_scaling="none", batchsize=new_batch)
    origin = begun(old_cfg, old_group)
    lr_at, _ = schedule(cfg, group, origin)
    for epoch in range(1, 6):
        fall = 0.5 * (1 + math.cos(math.pi * (epoch - 0.5) / (5 - 0.5)))
        assert lr_at(epoch * (IMAGES // new_batch)) == pytest.approx(0.5 * fall, rel=1e-9, abs=1e-12)


def test_file_without_the_factor_and_a_list_that_is_shorter_than_its_batch():
    cfg, _ = settings(2, batchsize=8)
    old = {"origin": {"world_size": 2, "global_batch": 16}, "config": config.as_dict(cfg)}
    assert saved_origin(old, 8)["steps_per_epoch"] == 1


@pytest.mark.parametrize(
    ("words", "then_words", "factor"),
    [("--batchsize 2", "--total_batchsize 4", 2.0), ("--total_batchsize 4", "--batchsize 4", 1.0)],
)
def test_run_of_two_processes_goes_on_with_one_at_its_lr(demo_flags, tmp_path, words, then_words, factor):
    """8 images in global batches of 4, 3 epochs: 6 steps, stopped after the third. The audit's two cases."""
    base = demo_flags(epochs=3, batchsize=None, dataset="Dense", model_type="res50_ASPP", name="x", freeze_bn=True)
    results = finish(start_group(2, [*base, *words.split()], tmp_path, FLOAT64, STOP_AT_STEP=3))
    assert {status for status, _, _ in results} == {STOPPED}, results
    file = tmp_path / "x" / "last.pt"
    results = finish([start([*base, *then_words.split(), "--resume", str(file)], tmp_path, FLOAT64)])
    assert results[0][0] == 0, results
    expected = [0.01 * factor * 0.5 * (1 + math.cos(math.pi * step / 6)) for step in range(6)]
    assert [line["lr"] for line in read_metrics(tmp_path / "x", "train")] == pytest.approx(expected, rel=1e-9)
    assert f"lr 0.01 x {factor:g} = {0.01 * factor:g}; global batch 4 = " in results[0][1]
    assert f"a global batch of 4 and --lr x {factor:g}; the batch is the same, so the factor is kept" in results[0][1]
    assert checkpoint.read_run(file)["origin"]["lr_factor"] == factor
