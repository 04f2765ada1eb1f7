"""What reaches the terminal, or the file or pipe in its place: lines, and commands to paste."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPO
from PIL import Image

from support import progress, shell
from support.progress import progress_bar

LINES = """
import os
from support import program, terminal

def main():
    terminal.say("one", "t\\two\\x1b[2J \\udce9 \\xfc \\u5b57\\r")
    terminal.warn("three\\nfour")
    terminal.say("five")
    os._exit(0)  # what a buffer holds is lost

program.run(main)
"""


def test_lines_come_at_once_in_order_and_without_escape_codes(tmp_path):
    """Whatever the encoding lacks is escaped, too: no program may end in UnicodeEncodeError."""
    for encoding, shown in (("ascii", r"\xfc \u5b57"), ("cp1252", r"ü \u5b57"), ("utf-8", "ü 字")):
        with (tmp_path / "out").open("wb") as out:
            env = os.environ | {"PYTHONIOENCODING": encoding}
            subprocess.run([sys.executable, "-c", LINES], cwd=REPO, env=env, stdout=out, stderr=out, check=True)
        expected = f"one\nt\\two\\x1b[2J \\udce9 {shown}\\r\nthree\\nfour\nfive\n"
        assert (tmp_path / "out").read_text(encoding) == expected


def test_a_reader_that_leaves_does_not_change_the_status(tmp_path):
    for split in ("train", "val"):
        (tmp_path / f"images/{split}").mkdir(parents=True)
        (tmp_path / f"masks/{split}").mkdir(parents=True)
        for number in range(9):
            Image.new("RGB", (32, 32)).save(tmp_path / f"images/{split}/\x1b[31m{number}.png")
    command = [sys.executable, "-m", "tools.check", str(tmp_path), "--workers", "0"]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 2  # masks are missing
        assert process.stderr.read() == b""
    with open("/dev/full", "w") as full:  # each write to it fails, as on a full disk
        assert subprocess.run(command, cwd=REPO, stdout=full, stderr=full, check=False).returncode == 2
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert r"\x1b[31m0.png" in done.stdout
    assert "\x1b" not in done.stdout


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys, monkeypatch):
    list(progress_bar(range(3), total=3, title="reading", unit="file"))
    assert capsys.readouterr().err == ""  # short work
    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    list(progress_bar(range(3), total=3, title="reading", unit="file"))
    text = capsys.readouterr().err
    assert "\r" not in text
    assert text.endswith(" left\n")
    assert [line.split(",")[0] for line in text.splitlines()] == [f"reading: {done} of 3" for done in range(4)]
    assert "file/s, " in text.splitlines()[-1]


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
