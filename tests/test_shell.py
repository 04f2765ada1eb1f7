"""Commands that programs print: quoted, and run by the same interpreter."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support import shell


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX shells")
def test_words_reach_the_program_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["my data", "it's", "a*b", "$HOME", ""]
    line = shell.python_command("-c", "import sys; print(sys.argv[1:])", *words)
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr(words)


def test_a_program_of_the_repository_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train, check = shell.REPO / "train.py", shell.REPO / "tools/check/__main__.py"
    assert shlex.split(shell.python_command("train.py", "--epochs", 3))[1:] == [str(train), "--epochs", "3"]
    assert shlex.split(shell.python_command("-m", "tools.check", "a b"))[1:] == [str(check), "a b"]
    assert shell.python_command("-m", "pip", "list").endswith(" -m pip list")
    monkeypatch.chdir(shell.REPO)
    assert shlex.split(shell.python_command("train.py"))[1:] == ["train.py"]
    assert shlex.split(shell.python_command("-m", "tools.check"))[1:] == ["-m", "tools.check"]


def test_python_is_named_as_the_shell_finds_it(tmp_path, monkeypatch):
    interpreter = tmp_path / "bin" / "python"
    interpreter.parent.mkdir()
    interpreter.symlink_to(Path(sys.executable).resolve())
    interpreter.with_name("python3").symlink_to("python")
    monkeypatch.setenv("PATH", str(interpreter.parent))
    for name in ("python", "python3"):  # the second: as torchrun starts it
        monkeypatch.setattr(sys, "executable", str(interpreter.with_name(name)))
        assert shell.python_command("x.py") == "python x.py"
    # Not activated: another python, though the same program at the end of the links.
    other = tmp_path / "other" / "python"
    other.parent.mkdir()
    other.symlink_to(Path(sys.executable).resolve())
    monkeypatch.setenv("PATH", str(other.parent))
    assert shell.python_command("x.py") == f"{interpreter}3 x.py"
    monkeypatch.chdir(tmp_path)
    assert shell.python_command("x.py") == "bin/python3 x.py"
