"""Workers of a DataLoader end with their parent, even one that is killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import REPO

from data.loader import loader_options

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
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), word]
    return {"args": command, "env": os.environ | {"PYTHONPATH": f"{REPO}:{os.environ.get('PYTHONPATH', '')}"}}


def test_a_batch_that_cannot_be_handed_over_ends_the_worker(tmp_path):
    """Python prints a traceback and drops the batch, for which the program then waited forever: /dev/shm was full."""
    done = subprocess.run(**program(tmp_path, "lost"), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "DataLoader worker" in done.stderr.splitlines()[-1]  # program.explain_errors() then names /dev/shm


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_that_waits_for_its_pipe_ends_with_a_killed_parent(tmp_path):
    with subprocess.Popen(**program(tmp_path, "full"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = Path("/proc", process.stdout.readline().strip(), "stat")
        time.sleep(0.5)  # the worker fills the pipe
        process.kill()
    deadline = time.monotonic() + 20  # torch's own check takes 5
    while worker.exists() and ") Z " not in worker.read_text():
        assert time.monotonic() < deadline, "the worker is still there"
        time.sleep(0.1)


def test_the_processes_of_a_machine_share_its_cores_among_their_workers(monkeypatch):
    monkeypatch.setattr("data.loader.num_cores", lambda: 8)
    options = [loader_options(-1, torch.device("cpu"), processes) for processes in (1, 2, 4, 16)]
    assert [item["num_workers"] for item in options] == [4, 4, 2, 1]
