"""From any folder to the command that trains: the commands that the programs print, pasted one after the other."""

import shlex
import unicodedata
from pathlib import Path

import annotated
import numpy as np
import pytest
from annotated import Picture, draw_pictures
from faulty_data import label, picture, put, turned
from PIL import Image

import train
from support.errors import UserError
from tools import split
from tools.check import __main__ as check
from tools.convert import __main__ as convert

PROGRAMS = {"tools.convert": convert.main, "tools.split": split.main}
TINY = "--pretrained none --device cpu --workers 0 --layers 18 --crop_size 33 --max_steps 2 --batchsize 1"
COLOURS = np.array([[0, 0, 0], [255, 0, 0], [0, 0, 255]], np.uint8)


def follow(root: Path, capsys, *flags: str) -> list[str]:
    """Check, and paste what the check prints, until it prints the command to train. Returns the modules pasted."""
    words, pasted = [str(root), *flags], []
    for _ in range(5):
        try:
            check.main([*words, "--workers", "0"])
            last = capsys.readouterr().out.splitlines()[-1]
        except UserError as error:
            last = str(error)
        if last.startswith("to train: "):
            assert train.main([*shlex.split(last)[4:], *TINY.split(), "--logdir", str(root.parent / "log")]) == 0
            return pasted
        _, _, module, *given = shlex.split(last.split("convert them: ")[-1].removeprefix("to fix: "))
        pasted.append(module)
        if module == "tools.check":
            words = given
            continue
        PROGRAMS[module](given)
        if module == "tools.convert":
            words = given[2:3]
    raise AssertionError(pasted)


@pytest.mark.parametrize(
    ("mask", "name", "expected"),
    [
        (COLOURS[label(0, 1, 2)], "labels/{}_mask.png", ["tools.convert", "tools.split"]),
        (label(0, 1, 2), "annotations/{}_gt.png", ["tools.split"]),
        (label(0, 255), "masks/{}.png", ["tools.split"]),
    ],
)
def test_masks_of_any_kind_without_a_split(tmp_path, capsys, monkeypatch, mask, name, expected):
    monkeypatch.chdir(Path(__file__).parent.parent)  # commands are then python -m MODULE
    for image in "abcd":
        put(tmp_path / f"my data/images/{image}.jpg", picture(image))
        put(tmp_path / "my data" / name.format(image), mask)
    assert follow(tmp_path / "my data", capsys) == expected


def test_a_messy_folder(tmp_path, capsys, monkeypatch):
    """Foreign names of folders, umlauts in both Unicode forms, colours, EXIF, 16 bits, files without a partner."""
    monkeypatch.chdir(Path(__file__).parent.parent)
    root = tmp_path / "Meine Übung"
    for number in range(6):
        name = f"Bäume am Fluß ({number})"
        put(root / f"Bilder/{name}.jpg", picture(name))
        put(root / f"Masken/{unicodedata.normalize('NFD', name)}.png", COLOURS[label(0, 1, 2)])
    options = turned("gedreht", 6)  # the image is turned, its mask is not
    Image.fromarray(options["image"]).save(root / "Bilder/gedreht.jpg", exif=options["exif"])
    put(root / "Masken/gedreht.png", COLOURS[label(0, 1)])
    put(root / "Bilder/tief.png", picture("tief")[..., 0].astype(np.uint16) * 200)
    put(root / "Masken/tief.png", COLOURS[label(0, 2)])
    put(root / "Bilder/ohne Maske.jpg", picture("ohne"))
    with pytest.raises(UserError, match=r"but Bilder, Masken; .*--image_path, --train_path and --val_path"):
        check.main([str(root)])
    flags = ["--dataset", "Folder", "--image_path", "Bilder", "--train_path", "Masken", "--val_path", "Masken"]
    assert follow(root, capsys, *flags) == ["tools.convert", "tools.split"]
    out = root.with_name("Meine Übung_masks")
    assert len(list((out / "masks").iterdir())) == 7  # the others are named, and left out
    assert len([*(out / "train.txt").read_text().splitlines(), *(out / "val.txt").read_text().splitlines()]) == 7


@pytest.mark.parametrize("kind", ["labelme", "coco", "yolo", "cvat"])
def test_exports_of_tools(tmp_path, capsys, monkeypatch, kind):
    monkeypatch.chdir(Path(__file__).parent.parent)
    pictures = [Picture(f"foto ä{number}", *item[1:]) for number, item in enumerate(draw_pictures(5, kinds="polygon"))]
    getattr(annotated, f"write_{kind}")(tmp_path / "mein Export", pictures)
    if kind != "labelme":  # the run is then like that of the other tools
        monkeypatch.setattr(train, "main", lambda words: 0)
    assert follow(tmp_path / "mein Export", capsys) == ["tools.convert", "tools.split"]


def test_roboflows_masks_have_their_names(tmp_path, capsys):
    """train/x.jpg, train/x_mask.png and train/_classes.csv, whose first line is "Pixel Value, Class"."""
    for folder in ("train", "valid"):
        put(tmp_path / f"data/{folder}/a{folder}.jpg", picture(folder))
        put(tmp_path / f"data/{folder}/a{folder}_mask.png", label(0, 1, 2))
        (tmp_path / f"data/{folder}/_classes.csv").write_text("Pixel Value, Class\n0, background\n1, dog\n2, the sky\n")
    assert check.main([str(tmp_path / "data"), "--workers", "0"]) == 0
    assert "  2  the sky  " in capsys.readouterr().out


def test_black_and_names_that_are_colours_are_said(tmp_path, capsys):
    for name in "ab":
        put(tmp_path / f"in/images/{name}.jpg", picture(name))
        put(tmp_path / f"in/masks/{name}.png", COLOURS[label(0, 1, 2)])
    edit = f"edit the first word of each line of {tmp_path / 'out/classes.txt'}"
    convert.main([str(tmp_path / "in"), str(tmp_path / "out"), "--workers", "0"])
    said = capsys.readouterr().out
    assert "of the pixels have no label (no shape, or black): class background; if they mean unlabelled" in said
    assert edit in said
    check.main([str(tmp_path / "out"), "--workers", "0"])
    assert edit in capsys.readouterr().out
