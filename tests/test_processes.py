"""Workers on many files: they end with the process that started them."""

import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import REPO

WORK = """
import sys, time
from pathlib import Path
import program
from data.processes import work_on

def work(item):
    Path(sys.argv[1]).touch()
    time.sleep(0.02)

sys.exit(program.run(lambda: work_on(work, list(range(5000)), 2, "item", "working")))
"""


@pytest.mark.parametrize(
    ("number", "send"),
    [(signal.SIGTERM, os.kill), (signal.SIGINT, os.killpg)],  # a job scheduler's signal; Ctrl-C reaches all processes
)
def test_a_signal_ends_all_processes(number, send, tmp_path):
    marker, errors = tmp_path / "working", tmp_path / "errors.txt"
    command = [sys.executable, "-c", WORK, str(marker)]
    with (
        errors.open("w") as stderr,
        subprocess.Popen(command, cwd=REPO, stderr=stderr, start_new_session=True) as process,
    ):
        deadline = time.monotonic() + 60
        while not marker.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        send(process.pid, number)
        assert process.wait(timeout=30) == 130  # all 5000 items would take 50 s
    assert "Traceback" not in errors.read_text()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
