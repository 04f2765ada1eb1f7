"""A signal stops all ranks at the same step, with all that is needed to go on as if it had not come."""

import signal
import time

import pytest
from conftest import FAULTS, assert_same_run, finish, flags, start, start_group, succeed, wait_until

from support.errors import STOPPED
from training import checkpoint

pytestmark = pytest.mark.slow
# Which rank gets each phase's signal, and the step and epoch of the checkpoint: 4 steps an epoch; a step that has begun
# is finished. Of the 3 validation images rank 0 has two, and rank 0 writes.
PHASES = {
    "signal_in_startup": (1, 0, 0),
    "signal_in_first_step": (1, 1, 0),
    "signal_mid_epoch": (1, 6, 1),
    "no_relay+signal_mid_epoch": (1, 6, 1),
    "signal_in_last_step_of_an_epoch": (1, 4, 0),
    "signal_in_validation": (0, 4, 0),
    "signal_while_saving": (0, None, 1),
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
    succeed(processes)
    return {number: logdir / str(number) for number in (1, 2)}


def in_folder(words: list[str], tmp_path, *more: str) -> list[str]:
    return [*words, "--logdir", str(tmp_path), "--name", "x", "--resume", "auto", *more]


def assert_resumes(words: list[str], tmp_path, expected, world_size: int = 1) -> None:
    """The same words end the run as if no signal had come."""
    succeed(start_group(world_size, words, tmp_path) if world_size > 1 else [start(words, tmp_path)])
    assert_same_run(tmp_path / "x", expected)


@pytest.mark.parametrize("phase", PHASES)
def test_sigterm_to_one_rank_stops_both_and_the_run_goes_on_exactly(words, unbroken, tmp_path, phase):
    words = in_folder(words, tmp_path, "--batchsize", "1")
    rank, step, epoch = PHASES[phase]
    results = finish(start_group(2, [phase, str(rank), *words], tmp_path, FAULTS), status=STOPPED)
    assert f"stopped by SIGTERM on rank {rank} after step" in results[0][1]
    assert not list((tmp_path / "x").glob(".*"))
    content = vars(checkpoint.read_run(tmp_path / "x" / "last.pt"))
    assert (content["step"], content["epoch"]) == (step or content["step"], epoch)
    assert content["samples"] == 2 * (content["step"] - 4 * content["epoch"])
    assert_resumes(words, tmp_path, unbroken[2], world_size=2)


@pytest.mark.parametrize("name", ["SIGINT", "SIGUSR1"])
def test_other_signals_stop_a_single_process_while_it_saves(words, unbroken, tmp_path, name):
    """The signal comes when the first checkpoint is being written, to the process that writes it."""
    words = in_folder(words, tmp_path, "--workers", "1")
    process = start(["signal_while_saving", "0", *words], tmp_path, FAULTS, SIGNAL=name)
    [(_, stdout, _)] = finish([process], status=STOPPED)
    assert f"stopped by {name} after step" in stdout
    assert f"report:  {tmp_path / 'x/report.html'}" in stdout  # of the validation whose checkpoint was being written
    assert_resumes(words, tmp_path, unbroken[1])


def test_signal_to_the_whole_process_group_with_workers(words, unbroken, tmp_path):
    """As Ctrl-C, torchrun and Slurm send it: the loader's workers must not die of it."""
    words = in_folder(words, tmp_path, "--workers", "2")
    process = start(["signal_group_mid_epoch", "0", *words], tmp_path, FAULTS)
    [(_, _, stderr)] = finish([process], status=STOPPED)
    assert "Traceback" not in stderr
    assert_resumes(words, tmp_path, unbroken[1])


def test_second_sigint_stops_at_once(demo_root, tmp_path):
    words = flags(dataset_path=demo_root, logdir=tmp_path, name="x", epochs=50)
    process = start(["stuck_after_signal", "0", *words], tmp_path, FAULTS)
    wait_until((tmp_path / "stuck").exists, [process])
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):  # launchers repeat SIGTERM
        process.send_signal(number)
        time.sleep(0.5)
    assert process.poll() is None  # it is in a step of 30 seconds
    process.send_signal(signal.SIGINT)
    [(_, _, stderr)] = finish([process], timeout=10, status=130)
    assert "interrupted for the second time" in stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_signal_while_waiting_for_other_ranks_ends_the_wait(demo_root, tmp_path, rank):
    """Of three ranks two have started; each of them ends if one gets a signal."""
    processes = start_group(3, flags(dataset_path=demo_root, logdir=tmp_path), tmp_path, ranks=[0, 1])
    time.sleep(4)
    processes[rank].send_signal(signal.SIGUSR1)
    for _, _, stderr in finish(processes, timeout=30, status=STOPPED):
        assert f"stopped by SIGUSR1 on rank {rank} before the group was complete" in stderr
