"""A signal stops all ranks at the same step, with all that is needed to go on as if it had not come."""

import json
import signal
import time

import pytest
import torch
from conftest import assert_same_run, finish, flags, read_metrics, start, start_group

from engine import checkpoint
from errors import STOPPED

FAULTS = "tests/train_with_fault.py"
# Where each phase's signal finds the run: 4 steps an epoch; a step that has begun is finished.
PHASES = {
    "signal_in_startup": (0, 0),
    "signal_in_first_step": (1, 0),
    "signal_mid_epoch": (6, 1),
    "signal_in_last_step_of_an_epoch": (4, 0),
    "signal_in_validation": (4, 0),
}


@pytest.fixture(scope="module")
def words(demo_root):
    # Some batches warm up, and the lines of metrics do not end where an epoch does.
    return flags(dataset_path=demo_root, epochs=2, warmup_epochs=1.5, log_interval=3, ema=0.9)


@pytest.fixture(scope="module")
def unbroken(words, tmp_path_factory):
    """The folders of the whole run on one process and on two, by their number."""
    logdir = tmp_path_factory.mktemp("unbroken")
    words = [*words, "--logdir", str(logdir)]
    processes = [
        start([*words, "--name", "1"], logdir),
        *start_group(2, [*words, "--name", "2", "--batchsize", "1"], logdir),
    ]
    assert [status for status, _, _ in finish(processes)] == [0, 0, 0]
    return {number: logdir / str(number) for number in (1, 2)}


@pytest.mark.parametrize("phase", PHASES)
def test_sigterm_to_one_rank_stops_both_and_the_run_goes_on_exactly(words, unbroken, tmp_path, phase):
    words = [*words, "--logdir", str(tmp_path), "--name", "x", "--resume", "auto", "--batchsize", "1"]
    results = finish(start_group(2, [phase, "1", *words], tmp_path, FAULTS))
    assert [status for status, _, _ in results] == [STOPPED, STOPPED], results
    assert "stopped by SIGTERM on rank 1 after step" in results[0][1]
    assert not list((tmp_path / "x").glob(".*"))
    assert checkpoint.is_whole(tmp_path / "x" / "last.pt")
    content = checkpoint.read_run(tmp_path / "x" / "last.pt")
    assert (content["step"], content["epoch"]) == PHASES[phase]
    assert content["samples"] == 2 * (content["step"] - 4 * content["epoch"])
    assert [status for status, _, _ in finish(start_group(2, words, tmp_path))] == [0, 0]
    assert_same_run(tmp_path / "x", unbroken[2])


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_each_signal_stops_a_single_process_while_it_saves(words, unbroken, tmp_path, name):
    """The signal comes from outside once last.pt is being written; the loader's workers get it, too."""
    words = [*words, "--logdir", str(tmp_path), "--name", "x", "--resume", "auto", "--workers", "1"]
    [(status, stdout, stderr)] = finish([start(["signal_while_saving", "0", *words], tmp_path, FAULTS, SIGNAL=name)])
    assert status == STOPPED, stderr
    assert f"stopped by {name} after step" in stdout
    assert finish([start(words, tmp_path)])[0][0] == 0
    assert_same_run(tmp_path / "x", unbroken[1])


def test_signal_to_the_whole_process_group_with_workers(words, unbroken, tmp_path):
    """As Ctrl-C, torchrun and Slurm send it: the loader's workers must not die of it."""
    words = [*words, "--logdir", str(tmp_path), "--name", "x", "--resume", "auto", "--workers", "2"]
    [(status, _, stderr)] = finish([start(["signal_group_mid_epoch", "0", *words], tmp_path, FAULTS, own_session=True)])
    assert status == STOPPED, stderr
    assert stderr.count("Traceback") == 0
    assert finish([start(words, tmp_path)])[0][0] == 0
    assert_same_run(tmp_path / "x", unbroken[1])


def test_second_sigint_stops_at_once(demo_root, tmp_path):
    words = flags(dataset_path=demo_root, logdir=tmp_path, name="x", epochs=50)
    process = start(["stuck_after_signal", "0", *words], tmp_path, FAULTS)
    while not (tmp_path / "stuck").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None  # it is in a step of 30 seconds
    process.send_signal(signal.SIGINT)
    [(status, _, stderr)] = finish([process], timeout=10)
    assert status == 130
    assert "interrupted for the second time" in stderr


def test_run_that_has_ended_is_left_as_it_is(words, unbroken, tmp_path):
    before = (unbroken[1] / "last.pt").read_bytes()
    words = [*words, "--logdir", str(unbroken[1].parent), "--name", "1", "--resume", "auto"]
    [(status, stdout, stderr)] = finish([start(words, tmp_path)])
    assert status == 0, stderr
    assert "done: 2 epochs, 8 steps" in stdout
    assert (unbroken[1] / "last.pt").read_bytes() == before


def test_metrics_of_the_unbroken_run(unbroken):
    """What the other tests compare with: a line every 3 steps and at each epoch's end."""
    lines = read_metrics(unbroken[1], "train")
    assert [line["step"] for line in lines] == [3, 4, 6, 8]
    assert json.loads((unbroken[1] / "metrics.jsonl").read_text().splitlines()[-1])["kind"] == "val"
    assert torch.load(unbroken[1] / "last.pt", weights_only=True)["ema"] is not None
