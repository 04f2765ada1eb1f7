"""One run that goes on in other ways: alone, on two processes, accumulating, with a sharded optimizer."""

import pytest
import torch
from conftest import finish, read_metrics, start, start_group, succeed

EPOCHS = 5
FLOAT64 = "tests/train_float64.py"
ADAMW = "--optimizer adamw --layer_decay 0.5 --no_decay_norm_bias --clip_grad 0.5"


def momenta(content) -> list[torch.Tensor]:
    """All tensors of the optimizer's state: momentum, or AdamW's two averages and step counts."""
    return [value for state in content["optimizer"]["state"].values() for value in state.values()]


def test_checkpoints_go_from_any_way_of_running_to_any_other(demo_flags, tmp_path):
    """Plain, 2 processes, 2 x accumulation, 2 processes with --zero1, and plain again: as if nothing had changed.

    In float64 with frozen batch norm: the order of a sum then shows in the last digits only.
    """
    words = demo_flags(
        freeze_bn=True, batchsize=None, total_batchsize=4, l_lorm=0.01, epochs=None, val_epoch_frequency=0
    )
    whole = start([*words, "--epochs", str(EPOCHS), "--name", "whole"], tmp_path, FLOAT64)
    ways = [(1, []), (2, []), (1, ["--accum_steps", "2"]), (2, ["--zero1"]), (1, [])]
    stops = [1, 3, 5, 8, 0]  # of 2 steps an epoch, 10 in all: in mid-epoch, and between two
    for (world_size, way), stop in zip(ways, stops, strict=True):
        given = [*words, *way, "--epochs", str(EPOCHS), "--name", "changed", "--resume", "auto"]
        if world_size == 1:
            group = [start(given, tmp_path, FLOAT64, STOP_AT_STEP=stop)]
        else:
            group = start_group(world_size, given, tmp_path, FLOAT64, STOP_AT_STEP=stop)
        results = finish(group)
        assert [result[0] for result in results] == [75 if stop else 0] * world_size, results
    assert finish([whole])[0][0] == 0

    ours, theirs = (torch.load(tmp_path / name / "last.pt", weights_only=True) for name in ("changed", "whole"))
    assert ours["optimizer"]["param_groups"][0]["params"] == theirs["optimizer"]["param_groups"][0]["params"]
    for name, value in theirs["model"].items():
        torch.testing.assert_close(ours["model"][name], value, rtol=1e-9, atol=1e-12)
    for mine, expected in zip(momenta(ours), momenta(theirs), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-7, atol=1e-12)
    for kind in ("train", "val"):
        lines = [read_metrics(tmp_path / name, kind) for name in ("changed", "whole")]
        assert len(lines[0]) == len(lines[1]) == {"train": 10, "val": 1}[kind]
    losses = [[line["loss"] for line in read_metrics(tmp_path / name, "train")] for name in ("changed", "whole")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


@pytest.mark.parametrize("more", [[], pytest.param(ADAMW.split(), marks=pytest.mark.slow)], ids=["sgd", "adamw"])
def test_zero1_changes_no_bit_and_neither_does_resuming_with_or_without_it(demo_flags, tmp_path, more):
    """Three epochs of 2 processes: all as usual, all with --zero1, and with it in the second epoch only."""
    words = [*demo_flags(epochs=3, save_epoch_frequency=1, model_type="res50_ASPP"), *more]

    def run(name: str, *more: str) -> None:
        succeed(start_group(2, [*words, "--name", name, *more], tmp_path, FLOAT64))

    run("usual")
    run("sharded", "--zero1")
    usual, sharded = (
        {file.name: torch.load(file, weights_only=True) for file in (tmp_path / name).glob("epoch_*.pt")}
        for name in ("usual", "sharded")
    )
    for more in (["--zero1"], []):
        # From the other's second epoch on.
        other = "usual" if more else "sharded"
        run("", "--resume", str(tmp_path / other / "epoch_0002.pt"), *more)
    crossed = [torch.load(tmp_path / name / "epoch_0003.pt", weights_only=True) for name in ("usual", "sharded")]
    assert len(usual) == 3
    for ours, theirs in [
        *((sharded[name], usual[name]) for name in usual),
        *((last, usual["epoch_0003.pt"]) for last in crossed),
    ]:
        assert all(torch.equal(ours["model"][name], value) for name, value in theirs["model"].items())
        assert len(momenta(ours)) == len(momenta(theirs)) > 40
        assert all(torch.equal(mine, value) for mine, value in zip(momenta(ours), momenta(theirs), strict=True))
