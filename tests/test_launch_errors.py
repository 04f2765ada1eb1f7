"""A user's error under torchrun: one line, last, and a status that says why."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import REPO, finish, flags, two_processes


def test_a_users_error_is_left_for_torchrun_as_a_message(tmp_path):
    words = flags(dataset_path=tmp_path / "missing", logdir=tmp_path)
    for status, _, stderr in finish(two_processes(words, tmp_path, TORCHELASTIC_ERROR_FILE=tmp_path / "error.json")):
        assert status == 2, stderr
    assert '"message": "error (rank ' in (tmp_path / "error.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("script", ["train_torchrun.sh", "train_ddp.sh"])
def test_a_users_error_ends_the_scripts_with_our_line_and_status_2(python, tmp_path, script):
    words = flags(dataset_path=tmp_path / "missing", logdir=tmp_path)
    env = os.environ | python.env | {"NUM_GPUS": "2"}
    done = subprocess.run(
        ["bash", REPO / script, *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error (rank ")
    assert "missing: no such folder" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert "FutureWarning" not in done.stderr
    assert "is deprecated" not in done.stderr


@pytest.mark.slow
def test_a_killed_process_ends_the_scripts_with_its_signal(python, tmp_path):
    """A fault of no user: torch's line names the process, and the status is the shell's for SIGKILL."""
    program = tmp_path / "killed.py"
    program.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    command = [sys.executable, str(REPO / "scripts/launch.py"), "torch.distributed.run", "--standalone", str(program)]
    done = subprocess.run(
        command, env=os.environ | {"NUM_GPUS": "1"}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 128 + signal.SIGKILL
    assert "(exitcode: -9)" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
