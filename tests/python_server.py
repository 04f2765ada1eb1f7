"""A `python` that starts in milliseconds: `python train.py` otherwise spends seconds on imports.

A server has done the imports and forks for each call. The fork has its own pid, environment, folder, streams and exit
status: from there on it does what a new interpreter would do. `start()` calls the server from a test; for commands in a
shell, `python` in the server's folder is a program that does the same, and `torchrun` starts its processes by it.
"""

import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import thin_networks

PROGRAMS = ("train", "evaluate", "predict", "pseudo", "export", "tools.check")
LIBRARIES = ("torchvision", "torch.utils.tensorboard", "torch.distributed.run", "torch.distributed.optim")
# Each call of a shell waits for these imports.
CLIENT = """#!{executable} -ISE
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
call = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]) + "\\n"
socket.send_fds(server, [b" "], [0, 1, 2])
server.sendall(call.encode("utf-8", "surrogateescape"))
answers = server.makefile()
pid = int(answers.readline())
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
status = int(answers.readline() or 1)
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if status != -signal.SIGKILL else None
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


class PythonServer:
    """env: the PATH that has this `python` and `torchrun`, and PYTHON for the scripts."""

    def __init__(self, repository: Path):
        self.folder = Path(tempfile.mkdtemp(prefix="segtrain-test-python-"))
        self.python, self.address = self.folder / "python", str(self.folder / "socket")
        _write_program(self.python, CLIENT.format(executable=sys.executable, address=self.address))
        _write_program(self.folder / "torchrun", '#!/bin/sh\nexec python -m torch.distributed.run "$@"\n')
        self.env = {"PATH": f"{self.folder}:{os.environ['PATH']}", "PYTHON": "python"}
        paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(repository)]))
        self.server = subprocess.Popen(
            [sys.executable, __file__, str(self.folder)],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == b"ready\n"

    def start(self, words: list[str], cwd: Path, env: dict[str, str]) -> "Started":
        return Started(self.address, words, cwd, env)

    def close(self) -> None:
        """End the server, and whatever a test has left running."""
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait()
        shutil.rmtree(self.folder)


class Started:
    """A process that the server forked, with the methods of subprocess.Popen that tests use."""

    def __init__(self, address: str, words: list[str], cwd: Path, env: dict[str, str]):
        self.args, self.returncode = words, None
        self.output = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]  # noqa: SIM115
        server = socket.socket(socket.AF_UNIX)
        server.connect(address)
        with open(os.devnull) as devnull:
            socket.send_fds(server, [b" "], [devnull.fileno(), *(file.fileno() for file in self.output)])
        server.sendall(json.dumps([words, str(cwd), env]).encode("utf-8", "surrogateescape") + b"\n")
        self.answers = server.makefile("rb", buffering=0)  # select() would not see what a buffer holds
        self.pid = int(self.answers.readline())

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self.answers], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self.answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0, *self.texts())
            self.returncode = int(self.answers.readline() or -signal.SIGKILL)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        return self.texts()

    def texts(self) -> tuple[str, str]:
        out, err = (os.pread(file.fileno(), 2**24, 0).decode(errors="replace") for file in self.output)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def serve(folder: Path) -> None:
    for name in (*PROGRAMS, *LIBRARIES):
        importlib.import_module(name)
    # timm is an extra, and takes 2 s. It imports wandb if it can, but wandb must start in the process that uses it.
    sys.modules["wandb"] = None  # type: ignore[assignment]
    with contextlib.suppress(ImportError):
        importlib.import_module("timm")
    del sys.modules["wandb"]
    sys.executable = str(folder / "python")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "socket"))
    server.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    # stdin ends with the tests, however they end.
    while server in select.select([server, sys.stdin], [], [])[0]:
        connection, _ = server.accept()
        if os.fork() == 0:
            server.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(connection)
        connection.close()


def _answer(connection: socket.socket) -> None:
    """Run one call in a child, and tell the client its pid and its status. Does not return."""
    call, streams, _, _ = socket.recv_fds(connection, 2**16, 3)
    while not call.endswith(b"\n"):
        call += connection.recv(2**16)
    words, folder, env = json.loads(call.decode("utf-8", "surrogateescape"))
    pid = os.fork()
    if pid == 0:
        connection.close()
        _run(words, folder, env, streams)
    for stream in streams:
        os.close(stream)
    connection.sendall(f"{pid}\n".encode())
    ended, status = 0, 0
    while not ended:
        # A client sends nothing more: it has ended when there is something to read, and the child ends with it.
        if select.select([connection], [], [], 0.01)[0]:
            os.kill(pid, signal.SIGKILL)
            os._exit(1)
        ended, status = os.waitpid(pid, os.WNOHANG)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _run(words: list[str], folder: str, env: dict[str, str], streams: list[int]) -> None:
    """Become what `python WORDS` would be. Does not return."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for number, name in enumerate(("stdin", "stdout", "stderr")):  # the server's may be of another kind, as a file
        setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    thin_networks.use(thin_networks.in_use())
    while words[0] in ("-u", "-B"):
        words = words[1:]
    status = 0
    try:
        if words[0] == "-m":
            sys.argv, sys.path[0] = words[1:], folder
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv, sys.path[0] = ["-c", *words[2:]], folder
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv, sys.path[0] = words, os.path.dirname(os.path.realpath(words[0]))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
