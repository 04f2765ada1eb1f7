"""python -m tools.check --pictures: images with their labels, to look at."""

from pathlib import Path

import numpy as np
import pytest
from faulty_data import Drawn, label, picture
from PIL import Image

from support.errors import UserError
from tools.check.__main__ import check, main


def pictures_of(folder: Path) -> dict[str, list[str]]:
    return {path.name: sorted(file.name for file in path.iterdir()) for path in folder.iterdir()}


def test_pictures_to_look_at(tmp_path, capsys):
    root, out = tmp_path / "data", tmp_path / "pictures"
    drawn = Drawn(root)
    for number in range(20):
        drawn.pair(f"train/{number:02}", np.full((48, 64, 3), 100, np.uint8), label(0, 1))
    drawn.pair("train/large", picture("large", 40, 3200), label(0, 1, height=40, width=3200))
    drawn.pair("val/one", mask=label(1))
    drawn.pair("val/sub/one", mask=np.array([[0, 0, 0], [255, 0, 0]], np.uint8)[label(0, 1)])
    drawn.put("image", "val/cut.png", picture("cut")).write_bytes(b"no image")
    drawn.put("mask", "val/cut.png", label(0, 1))
    names = ["--pictures", str(out), "--workers", "0"]
    assert main([str(root), *names]) == 2
    printed = capsys.readouterr().out
    assert f"pictures: {out}" in printed
    assert "no picture: " in printed
    assert "cut.png: not a whole, readable image" in printed
    found = pictures_of(out)
    # 21 of train, 8 spread over them: 0, 2, 5, ... 18
    assert found["train"] == [f"{number:02}.jpg" for number in (0, 2, 5, 7, 10, 13, 15, 18)]
    assert found["val"] == ["one.jpg", "one_2.jpg"]
    assert found["mask-one-class"] == ["one.jpg"]
    # Half image (100), half colour of the class: black, and VOC's 128, 0, 0. JPEG changes them a little.
    drawn_image = np.asarray(Image.open(out / "train/00.jpg")).astype(int)
    assert np.abs(drawn_image[24, 10] - [50, 50, 50]).max() < 8
    assert np.abs(drawn_image[24, 54] - [114, 50, 50]).max() < 8
    assert Image.open(out / "mask-one-class/one.jpg").size == (64, 48)
    # Its own colours, where a label has no class numbers.
    assert Image.open(out / "mask-colour/one.jpg").size == (64, 48)
    with pytest.raises(UserError, match=r"--pictures .*pictures: exists and is not empty: name a new folder"):
        main([str(root), *names])
    with pytest.raises(UserError, match="is in the data set"):
        main([str(root), "--pictures", str(root / "pictures")])
    assert not (root / "pictures").exists()


def test_large_pictures_are_scaled_down(tmp_path):
    drawn = Drawn(tmp_path / "data")
    for name in ("train/a", "val/b"):
        drawn.pair(name, picture(name, 40, 3200), label(0, 1, height=40, width=3200))
    check(tmp_path / "data", pictures=tmp_path / "out")
    assert Image.open(tmp_path / "out/train/a.jpg").size == (1600, 20)
