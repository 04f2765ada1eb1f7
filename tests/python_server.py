"""A `python` that starts in milliseconds, for tests that run commands as the documents show them.

A server has done the imports and forks for each call; `python` in its folder is a client that hands it the words, the
environment, the folder and the three streams, and ends as the forked process did. What that does from there on is what
an interpreter of its own would do. `torchrun` is there, too, and starts its processes by the same `python`.
"""

import atexit
import importlib
import json
import os
import runpy
import select
import signal
import socket
import stat
import subprocess
import sys
import traceback
from pathlib import Path

import thin_networks

PRELOAD = ["train", "evaluate", "predict", "export", "data.check", "torch.utils.tensorboard", "torch.distributed.run"]
# It imports as little as it can: it is what each call waits for.
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
    """`python` and `torchrun` in `folder`, for PATH."""

    def __init__(self, folder: Path, repository: Path):
        self.folder, address = folder, str(folder / "socket")
        _write_program(folder / "python", CLIENT.format(executable=sys.executable, address=address))
        _write_program(folder / "torchrun", '#!/bin/sh\nexec python -m torch.distributed.run "$@"\n')
        self.env = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHON": "python", "PYTHON_EXEC": str(folder / "python")}
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(repository)}
        self.server = subprocess.Popen(
            [sys.executable, __file__, address], env=env, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == b"ready\n"

    def close(self) -> None:
        """End the server, and whatever a test has left running."""
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait()


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def serve(address: str) -> None:
    for name in PRELOAD:
        importlib.import_module(name)
    thin_networks.use()
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
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
        # A client sends nothing more: what can be read is its end, with which the child ends, too.
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
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.executable = env["PYTHON_EXEC"]  # the client, as the shell finds it
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
    serve(sys.argv[1])
