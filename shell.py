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
    if (REPO / program).is_file() and Path.cwd() != REPO:
        program = str(REPO / program)
    return quoted([_python(), program, *rest])


def _python() -> str:
    """ "python" where the shell finds this interpreter under that name, else its path."""
    found = shutil.which("python")
    # Compared without following links: the interpreter of a virtual environment is a link to another one.
    if found and os.path.abspath(found) == os.path.abspath(sys.executable):
        return "python"
    below = os.path.relpath(sys.executable) if Path(sys.executable).is_relative_to(Path.cwd()) else ""
    return below or sys.executable
