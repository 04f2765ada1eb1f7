"""One run that goes on in other ways: alone, on two processes, accumulating."""

import pytest
import torch
from conftest import FLOAT64, finish, read_metrics, start, start_group, succeed

EPOCHS = 5


def momenta(content) -> list[torch.Tensor]:
    """All tensors of the optimizer's state: momentum, or AdamW's two averages and step counts."""
    return [value for state in content["optimizer"]["state"].values() for value in state.values()]


def test_checkpoints_go_from_any_way_of_running_to_any_other(demo_flags, tmp_path):
    """Plain, 2 processes, 2 x accumulation, 2 processes, and plain again: as if nothing had changed.

    In float64 with frozen batch norm: the order of a sum then shows in the last digits only.
    """
    length = {"batchsize": None, "total_batchsize": 4, "epochs": None, "val_epoch_frequency": 0}
    words = demo_flags(freeze_bn=True, l_lorm=0.01, **length)
    whole = start([*words, "--epochs", str(EPOCHS), "--name", "whole"], tmp_path, FLOAT64)
    ways = [(1, []), (2, []), (1, ["--accum_steps", "2"]), (2, []), (1, [])]
    stops = [1, 3, 5, 8, 0]  # of 2 steps an epoch, 10 in all: in mid-epoch, and between two
    for (world_size, way), stop in zip(ways, stops, strict=True):
        given = [*words, *way, "--epochs", str(EPOCHS), "--name", "changed", "--resume", "auto"]
        if world_size == 1:
            group = [start(given, tmp_path, FLOAT64, STOP_AT_STEP=stop)]
        else:
            group = start_group(world_size, given, tmp_path, FLOAT64, STOP_AT_STEP=stop)
        finish(group, status=75 if stop else 0)
    succeed([whole])

    ours, theirs = (torch.load(tmp_path / name / "last.pt", weights_only=True) for name in ("changed", "whole"))
    assert ours["optimizer"]["param_groups"][0]["params"] == theirs["optimizer"]["param_groups"][0]["params"]
    torch.testing.assert_close(ours["model"], theirs["model"], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(momenta(ours), momenta(theirs), rtol=1e-7, atol=1e-12)
    for kind in ("train", "val"):
        lines = [read_metrics(tmp_path / name, kind) for name in ("changed", "whole")]
        assert len(lines[0]) == len(lines[1]) == {"train": 10, "val": 1}[kind]
    losses = [[line["loss"] for line in read_metrics(tmp_path / name, "train")] for name in ("changed", "whole")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
