"""From any folder to the command that trains: the commands that the programs print, pasted one after the other."""

import shlex
from pathlib import Path

import numpy as np
import pytest
from faulty_data import label, picture
from known_datasets import put

import data.check.__main__ as check
import data.convert.__main__ as convert
import train
from data import split
from errors import UserError

PROGRAMS = {"data.check": check.main, "data.convert": convert.main, "data.split": split.main}
TINY = "--pretrained none --device cpu --workers 0 --layers 18 --crop_size 33 --max_steps 2 --batchsize 1"
COLOURS = np.array([[0, 0, 0], [255, 0, 0], [0, 0, 255]], np.uint8)


def paste(line: str) -> None:
    """Run each command of a line as a shell would, in this process."""
    for command in line.split(" && "):
        _, _, module, *words = shlex.split(command)
        PROGRAMS[module](words)


def follow(root: Path, capsys) -> list[str]:
    """Check, and paste what the check prints, until it prints the command to train. Returns the modules pasted."""
    words, pasted = [str(root)], []
    for _ in range(5):
        try:
            check.main([*words, "--workers", "0"])
            last = capsys.readouterr().out.splitlines()[-1]
        except UserError as error:
            last = str(error)
        if last.startswith("to train: "):
            assert train.main([*shlex.split(last)[4:], *TINY.split(), "--logdir", str(root.parent / "log")]) == 0
            return pasted
        line = last.split("draw masks from them: ")[-1].removeprefix("to fix: ")
        pasted.append(shlex.split(line)[2])
        if pasted[-1] == "data.check":
            words = shlex.split(line)[3:]
            continue
        paste(line)
        if pasted[-1] == "data.convert":
            words = [shlex.split(line)[5]]
    raise AssertionError(pasted)


@pytest.mark.parametrize(
    ("mask", "name", "expected"),
    [
        (COLOURS[label(0, 1, 2)], "masks/{}.png", ["data.convert", "data.split"]),
        (COLOURS[label(0, 1, 2)], "labels/{}_mask.png", ["data.convert", "data.split"]),
        (label(0, 1, 2), "masks/{}.png", ["data.split"]),
        (label(0, 1, 2), "annotations/{}_gt.png", ["data.split"]),
        (label(0, 255), "masks/{}.png", ["data.check", "data.split"]),
    ],
)
def test_masks_of_any_kind_without_a_split(tmp_path, capsys, monkeypatch, mask, name, expected):
    monkeypatch.chdir(Path(__file__).parent.parent)  # commands are then python -m MODULE
    for image in "abcd":
        put(tmp_path / f"my data/images/{image}.jpg", picture(image))
        put(tmp_path / "my data" / name.format(image), mask)
    assert follow(tmp_path / "my data", capsys) == expected
