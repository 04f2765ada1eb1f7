"""A process that was in a process group ends with its own status, whatever torch's threads do at its end."""

import subprocess
import sys

from conftest import REPO

# gloo's threads free a collective's tensor soon after the collective, but on a busy machine not before Python's end.
# The thread here needs Python's lock again and again, as one of gloo's does then; C++ cannot be told to end a thread.
PROGRAM = """
import atexit, os, threading
from support import program
import torch
import utils

def allocate():
    while True:
        torch.ones(64, 64).sum()

def main():
    with utils.process_group(distributed=True, device="cpu"):
        threading.Thread(target=allocate, daemon=True).start()
    atexit.register(print, "exit handlers ran")
    return 75

program.run_and_exit(main)
"""


def test_a_thread_of_torch_at_the_end_of_python_does_not_change_the_status():
    """Without run_and_exit(), Python 3.11 ends with SIGABRT: "terminate called without an active exception"."""
    command = [sys.executable, "-c", PROGRAM]
    result = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (75, "exit handlers ran\n"), result.stderr
