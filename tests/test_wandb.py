"""--wandb: a run and the one that resumes it are one run of Weights & Biases, offline. No test uses the network."""

import sys

import pytest
from conftest import finish, flags, start_group

from runs.boards import start_wandb
from support.errors import STOPPED, UserError

FAULTS = "tests/train_with_fault.py"
OFFLINE = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}


@pytest.mark.slow
def test_two_processes_log_once_and_a_resumed_run_goes_on_in_the_same(demo_root, tmp_path):
    pytest.importorskip("wandb")
    words = flags(dataset_path=demo_root, logdir=tmp_path, name="x", batchsize=1, wandb=True, resume="auto")
    results = finish(start_group(2, ["signal_in_first_step", "1", *words], tmp_path, FAULTS, **OFFLINE))
    assert [status for status, _, _ in results] == [STOPPED, STOPPED], results
    results = finish(start_group(2, words, tmp_path, **OFFLINE))
    assert [status for status, _, _ in results] == [0, 0], results
    assert "Traceback" not in "".join(stderr for _, _, stderr in results)
    number = (tmp_path / "x/wandb_id").read_text()
    files = [file.name for file in (tmp_path / "x").glob("wandb/offline-run-*/*.wandb")]
    assert files == [f"run-{number}.wandb"] * 2  # one of each start: rank 1 has none
    data = b"".join(file.read_bytes() for file in (tmp_path / "x").glob("wandb/offline-run-*/*.wandb"))
    assert b"train/loss" in data
    assert b"val/miou" in data


def test_missing_package_is_said_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install -e '\S*\[wandb\]'$"):
        start_wandb(tmp_path, "")
