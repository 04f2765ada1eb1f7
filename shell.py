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
    """The command line that runs Python, this process's interpreter, with these words.

    A program of this repository, "train.py" or "-m", "data.check", gets a path that is right in the current folder.
    """
    program, *rest = map(str, words)
    if program == "-m" and Path.cwd() != REPO:
        path = rest[0].replace(".", "/")  # Python finds modules in the current folder only
        module = next((name for name in (f"{path}.py", f"{path}/__main__.py") if (REPO / name).is_file()), "")
        if module:
            program, *rest = module, *rest[1:]
    return quoted([_python(), repo_file(program), *rest])


def install_command(extra: str) -> str:
    """The command line that installs an extra of pyproject.toml."""
    return python_command("-m", "pip", "install", "-e", f"{'.' if Path.cwd() == REPO else REPO}[{extra}]")


def repo_file(name: str) -> str:
    """The name, or outside the repository the path, of a file of this repository; other words unchanged."""
    return str(REPO / name) if (REPO / name).is_file() and Path.cwd() != REPO else name


def torchrun_command(num_processes: int, *words: object) -> str:
    """The command line that runs a program of this repository, the first word, by torchrun on this machine."""
    program, *rest = map(str, words)
    launch = [*_tool("torchrun", "torch.distributed.run"), "--standalone", "--nproc_per_node", str(num_processes)]
    return quoted([*launch, repo_file(program), *rest])


def tensorboard_command(logdir: str) -> str:
    return quoted([*_tool("tensorboard", "tensorboard.main"), "--logdir", logdir])


def _tool(name: str, module: str) -> list[str]:
    """The words that start a tool of this environment: its name where the shell finds it, else python -m MODULE."""
    found = shutil.which(name)
    if found and Path(found).absolute().parent == Path(sys.executable).absolute().parent:
        return [name]
    return [_python(), "-m", module]


def _python() -> str:
    """The word python where that name starts this interpreter, else its path."""
    found = shutil.which("python")
    # By its folder too: the interpreter of a virtual environment is a link to another one. torchrun runs its python3.
    same_folder = found and Path(found).absolute().parent == Path(sys.executable).absolute().parent
    if found and same_folder and os.path.samefile(found, sys.executable):
        return "python"
    below = os.path.relpath(sys.executable) if Path(sys.executable).is_relative_to(Path.cwd()) else ""
    return below or sys.executable
