"""Every command that a program prints runs when it is pasted into a shell, in a folder with spaces."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import annotated
import numpy as np
import pytest
from conftest import REPO, TINY, flags
from faulty_data import Drawn
from PIL import Image

from data.demo import draw_sample
from support.shell import quoted

pytestmark = pytest.mark.slow
# A printed command is the last thing on its line, after ": ". The usage of --help is none.
PRINTED = re.compile(r"(?<!usage): +((?:'[^']*/python[\d.]*'|(?:[\w./-]*/)?python[\d.]*|torchrun) \S.*)")
# What a new run gets besides, so that it takes a second; none of these is what the command is about.
NAMES = "layers pretrained crop_size epochs warmup_epochs workers device"
SHORT = {name: TINY[name] for name in NAMES.split()}


class Place(NamedTuple):
    """A folder in which commands are run as a shell runs them."""

    folder: Path
    env: dict[str, str]

    def run(self, command: str) -> tuple[int, str]:
        """The exit status, and what it said."""
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=240
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory, python) -> Place:
    """With plain folders of other names than the usual ones, and masks of 0 and 255."""
    folder = tmp_path_factory.mktemp("printed") / "a work place"
    drawn, binary = Drawn(folder / "my data", image="my pictures", mask="labels"), Drawn(folder / "0 and 255")
    for number in range(6):
        image, dense, _, _ = draw_sample(number)
        name = f"{'train' if number < 4 else 'val'}/picture {number}"
        drawn.pair(name, image, dense)
        binary.pair(name, image, np.where(dense > 0, 255, 0).astype(np.uint8))
    (folder / "my data/classes.txt").write_text("ground\ndisc\nsquare\ntriangle\ncross\n")
    Image.fromarray(draw_sample(9)[0]).save(folder / "a photo.jpg")
    annotated.write_labelme(folder / "my labels", annotated.draw_pictures(9, kinds="mask"))
    return Place(folder, os.environ | python.env)


def program(name: str, *words: object) -> str:
    return quoted(["python", str(REPO / name), *map(str, words)])


def words_of(values: dict) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


FOLDERS = ("--image_path", "my pictures", "--train_path", "labels", "--val_path", "labels")
CHECKPOINT = ("--checkpoint", "log/a run/best.pt")
TRAIN = ("train.py", "--dataset", "Folder", "--dataset_path", "my data", *FOLDERS, "--numclasses", 5, "--batchsize", 2,
         "--name", "a run", *words_of(SHORT))  # fmt: skip
# Each program as a user runs it, one after the other, and its exit status.
PROGRAMS = [
    (("tools/convert/__main__.py", "labelme", "my labels", "converted data"), 0),
    (("tools/check/__main__.py", "my data", *FOLDERS), 0),
    (("tools/check/__main__.py", "my data", *FOLDERS, "--splits", "val"), 0),
    (TRAIN, 0),
    (("evaluate.py", *CHECKPOINT, "--report", "a report"), 0),
    (("predict.py", *CHECKPOINT, "--input", "a photo.jpg", "--output", "some masks", "--overlay"), 0),
    (("train.py", *flags(dataset="Folder", dataset_path="0 and 255", numclasses=2, label_map="")), 2),
    (("train.py", "--no_such_flag"), 2),
    (("evaluate.py", "--checkpoint", "nowhere.pt"), 2),
    (("predict.py", *CHECKPOINT, "--input", "nowhere"), 2),
]


def fault_of(command: str, place: Place) -> str:
    """What is wrong with a printed command, or ""."""
    words = shlex.split(command)
    if "tensorboard.main" in words:  # a server that goes on until it is stopped
        folder = place.folder / words[words.index("--logdir") + 1]
        return "" if folder.is_dir() else f"{command}: no such folder"
    begins = any(word.endswith("train.py") for word in words) and "--resume" not in words and "--help" not in words
    short = SHORT | ({"max_steps": 1} if "--max_steps" in words else {})
    status, said = place.run(f"{command} {quoted(words_of(short))}" if begins else command)
    # The data check ends with 1 or 2 where it does its work and finds something.
    works = status == 0 or ("tools/check/__main__.py" in command and "\nerror: " not in f"\n{said}")
    return "" if works else f"{command}: status {status}\n{said}"


def test_every_printed_command_runs(place):
    found = {}
    for (name, *words), expected in PROGRAMS:
        command = program(name, *words)
        status, said = place.run(command)
        assert status == expected, said
        found |= dict.fromkeys(PRINTED.findall(said), command)
    faults = [f"printed by {found[command]}\n{fault}" for command in found if (fault := fault_of(command, place))]
    assert not faults, "\n\n".join(faults)
    names = {Path(name).name for command in found for name in shlex.split(command)[:2]}
    assert names >= {"__main__.py", "split.py", "train.py", "evaluate.py"}
    assert any("--logdir" in command for command in found)  # TensorBoard's
