"""Real processes that run a program of the repository, forked from one that has done the imports.

`python train.py` spends five seconds on imports; a process forked from multiprocessing's fork server, which did them
once, is the same from there on: its own pid, environment, sockets, signals and exit status.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path

PRELOAD = ["train", "torch.utils.tensorboard"]


class Started:
    """A process with the methods of subprocess.Popen that tests use. It has one thread for each operation."""

    def __init__(self, program: Path, words: list[str], cwd: Path, env: dict[str, str], own_session: bool):
        self.args = [str(program), *words]
        self.output = [Path(tempfile.mkstemp(prefix=f"segtrain-test-{name}-")[1]) for name in ("out", "err")]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        had = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"  # for the server, which takes over this environment when it starts
        try:
            # The child would look for pytest's own main module otherwise.
            main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
            self.process = context.Process(target=_run, args=(self.args, cwd, env, own_session, self.output))
            self.process.start()
        finally:
            sys.modules["__main__"] = main
            os.environ.pop("OMP_NUM_THREADS") if had is None else os.environ.update(OMP_NUM_THREADS=had)
        self.pid = self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0, *(path.read_bytes() for path in self.output))
        return self.process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        texts = tuple(path.read_text() if path.exists() else "" for path in self.output)
        for path in self.output:
            path.unlink(missing_ok=True)
        return texts

    def send_signal(self, number: int) -> None:
        if self.process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(args: list[str], cwd: Path, env: dict[str, str], own_session: bool, output: list[Path]) -> None:
    """In the child: become what `python PROGRAM WORDS` would be."""
    if own_session:
        os.setsid()
    for path, descriptor in zip(output, (1, 2), strict=True):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    # For DataLoader workers, as in a process of its own; conftest.py has --start_method.
    multiprocessing.set_start_method(env.get("START_METHOD", "fork"), force=True)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = args
    sys.path[0] = str(Path(args[0]).parent)
    try:
        runpy.run_path(args[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # as at the end of an interpreter, which a forked process skips
