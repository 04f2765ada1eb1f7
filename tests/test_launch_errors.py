"""The end of a process: one line, last, and a status that says why, also under torchrun and with torch's threads."""

import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import REPO, finish, flags, two_processes, wait_until

from support.errors import STOPPED, UserError, report
from support.terminal import say


def test_a_users_error_is_left_for_torchrun_as_a_message(tmp_path):
    words = flags(dataset_path=tmp_path / "missing", logdir=tmp_path)
    finish(two_processes(words, tmp_path, TORCHELASTIC_ERROR_FILE=tmp_path / "error.json"), status=2)
    assert '"message": "error (rank ' in (tmp_path / "error.json").read_text()


LAUNCHER = [sys.executable, str(REPO / "scripts/launch.py"), "torch.distributed.run", "--standalone"]


def launch(tmp_path, words: list, **env) -> tuple[int, str]:
    """Exit status and last line of a script of ours."""
    options = {"capture_output": True, "text": True, "timeout": 120, "check": False}
    done = subprocess.run(list(map(str, words)), cwd=tmp_path, env=os.environ | env, **options)
    assert "Traceback" not in done.stderr
    assert "is deprecated" not in done.stderr
    return done.returncode, done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("script", ["train_torchrun.sh", "train_ddp.sh"])
def test_a_users_error_ends_the_scripts_with_our_line_and_status_2(python, tmp_path, script):
    words = ["bash", REPO / script, *flags(dataset_path=tmp_path / "missing", logdir=tmp_path)]
    status, line = launch(tmp_path, words, NUM_GPUS="2", **python.env)
    assert status == 2
    assert line.startswith("error (rank ")
    assert "missing: no such folder" in line


RACE = "from scripts import launch; launch.choose_port = id; launch.program.run_and_exit(lambda: launch.main("
RACE += "'torch.distributed.run', 'train.py'))"


@pytest.mark.slow
@pytest.mark.parametrize("script", ["train_torchrun.sh", ""])
def test_a_port_that_is_taken_before_or_after_our_check_is_one_line(tmp_path, script):
    command = ["bash", REPO / script] if script else [sys.executable, "-c", RACE]
    with socket.create_server(("", 0)) as server:
        env = {"PYTHON": sys.executable, "MASTER_PORT": str(server.getsockname()[1]), "PYTHONPATH": str(REPO)}
        status, line = launch(tmp_path, command, **env)
    assert (status, line[:7], env["MASTER_PORT"] in line, "MASTER_PORT" in line) == (2, "error: ", True, True)


# Programs that may be started by their path, as the scribble pipeline starts them.
FILES = [*REPO.glob("*.py"), *REPO.glob("data/*.py"), *REPO.glob("tools/**/*.py")]
PROGRAMS = sorted(str(path.relative_to(REPO)) for path in FILES if "if not __package__" in path.read_text("utf-8"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_finds_its_modules_from_any_folder(tmp_path, program):
    """Other tests cannot see this: their PYTHONPATH has the repository, or their process has its modules."""
    status, line = launch(tmp_path, [sys.executable, REPO / program, "--nonesuch"], PYTHONSAFEPATH="1", PYTHONPATH="")
    assert (status, line[:7]) == (2, "error: ")


def test_programs_are_found():
    assert {"train.py", "tools/suggest/__main__.py", "tools/scribbles/__main__.py"} < {*PROGRAMS}


def test_lines_of_two_ranks_stay_apart(monkeypatch):
    """Each line is one write: torchrun's processes do not buffer, and share a terminal."""
    written: list[str] = []
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, SimpleNamespace(write=written.append, flush=int, isatty=bool))
    say("rank 1")
    report(UserError("wrong"), "1")
    assert [line for line in written if line] == ["rank 1\n", "error (rank 1): wrong\n"]


@pytest.mark.slow
def test_a_killed_process_ends_the_scripts_with_its_signal(tmp_path):
    """A fault of no user: torch's line names the process, and the status is the shell's for SIGKILL."""
    (tmp_path / "killed.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    status, line = launch(tmp_path, [*LAUNCHER, "killed.py"], NUM_GPUS="1")
    assert status == 128 + signal.SIGKILL
    assert "(exitcode: -9)" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "ends", "status"),
    [
        (signal.SIGINT, (STOPPED, STOPPED), STOPPED),
        (signal.SIGTERM, (STOPPED, STOPPED), STOPPED),
        (signal.SIGTERM, (STOPPED, 2), 2),  # one cannot save, so nothing is to be resumed
        (signal.SIGTERM, (None, None), 128 + signal.SIGTERM),  # Python was still starting
    ],
)
def test_a_signal_ends_the_scripts_as_it_ended_the_processes_and_with_no_traceback(tmp_path, number, ends, status):
    program = f"""
import os, pathlib, signal, sys, time
rank = int(os.environ["RANK"])
if {ends}[rank] is not None:
    signal.signal({int(number)}, lambda *_: sys.exit({ends}[rank]))
pathlib.Path(f"started{{rank}}").touch()
time.sleep(60)
"""
    (tmp_path / "waits.py").write_text(program)
    options = {"cwd": tmp_path, "env": os.environ | {"NUM_GPUS": "2"}, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*LAUNCHER, "waits.py"], **options)
    wait_until(lambda: all((tmp_path / f"started{rank}").is_file() for rank in (0, 1)), [process])
    process.send_signal(number)
    assert "launch.py" not in process.communicate(timeout=60)[1]
    assert process.returncode == status


# gloo's threads free a collective's tensor soon after the collective, but on a busy machine not before Python's end.
# The thread here needs Python's lock again and again, as one of gloo's does then; C++ cannot be told to end a thread.
PROGRAM = """
import atexit, os, threading
from support import program
import torch
from distributed.process_group import process_group

def allocate():
    while True:
        torch.ones(64, 64).sum()

def main():
    with process_group(distributed=True, device="cpu"):
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
