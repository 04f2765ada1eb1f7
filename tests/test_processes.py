"""Workers on many files: they end with the process that started them."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from conftest import REPO

WORK = """
import sys, time
from pathlib import Path
from support import program
from support.processes import work_on

def work(item):
    Path(sys.argv[1]).touch()
    time.sleep(0.02)

program.run_and_exit(lambda: work_on(work, list(range(5000)), 2, "item", "working"))
"""


@pytest.mark.parametrize(
    ("number", "send", "status"),
    [
        (signal.SIGTERM, os.kill, -signal.SIGTERM),
        (signal.SIGINT, os.killpg, 130),  # Ctrl-C reaches all processes
        (signal.SIGKILL, os.kill, -signal.SIGKILL),
    ],
)
def test_a_signal_ends_all_processes(number, send, status, tmp_path):
    marker, errors = tmp_path / "working", tmp_path / "errors.txt"
    command = [sys.executable, "-c", WORK, str(marker)]
    heed = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # shells let background jobs ignore it
    options = {"cwd": REPO, "start_new_session": True, "preexec_fn": heed}
    with errors.open("w") as stderr, subprocess.Popen(command, stderr=stderr, **options) as process:
        deadline = time.monotonic() + 60
        while not marker.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        send(process.pid, number)
        assert process.wait(timeout=30) == status  # all 5000 items would take 50 s
    assert "Traceback" not in errors.read_text()
    deadline = time.monotonic() + 20  # a worker notices the parent's end in its own time
    while lives(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not lives(process.pid)


def lives(group: int) -> bool:
    """Return whether a process group has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
