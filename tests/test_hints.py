"""The commands that train.py prints do what they say when they are pasted into a shell."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import REPO, errors_of, finish, flags, read_metrics, start, start_group

import config
import evaluate
import export
import predict
from distributed.group import Group
from errors import STOPPED
from runs import checkpoint

FAULTS = "tests/train_with_fault.py"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX shells")


def command_after(text: str, title: str) -> str:
    """What stands after `title: ` at the end of a line, once in the text."""
    [command] = [line.partition(f"{title}: ")[2] for line in text.splitlines() if f"{title}: " in line]
    return command


def paste(command: str, cwd: Path) -> subprocess.CompletedProcess:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, shell=True, cwd=cwd, env=env, capture_output=True, text=True, timeout=200, check=False
    )


def test_command_after_ctrl_c_resumes_the_run_to_its_end(demo_root, tmp_path):
    """Without it, `python train.py --resume auto` opened another run: the demo's."""
    data = tmp_path / "my data"
    data.symlink_to(demo_root)
    words = flags(
        dataset_path=data,
        logdir="my logs",
        name="my run",
        epochs=4,
        dataset="Dense",
        model_type="res50_ASPP",
        val_epoch_frequency=0,
    )
    process = start(words, tmp_path)
    folder = tmp_path / "my logs" / "my run"
    while not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    [(status, stdout, stderr)] = finish([process])
    assert status == STOPPED, stderr
    stopped_at = checkpoint.read_run(folder / "last.pt")["step"]
    assert stopped_at < 16
    done = paste(command_after(stdout, "to resume"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in read_metrics(folder, "train")] == list(range(1, 17))
    assert [path.name for path in (tmp_path / "my logs").iterdir()] == ["my run"]
    assert not (tmp_path / "log").exists()
    assert "flags changed since: none" in done.stdout


def test_command_after_a_stop_under_torchrun_starts_as_many_processes(demo_flags, tmp_path):
    words = demo_flags(name="x", epochs=2, batchsize=1, dataset="Dense", model_type="res50_ASPP")
    # As torchrun starts them, but without its five seconds of imports.
    as_torchrun = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": 2}
    results = finish(start_group(2, ["signal_mid_epoch", "0", *words], tmp_path, FAULTS, **as_torchrun))
    done = paste(command_after(results[0][1], "to resume"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "last.pt: epoch 2, 4 samples into it, step 6" in done.stdout
    assert "rank 1, local rank 1, world size 2" in done.stdout
    assert checkpoint.read_run(tmp_path / "x" / "last.pt")["step"] == 8


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ({}, "to resume: PYTHON {repo}/train.py --resume 'my logs/x/last.pt'"),
        ({"backend": "gloo", "launcher": "flags"}, "to resume: PYTHON {repo}/train.py --resume 'my logs/x/last.pt'"),
        (
            {"launcher": "torchrun", "world_size": 4, "local_world_size": 4},
            "to resume: PYTHON -m torch.distributed.run --standalone --nproc_per_node 4 {repo}/train.py --resume 'my logs/x/last.pt'",
        ),
        *(
            (
                {"launcher": launcher, "world_size": 4, "local_world_size": local},
                "to resume, start all processes as before and add: --resume 'my logs/x/last.pt'",
            )
            for launcher, local in [
                ("torchrun", 2),
                ("srun", 4),
                ("mpirun", 4),
                ("RANK and WORLD_SIZE", 4),
                ("flags", 4),
            ]
        ),
    ],
)
def test_hint_is_what_brings_the_processes_back(tmp_path, monkeypatch, group, expected):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    hint = ResumeHint(config.parse(flags(dataset_path=".")), Group(torch.device("cpu"), **group))
    hint.folder = Path("my logs/x")
    assert str(hint) == expected.format(repo=REPO).replace("PYTHON", sys.executable)
    assert hint.after_failure() == ""  # there is no such file
    (tmp_path / "my logs/x").mkdir(parents=True)
    (tmp_path / "my logs/x/last.pt").touch()
    assert hint.after_failure() == f"; {hint}"
    hint.group = Group(torch.device("cpu"), rank=1, world_size=4)  # rank 0 adds it to this rank's error
    assert hint.after_failure() == ""


def test_torchrun_is_named_where_the_shell_finds_it(tmp_path, monkeypatch):
    for name in ("python", "torchrun"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(REPO)
    group = Group(torch.device("cpu"), launcher="torchrun", world_size=2, local_world_size=2)
    hint = ResumeHint(config.parse([*flags(dataset_path="."), "--resume", "a", "--reset_data_offset"]), group)
    hint.folder = Path("log/x")
    assert str(hint) == "to resume: torchrun --standalone --nproc_per_node 2 train.py --resume log/x/last.pt"
    hint.group = Group(torch.device("cpu"), launcher="srun", world_size=2)
    assert str(hint).startswith(
        "to resume, start all processes as before without --reset_data_offset and add: --resume"
    )


def test_error_after_a_checkpoint_says_how_to_resume_and_one_before_does_not(demo_flags, tmp_path):
    words = demo_flags(epochs=2, name="x", dataset="Dense", model_type="res50_ASPP")
    [(status, _, stderr)] = finish([start(["out_of_memory", "0", *words], tmp_path, FAULTS)])
    assert status == 2
    [line] = errors_of(stderr)
    assert command_after(line, "; to resume").endswith(f"train.py --resume {tmp_path}/x/last.pt")
    # A run that has diverged would fail again, so it gets no command to paste.
    [(status, _, stderr)] = finish([start(["loss_not_finite", "0", *words, "--name", "y"], tmp_path, FAULTS)])
    assert status == 2
    assert (tmp_path / "y" / "last.pt").exists()
    assert "is nan at step 5" in errors_of(stderr)[0]
    assert "to resume" not in stderr
    words = demo_flags(lr=1e30, dataset="Dense", model_type="res50_ASPP")
    [(status, _, stderr)] = finish([start(words, tmp_path)])
    assert status == 2
    assert "to resume" not in stderr


def test_rank_0_says_how_to_resume_when_another_rank_is_killed(demo_flags, tmp_path):
    words = demo_flags(epochs=2, name="x", batchsize=1, dataset="Dense", model_type="res50_ASPP")
    words += ["--save_step_frequency", "1"]
    results = finish(start_group(2, ["killed", "1", *words], tmp_path, FAULTS))
    [line] = errors_of(results[0][2])
    assert "exited without a message" in line
    assert line.endswith(f"; to resume, start all processes as before and add: --resume {tmp_path}/x/last.pt")


def test_commands_for_a_run_that_is_done(demo_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    demo_run(logdir="my logs", name="my run", dataset="Dense", model_type="res50_ASPP")
    said = capsys.readouterr().out
    titles = {"to score it, with a web page": evaluate, "to predict images": predict, "to export it": export}
    for title, program in titles.items():
        script, *words = shlex.split(command_after(said, title))[1:]
        assert Path(script) == REPO / f"{program.__name__}.py"
        assert not program.main(words)
    folder = tmp_path / "my logs" / "my run"
    assert (folder / "report" / "index.html").is_file()
    assert len([*(folder / "predictions" / "masks").iterdir()]) == 11  # all of JPEGImages
    assert (folder / "best.pt2").is_file()
    assert shlex.split(command_after(said, "to see the curves"))[-2:] == ["--logdir", "my logs"]
