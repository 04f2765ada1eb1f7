"""python -m tools.scribbles: files by name, in any number of processes, and nothing overwritten."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import contents, refused
from faulty_data import cut, put
from PIL import Image
from test_scribbles import random_mask

from data.images import read_label
from support.errors import UserError
from tools.scribbles import __main__ as module
from tools.scribbles.__main__ import main
from tools.scribbles.simulate import draw_scribble

MARK = ".made_from.json"
NUM_MASKS = 17  # two processes take 8 at once


@pytest.fixture(scope="module")
def masks(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("masks")
    for number in range(NUM_MASKS):
        put(folder / ("sub" if number % 2 else ".") / f"{number}.png", random_mask(number))
    return folder


def simulate(masks: Path, out: Path, *words: str) -> int:
    return main(["simulate", str(masks), str(out), "--workers", "0", "--min_area", "30", *words])


def test_files_do_not_depend_on_processes_or_on_other_masks(masks, tmp_path, capsys):
    assert simulate(masks, tmp_path / "one") == 0
    assert f"one: {NUM_MASKS} scribble(s) drawn\n" in capsys.readouterr().out
    one = contents(tmp_path / "one")
    assert len(one) == NUM_MASKS + 1
    assert main(["simulate", str(masks), str(tmp_path / "two"), "--workers", "2", "--min_area", "30"]) == 0
    assert contents(tmp_path / "two") == one
    (tmp_path / "list.txt").write_text("sub/5.png\n4\n")
    assert simulate(masks, tmp_path / "few", "--list", str(tmp_path / "list.txt")) == 0
    few = contents(tmp_path / "few")
    assert set(few) == {"4.png", "sub/5.png", MARK}
    assert {name: one[name] for name in few if name != MARK} == {name: few[name] for name in few if name != MARK}
    assert simulate(masks, tmp_path / "other", "--classes", "camvid") == 0
    with Image.open(tmp_path / "other/0.png") as picture:
        assert picture.mode == "P"
        assert picture.getpalette()[:3] == [128, 128, 128]  # camvid.txt: sky #808080


def test_without_scikit_image_one_line_says_how_to_get_it(masks, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(UserError, match=r"drawing strokes needs packages .*pip install -e '\S*\[scribbles\]'$"):
        simulate(masks, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_same_command_keeps_what_is_there_and_another_is_refused(masks, tmp_path, monkeypatch, capsys):
    assert simulate(masks, tmp_path / "whole") == 0
    whole, drawn = contents(tmp_path / "whole"), []

    def interrupt(*arguments):
        drawn.append(arguments)
        if len(drawn) == 6:
            raise KeyboardInterrupt
        return draw_scribble(*arguments)

    monkeypatch.setattr(module, "draw_scribble", interrupt)
    with pytest.raises(KeyboardInterrupt):
        simulate(masks, tmp_path / "out")
    assert len(contents(tmp_path / "out")) == 5 + 1
    capsys.readouterr()
    monkeypatch.undo()
    assert simulate(masks, tmp_path / "out") == 0
    assert f"{NUM_MASKS - 5} scribble(s) drawn, 5 kept (from an earlier start)" in capsys.readouterr().out
    assert contents(tmp_path / "out") == whole
    with pytest.raises(UserError, match=r"out: has results made with other settings \(length\)"):
        simulate(masks, tmp_path / "out", "--length", "0.5")
    assert contents(tmp_path / "out") == whole
    with pytest.raises(UserError, match="which programs read as input"):
        simulate(masks, masks / "out")


def test_a_mask_that_has_changed_is_drawn_again_and_a_damaged_one_named(masks, tmp_path, capsys):
    folder = shutil.copytree(masks, tmp_path / "masks")
    simulate(folder, tmp_path / "out")
    os.utime(put(folder / "0.png", np.full((40, 40), 3, np.uint8)), (0, 0))  # as cp -p, rsync -a and unzip keep it
    cut(folder / "2.png")
    capsys.readouterr()
    assert simulate(folder, tmp_path / "out") == 1
    said = capsys.readouterr()
    assert "1 scribble(s) drawn" in said.out
    assert "2.png: not a whole, readable image" in said.err
    assert set(np.unique(read_label(tmp_path / "out/0.png", 255))) == {3, 255}


def test_a_full_disk_stops_it_at_once(masks, tmp_path, monkeypatch):
    written: list[Path] = []

    def fail(path: Path, *_, **__) -> None:
        written.append(path)
        raise UserError(f"{path}: cannot be written (No space left on device)")

    monkeypatch.setattr(module, "write_atomic", fail)
    with refused("0.png: cannot be written"):
        simulate(masks, tmp_path / "out")
    assert len(written) == 1


def test_no_usable_mask_is_an_error_but_a_scribble_of_an_earlier_start_counts(tmp_path, capsys):
    for name in "ab":
        put(tmp_path / f"masks/{name}.png", np.zeros((40, 40, 3), np.uint8) + np.array([1, 2, 3], np.uint8))
    with refused("masks: no mask could be used"):
        simulate(tmp_path / "masks", tmp_path / "out")
    assert capsys.readouterr().err.count("an image of mode RGB: labels must be class numbers") == 2
    put(tmp_path / "masks/a.png", np.zeros((40, 40), np.uint8))
    assert simulate(tmp_path / "masks", tmp_path / "out") == 1
    assert simulate(tmp_path / "masks", tmp_path / "out") == 1
    assert "0 scribble(s) drawn, 1 kept" in capsys.readouterr().out


def test_masks_of_0_and_255_are_one_object(tmp_path, capsys):
    """As in training: 255 is class 1, unless a mask has another class. A damaged mask does not count."""
    mask = np.zeros((40, 40), np.uint8)
    mask[10:30, 8:32] = 255
    for name in "ab":
        put(tmp_path / f"masks/{name}.png", mask)
    put(tmp_path / "masks/damaged.png", mask).write_bytes(b"")
    assert simulate(tmp_path / "masks", tmp_path / "out") == 1
    said = capsys.readouterr()
    assert "masks hold only 0 and 255: 255 is read as class 1" in said.out
    assert "damaged.png" in said.err
    scribble = read_label(tmp_path / "out/a.png", 2)
    assert set(scribble[mask == 255].tolist()) == {1, 255}
    assert set(scribble[mask == 0].tolist()) == {0, 255}
    put(tmp_path / "masks/c.png", mask // 255)
    with pytest.raises(UserError, match=r"has results made with other settings \(label_map\)"):
        simulate(tmp_path / "masks", tmp_path / "out")
    assert simulate(tmp_path / "masks", tmp_path / "two") == 1
    assert set(read_label(tmp_path / "two/a.png", 2)[mask == 255].tolist()) == {255}


def test_real_masks_get_as_many_labelled_pixels_as_people_drew(scribblesup, tmp_path):
    """ScribbleSup's two strokes label 2.92 and 3.42 % of the pixels: the mean of five draws lies between."""
    shares = []
    for seed in range(5):
        out = tmp_path / f"{seed}"
        assert main(["simulate", str(scribblesup / "SegmentationClassAug"), str(out), "--seed", str(seed)]) == 0
        shares += [(read_label(path, 255) != 255).mean() for path in out.glob("*.png")]
    assert len(shares) == 10
    assert 0.0292 <= np.mean(shares) <= 0.0342


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["simulate", "nowhere", "o"], "nowhere: no such folder"),
        (["simulate", "m", "o", "--skip", "1.5"], "--skip 1.5: must be at least 0 and at most 0.99"),
        (["simulate", "m", "o", "--length", "0"], "--length 0.0: must be above 0 and at most 1"),
        (["simulate", "e", "o"], "e: no label map in it (.png, "),
        (["simulate", "two", "o"], "two/a.png and a.bmp: two files of one name: remove or rename one"),
        (["simulate", "m", "o", "--list", "l.txt"], "l.txt: 'b': no label map of this name in m"),
    ],
)
def test_wrong_words_are_named(tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    Path("e").mkdir()
    Path("l.txt").write_text("b\n")
    for name in ("m/a.png", "two/a.png", "two/a.bmp"):
        put(Path(name), np.zeros((9, 9), np.uint8))
    with refused(named):
        main(words)
    assert not Path("o").exists()
