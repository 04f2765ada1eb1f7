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

if __name__ == "__main__":
    program.run_and_exit(lambda: work_on(work, list(range(5000)), 2, "item", "working"))
"""


@pytest.mark.parametrize(
    ("number", "send", "status", "said"),
    [
        (signal.SIGTERM, os.kill, 75, ["stopped by SIGTERM; run the same command again"]),
        (signal.SIGUSR1, os.killpg, 75, ["stopped by SIGUSR1; run the same command again"]),
        (signal.SIGTERM, os.killpg, 75, ["stopped by SIGTERM; run the same command again"]),
        (signal.SIGINT, os.killpg, 130, ["interrupted"]),  # Ctrl-C reaches all processes
        (signal.SIGKILL, os.kill, -signal.SIGKILL, None),
    ],
)
def test_a_signal_ends_all_processes(number, send, status, said, tmp_path):
    marker, errors = tmp_path / "working", tmp_path / "errors.txt"
    (tmp_path / "work.py").write_text(WORK)  # processes that are not forked import it
    command = [sys.executable, str(tmp_path / "work.py"), str(marker)]
    env = os.environ | {"PYTHONPATH": f"{REPO}:{os.environ.get('PYTHONPATH', '')}"}
    heed = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # shells let background jobs ignore it
    options = {"env": env, "start_new_session": True, "preexec_fn": heed}
    with errors.open("w") as stderr, subprocess.Popen(command, stderr=stderr, **options) as process:
        deadline = time.monotonic() + 60
        while not marker.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        send(process.pid, number)
        assert process.wait(timeout=30) == status  # all 5000 items would take 50 s
    if number != signal.SIGKILL:  # after which a helper process of Python may warn
        assert errors.read_text().splitlines() == said
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
