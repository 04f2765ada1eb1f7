"""The chain from strokes to a scored model: whole, and killed at random moments and started again."""

import hashlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import REPO

from data.demo import draw_dataset
from scripts import scribble_pipeline
from support.errors import STOPPED, UserError

pytestmark = pytest.mark.slow
KILLS = 2
TINY = shlex.split(
    "--config configs/demo.yaml --epochs 2 --crop_size 33 --batchsize 4 --workers 0 --save_step_frequency 1 "
    "--ema 0.5 --device cpu"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Dense masks without scribbles: the chain simulates them."""
    root = tmp_path_factory.mktemp("scribbles") / "demo"
    draw_dataset(root, num_train=8, num_val=2)
    for folder in ("pascal_2012_scribble", "bmp_pseudolabel"):
        shutil.rmtree(root / folder)
    return root


def start(data: Path, work: Path, *more: str) -> subprocess.Popen:
    command = ["bash", "scripts/scribble_pipeline.sh", str(data), str(work), "--pseudo=--flip"]
    command += [*TINY, *more]
    work.mkdir(parents=True, exist_ok=True)
    with (work.parent / f"{work.name}.txt").open("a") as output:
        return subprocess.Popen(
            [*command, "--classes", f"{data}/classes.txt"],
            cwd=REPO,
            env=os.environ | {"PYTHON": sys.executable},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def results(work: Path) -> dict[str, object]:
    """What the chain makes: the bytes of each label, and the weights and scores of each checkpoint."""
    files = {path.relative_to(work).as_posix(): path for path in sorted(work.rglob("*.p[nt]*")) if path.is_file()}
    assert not [name for name in files if ".part" in name]
    labels = {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if path.suffix == ".png"
    }
    found: dict[str, object] = dict(labels)
    for round_ in ("round_0", "round_1"):
        content = torch.load(work / round_ / "best.pt", weights_only=True)
        weights = b"".join(content["ema"][name].numpy().tobytes() for name in sorted(content["ema"]))
        found[round_] = hashlib.sha256(weights).hexdigest(), content["step"], content["best_miou"]
    return found


def test_the_chain_killed_and_started_again_ends_with_the_same_files(data, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    began = time.monotonic()
    assert start(data, whole).wait(timeout=300) == 0, (tmp_path / "whole.txt").read_text()
    seconds = time.monotonic() - began
    expected = results(whole)
    assert sum(name.startswith("strokes/") for name in expected) == 8
    assert sum(name.startswith("pseudo_1/") for name in expected) == 8
    assert json.loads((whole / "pseudo_1/pseudo.json").read_text())["flip"] is True
    assert (whole / "report/index.html").is_file()

    chance = random.Random(0)
    for _ in range(KILLS):
        process = start(data, killed)
        time.sleep(chance.uniform(0, seconds / 2))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert start(data, killed).wait(timeout=300) == 0, (tmp_path / "killed.txt").read_text()
    assert results(killed) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "the following arguments are required: DATA, WORK"),
        (["nowhere", "work"], "nowhere: no such folder"),
        ([".", "work", "--rounds", "0"], "--rounds 0: must be at least 1"),
        ([".", "work", "--name", "x"], "--name: the chain sets this flag of train.py itself"),
        ([".", "work", "--pseudo=--output x"], "--pseudo --output: the chain sets this flag of pseudo.py itself"),
        ([".", "work", "--pseudo=--threshold 2"], "--pseudo: --threshold"),
        (["DRAWN", "work", "--simulate=--length 0.5"], "has scribbles, so none are simulated: drop this flag"),
        ([".", "work", "--label_suffix", "_mask"], "--label_suffix _mask: strokes are not simulated from masks with"),
    ],
)
def test_a_user_error_is_one_line(words, expected, tmp_path, monkeypatch):
    (tmp_path / "DRAWN/pascal_2012_scribble").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        scribble_pipeline.main(words)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_step_that_fails_ends_the_chain_with_its_status(data, tmp_path):
    """Here train.py, after the strokes were drawn."""
    words = [str(data), str(tmp_path / "work"), "--val_split", "nowhere"]
    assert scribble_pipeline.main([*words, "--simulate", "--width 5"]) == 2
    assert json.loads((tmp_path / "work/strokes/.made_from.json").read_text())["all"]["width"] == 5
    assert len(list((tmp_path / "work/strokes").glob("*.png"))) == 8


@pytest.fixture
def commands(monkeypatch) -> list[list[str]]:
    """The commands that the chain would run."""
    commands: list[list[str]] = []
    monkeypatch.setattr(
        scribble_pipeline.Steps, "run", lambda self, *words, **options: commands.append(list(map(str, words)))
    )
    return commands


def test_a_folder_has_results_of_one_command(data, tmp_path, commands):
    work, recipe = tmp_path / "work", tmp_path / "recipe.yaml"
    recipe.write_text("epochs: 2")
    words = [str(data), str(work), "--config", str(recipe)]
    assert scribble_pipeline.main(words) == 0
    (work / "round_0").mkdir()
    (work / "round_0/last.pt").touch()
    assert scribble_pipeline.main([*words, "--workers=0", "--pseudo=--flip"]) == 0  # neither changes the model
    recipe.write_text("epochs: 99")
    with pytest.raises(UserError, match=r"work: has results of other epochs, see .*chain\.json: name another folder"):
        scribble_pipeline.main(words)


def test_a_model_of_other_labels_is_not_kept(data, tmp_path, commands):
    """Else a new --simulate or --pseudo, or a repainted scribble, would end with the score of the old model."""
    work = tmp_path / "work"
    words = [str(data), str(work)]
    for folder in ("strokes", "pseudo_1"):
        (work / folder).mkdir(parents=True)
        (work / folder / "a.png").write_bytes(b"first")
    assert scribble_pipeline.main(words) == 0
    for name in ("round_0", "round_1"):
        (work / name).mkdir()
        (work / name / "last.pt").touch()
    assert scribble_pipeline.main(words) == 0
    (work / "pseudo_1/a.png").write_bytes(b"second")
    with pytest.raises(UserError, match=r"pseudo_1: has changed since .*round_1 was trained on it: delete round_1 and"):
        scribble_pipeline.main(words)
    shutil.rmtree(work / "round_1")
    assert scribble_pipeline.main(words) == 0
    (work / "strokes/a.png").rename(work / "strokes/b.png")
    with pytest.raises(UserError, match=r"strokes: has changed since .*round_0 was trained on it: delete round_0 and"):
        scribble_pipeline.main(words)


def test_each_step_gets_the_flags_that_concern_it(data, tmp_path, commands):
    words = ["--val_path", "my_masks", "--list_path", "my_lists", "--train_split", "few", "--workers", "0"]
    assert scribble_pipeline.main([str(data), str(tmp_path / "work"), "--rounds", "2", *words]) == 0
    simulate, *_, label, _, score = commands
    assert str(data / "my_masks") in simulate
    assert str(data / "my_lists/few.txt") in simulate
    programs = " ".join(command[0] for command in commands[1:])
    assert programs == "train.py pseudo.py train.py pseudo.py train.py evaluate.py"
    assert label[-2:] == score[-2:] == ["--workers", "0"]


def test_a_signal_stops_all_processes_of_a_step(data, tmp_path):
    """torchrun ends with 1 after a signal, but the chain knows that it was stopped."""
    process = start(data, tmp_path / "work", "--processes", "2", "--epochs", "500")
    deadline = time.monotonic() + 120
    while not (tmp_path / "work/round_0/last.pt").is_file() and time.monotonic() < deadline:
        time.sleep(0.2)
    process.terminate()
    assert process.wait(timeout=60) == STOPPED
    assert (tmp_path / "work.txt").read_text().endswith("stopped; run the same command again to continue\n")
