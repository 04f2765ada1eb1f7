"""The commands that train.py prints do what they say when they are pasted into a shell."""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import DENSE, FAULTS, REPO, count_lines, errors_of, finish, flags, read_metrics, start, wait_until

import evaluate
import predict
from distributed.group import Group
from flags import Config
from flags.programs import EXPORT
from support.errors import STOPPED
from training import checkpoint
from training.record.messages import resume_hint

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX shells")


def command_after(text: str, title: str) -> str:
    """What follows `title:` to the end of a line, once in the text."""
    [command] = [line.partition(f"{title}:")[2].strip() for line in text.splitlines() if f"{title}:" in line]
    return command


def paste(command: str, cwd: Path) -> str:
    """Run a command in a shell. Returns its stdout."""
    done = subprocess.run(command, shell=True, cwd=cwd, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_command_after_ctrl_c_resumes_the_run_to_its_end(demo_root, tmp_path):
    """Without it, `python train.py --resume auto` opened another run: the demo's."""
    data, folder = tmp_path / "my data", tmp_path / "my logs" / "my run"
    data.symlink_to(demo_root)
    names = {"dataset_path": data, "logdir": "my logs", "name": "my run"}
    process = start(flags(**names, **DENSE, epochs=12, val_epoch_frequency=0), tmp_path)
    wait_until(lambda: count_lines(folder / "metrics.jsonl"), [process])
    process.send_signal(signal.SIGINT)
    [(_, stdout, _)] = finish([process], status=STOPPED)
    assert checkpoint.read_run(folder / "last.pt").step < 48
    said = paste(command_after(stdout, "to resume"), tmp_path)
    assert [line["step"] for line in read_metrics(folder, "train")] == list(range(1, 49))
    assert [path.name for path in (tmp_path / "my logs").iterdir()] == ["my run"]
    assert not (tmp_path / "log").exists()
    assert "flags changed since the checkpoint: none" in said


def test_hint_for_a_launcher_is_to_start_all_processes_as_before():
    group = Group(torch.device("cpu"), launcher="torchrun", world_size=4)
    expected = "to resume, start all processes as before and add: --resume 'my logs/x/last.pt'"
    assert resume_hint(Config(), group, Path("my logs/x")) == expected


def test_error_after_a_checkpoint_says_how_to_resume_and_one_before_does_not(demo_flags, tmp_path):
    words = demo_flags(epochs=2, name="x", **DENSE)
    faulty, nan, diverging = finish(
        [
            start(["out_of_memory", "0", *words], tmp_path, FAULTS),
            start(["loss_not_finite", "0", *words, "--name", "y"], tmp_path, FAULTS),
            start([*words, "--name", "z", "--lr", "1e30"], tmp_path),
        ],
        status=2,
    )
    [line] = errors_of(faulty[2])
    assert command_after(line, "; to resume").endswith(f"train.py --resume {tmp_path}/x/last.pt")
    # A run that has diverged would fail again, so it gets no command to paste.
    assert (tmp_path / "y" / "last.pt").exists()
    assert "is nan at step 6" in errors_of(nan[2])[0]
    assert "to resume" not in nan[2]
    assert "to resume" not in diverging[2]


def test_commands_for_a_run_that_is_done(demo_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    demo_run(logdir="my logs", name="my run", **DENSE)
    said = capsys.readouterr().out
    for title, program in {"scores": evaluate, "predict": predict}.items():
        script, *words = shlex.split(command_after(said, title))[1:]
        assert Path(script) == REPO / f"{program.__name__}.py"
        assert not program.main(words)
    folder = tmp_path / "my logs" / "my run"
    script, *words = shlex.split(command_after(said, "export"))[1:]  # test_printed_commands runs it
    assert Path(script) == REPO / "export.py"
    assert Path(EXPORT.command_line(words).values["checkpoint"]).samefile(folder / "best.pt")
    assert f"report:  {Path('my logs/my run/report.html')}" in said
    assert [*folder.rglob("*.html")] == [folder / "report.html"]  # one report
    assert len([*(folder / "predictions" / "masks").iterdir()]) == 11  # all of JPEGImages
    assert shlex.split(command_after(said, "curves"))[-2:] == ["--logdir", "my logs"]
