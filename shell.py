"""Commands as one line of text, ready to be pasted into a shell."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parent


def quoted(words: list[str]) -> str:
    """The words as one line for this system's shell, quoted where needed."""
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


def python_command(*words: object) -> str:
    """The line that runs Python with these words, by the interpreter of this process.

    A first word that names a program of this repository, such as "train.py", also works outside its folder.
    """
    program, *rest = map(str, words)
    return quoted([_python(), _found(program), *rest])


def torchrun_command(num_processes: int, *words: object) -> str:
    """The line that runs a program of this repository, the first word, in a group of processes on this machine."""
    program, *rest = map(str, words)
    launch = [*_tool("torchrun", "torch.distributed.run"), "--standalone", "--nproc_per_node", str(num_processes)]
    return quoted([*launch, _found(program), *rest])


def tensorboard_command(logdir: str) -> str:
    return quoted([*_tool("tensorboard", "tensorboard.main"), "--logdir", logdir])


def _found(program: str) -> str:
    """A program of this repository as this folder finds it; other words as they are."""
    return str(REPO / program) if (REPO / program).is_file() and Path.cwd() != REPO else program


def _tool(name: str, module: str) -> list[str]:
    """The words that run a tool of this interpreter's packages: its name where the shell finds that one, else the module."""
    found = shutil.which(name)
    if found and Path(found).absolute().parent == Path(sys.executable).absolute().parent:
        return [name]
    return [_python(), "-m", module]


def _python() -> str:
    """ "python" where the shell finds this interpreter under that name, else its path."""
    found = shutil.which("python")
    # Compared without following links: the interpreter of a virtual environment is a link to another one.
    if found and os.path.abspath(found) == os.path.abspath(sys.executable):
        return "python"
    below = os.path.relpath(sys.executable) if Path(sys.executable).is_relative_to(Path.cwd()) else ""
    return below or sys.executable
