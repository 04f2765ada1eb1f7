"""Commands as one line of text, ready to be pasted into a shell."""

import importlib
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from support.errors import UserError

REPO = Path(__file__).parent.parent
PACKAGE = __package__.rpartition(".")[0]  # "segtrain" if installed, "" in a clone


def quoted(words: list[str]) -> str:
    """Return the words as one line for this system's shell, with quotes where needed."""
    if sys.platform != "win32":
        return shlex.join(words)
    import subprocess  # 7 ms that --help on other systems need not wait for

    return subprocess.list2cmdline(words)


def python_command(*words: object) -> str:
    """Return the command line that runs this Python interpreter with these words.

    A program of this repository, "train.py" or "-m", "tools.check", is found from the current folder.
    """
    return quoted([_python(), *located(*words)])


def install_command(extra: str) -> str:
    """Return the command line that installs this repository with an extra of pyproject.toml, such as "export"."""
    if PACKAGE:
        return python_command("-m", "pip", "install", f"{PACKAGE}[{extra}]")  # of the version that is installed
    return python_command("-m", "pip", "install", "-e", f"{'.' if Path.cwd() == REPO else REPO}[{extra}]")


def import_extra(name: str, extra: str, feature: str) -> Any:
    """Import a module of an extra of pyproject.toml. If it is missing, the UserError says that `feature` needs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"{feature} needs packages that are missing ({error}): {install_command(extra)}") from None


def document(name: str) -> str:
    """Return where a document, such as "docs/cli.md", is from the current folder. An anchor may follow the name."""
    return name if Path.cwd() == REPO and not PACKAGE else str(REPO / name)


def located(*words: object) -> list[str]:
    """Return a command's words, changed so that a program of ours is found from the current folder.

    In the clone's folder they stay the same. Elsewhere, the program becomes a path or, if installed, a module.
    """
    program, *rest = given = list(map(str, words))
    stem = rest[0].replace(".", "/") if program == "-m" else program.removesuffix(".py")
    file = next((name for name in (f"{stem}.py", f"{stem}/__main__.py") if (REPO / name).is_file()), "")
    if not file or (not PACKAGE and Path.cwd() == REPO):
        return given
    start = ["-m", f"{PACKAGE}.{stem.replace('/', '.')}"] if PACKAGE else [str(REPO / file)]
    return start + rest[program == "-m" :]


def _python() -> str:
    """Return "python" if that name starts this interpreter, else the interpreter's path."""
    python, interpreter = Path(shutil.which("python") or ""), Path(sys.executable)
    # torchrun runs an environment's python3, and the interpreters of two environments may link to the same file.
    if python.absolute().parent == interpreter.absolute().parent and os.path.samefile(python, interpreter):
        return "python"
    return os.path.relpath(interpreter) if interpreter.is_relative_to(Path.cwd()) else sys.executable
