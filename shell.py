"""Commands as one line of text, ready to be pasted into a shell."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parent


def quoted(words: list[str]) -> str:
    """Return the words as one line for this system's shell, with quotes where needed."""
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


def python_command(*words: object) -> str:
    """Return the command line that runs this Python interpreter with these words.

    A program of this repository, "train.py" or "-m", "data.check", gets a path that works in the current folder.
    """
    program, *rest = map(str, words)
    if program == "-m" and Path.cwd() != REPO:
        path = rest[0].replace(".", "/")  # Python finds modules in the current folder only
        module = next((name for name in (f"{path}.py", f"{path}/__main__.py") if (REPO / name).is_file()), "")
        if module:
            program, *rest = module, *rest[1:]
    return quoted([_python(), repo_file(program), *rest])


def install_command(extra: str) -> str:
    """Return the command line that installs this repository with an extra of pyproject.toml, such as "wandb"."""
    return python_command("-m", "pip", "install", "-e", f"{'.' if Path.cwd() == REPO else REPO}[{extra}]")


def repo_file(name: str) -> str:
    """Return the path of a file of this repository, valid in the current folder; any other word unchanged."""
    return str(REPO / name) if (REPO / name).is_file() and Path.cwd() != REPO else name


def torchrun_command(num_processes: int, *words: object) -> str:
    """Return the command line that runs a program of this repository with torchrun on this machine.

    words: the program's file, such as "train.py", then its arguments.
    """
    program, *rest = map(str, words)
    launcher = ["torchrun"] if _is_beside_python("torchrun") else [_python(), "-m", "torch.distributed.run"]
    return quoted([*launcher, "--standalone", "--nproc_per_node", str(num_processes), repo_file(program), *rest])


def _python() -> str:
    """Return "python" if that name starts this interpreter, else the interpreter's path."""
    # torchrun runs an environment's python3, and the interpreters of two environments may link to the same file.
    if _is_beside_python("python") and os.path.samefile(shutil.which("python") or "", sys.executable):
        return "python"
    below = Path(sys.executable).is_relative_to(Path.cwd())
    return os.path.relpath(sys.executable) if below else sys.executable


def _is_beside_python(name: str) -> bool:
    """Return whether the shell finds the program `name` in the folder of this interpreter."""
    found = shutil.which(name)
    return found is not None and Path(found).absolute().parent == Path(sys.executable).absolute().parent
