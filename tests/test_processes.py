"""Processes and threads that work on many files end with what started them, even if that is killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from conftest import REPO, is_running, wait_until

from data import loader
from data.loader import loader_options
from support import processes
from support.processes import ThreadPool

ENV = os.environ | {"PYTHONPATH": f"{REPO}:{os.environ.get('PYTHONPATH', '')}"}
WORK = """
import sys, time
from pathlib import Path
from support import program
from support.processes import work_on

def work(item):
    Path(sys.argv[1]).touch()
    time.sleep(0.02)

if __name__ == "__main__":
    program.run_and_exit(lambda: work_on(work, list(range(5000)), 2, "item", "working"))
"""


@pytest.mark.parametrize(
    ("number", "send", "status", "said"),
    [
        (signal.SIGTERM, os.kill, 75, ["stopped by SIGTERM; run the same command again"]),
        (signal.SIGTERM, os.killpg, 75, ["stopped by SIGTERM; run the same command again"]),
        (signal.SIGINT, os.killpg, 130, ["interrupted"]),  # Ctrl-C reaches all processes
        (signal.SIGKILL, os.kill, -signal.SIGKILL, None),
    ],
)
def test_a_signal_ends_all_processes(number, send, status, said, tmp_path):
    marker, errors = tmp_path / "working", tmp_path / "errors.txt"
    (tmp_path / "work.py").write_text(WORK)  # processes that are not forked import it
    command = [sys.executable, str(tmp_path / "work.py"), str(marker)]
    heed = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # shells let background jobs ignore it
    options = {"env": ENV, "start_new_session": True, "preexec_fn": heed}
    with errors.open("w") as stderr, subprocess.Popen(command, stderr=stderr, **options) as process:
        wait_until(marker.exists, [])
        send(process.pid, number)
        assert process.wait(timeout=30) == status  # all 5000 items would take 50 s
    if number != signal.SIGKILL:  # after which a helper process of Python may warn
        assert errors.read_text().splitlines() == said
    wait_until(lambda: not lives(process.pid), [], 20)  # a worker notices the parent's end in its own time


def lives(group: int) -> bool:
    """Return whether a process group has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


# A file, as processes that are not forked import it.
PROGRAM = """
import multiprocessing, sys, time
import numpy as np
import torch
from torch.utils.data import DataLoader
from data.loader import loader_options

class CannotBeSent:
    def __reduce__(self):
        raise RuntimeError("unable to allocate shared memory")

class Unlucky(list):
    def __getitem__(self, index):
        return CannotBeSent()

if __name__ == "__main__":
    # An array goes through the result pipe as bytes. It fills the pipe, whose reading end the worker has, too.
    items = Unlucky([0]) if sys.argv[1] == "lost" else [np.zeros(10**7, np.uint8)] * 9
    options = loader_options(1, torch.device("cpu"), 1)
    batches = iter(DataLoader(items, batch_size=1, collate_fn=list, **options))
    next(batches)
    print(multiprocessing.active_children()[0].pid, flush=True)
    time.sleep(60)
"""


def program(tmp_path: Path, word: str) -> dict:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return {"args": [sys.executable, str(file), word], "env": ENV}


def test_a_batch_that_cannot_be_handed_over_ends_the_worker(tmp_path):
    """Python prints a traceback and drops the batch, for which the program then waited forever: /dev/shm was full."""
    done = subprocess.run(**program(tmp_path, "lost"), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "DataLoader worker" in done.stderr.splitlines()[-1]  # program.explain_errors() then names /dev/shm


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_that_waits_for_its_pipe_ends_with_a_killed_parent(tmp_path):
    with subprocess.Popen(**program(tmp_path, "full"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        time.sleep(0.5)  # the worker fills the pipe
        process.kill()
    wait_until(lambda: not is_running(worker), [], 20)  # torch's own check takes 5


def count_pixels(_: int) -> int:
    """Call OpenCV, and return the number of the thread."""
    cv2.calcHist([np.zeros((120, 160), np.uint8)], [0], None, [256], [0, 256])
    return threading.get_native_id()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists threads in /proc, and forks loader workers")
def test_threads_have_ended_when_a_pool_is_left():
    left = 0
    for _ in range(200):  # 200 of Python 3.11's ThreadPoolExecutors left 150 to 180 threads
        with ThreadPool(4) as pool:
            ids = set(pool.map(count_pixels, range(20)))
        left += sum(Path(f"/proc/self/task/{number}").exists() for number in ids)
    assert left == 0


def test_threads_rest_once_none_runs_or_waits_for_a_page(tmp_path, monkeypatch):
    """A name may have any characters. The thread that asks does not count."""
    monkeypatch.setattr(processes, "THREADS", tmp_path)
    states = {"1": "RSDS", str(threading.get_native_id()): "RRRR"}
    for number in states:
        (tmp_path / number).mkdir()
    sleeps = []

    def sleep(seconds: float) -> None:
        for number, letters in states.items():
            (tmp_path / number / "stat").write_text(f"{number} (a) S b) {letters[len(sleeps)]} 0 0")
        sleeps.append(seconds)

    monkeypatch.setattr(processes.time, "sleep", sleep)
    processes.let_threads_rest()
    assert len(sleeps) == 2
    processes.let_threads_rest()
    assert len(sleeps) == 4
    (tmp_path / "1/stat").unlink()  # it ends while it is looked at
    assert not processes._is_active(tmp_path / "1")


def test_threads_rest_before_workers_are_forked(monkeypatch):
    calls = []
    monkeypatch.setattr(loader, "let_threads_rest", lambda: calls.append("rest"))
    monkeypatch.setattr(loader.DataLoader, "__iter__", lambda self: calls.append("fork"))
    for may_hang, num_workers in ((True, 1), (True, 0), (False, 1)):
        monkeypatch.setattr(loader, "MAY_HANG", may_hang)
        own = loader.Loader([0], num_workers=num_workers)
        own.__iter__()
        own.__iter__()  # the workers persist
    assert calls == ["rest", "fork", "fork", *["fork"] * 4]


def test_the_processes_of_a_machine_share_its_cores_among_their_workers(monkeypatch):
    monkeypatch.setattr("data.loader.num_cores", lambda: 8)
    options = [loader_options(-1, torch.device("cpu"), processes) for processes in (1, 2, 4, 16)]
    assert [item["num_workers"] for item in options] == [4, 4, 2, 1]
