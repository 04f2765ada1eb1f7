"""python -m tools.convert --scribbles: strokes are on the right pixels, where --dataset ScribbleOnly reads them."""

import re
import shutil
from pathlib import Path

import annotated
import numpy as np
import pytest
from annotated import Picture, draw_strokes
from faulty_data import put
from PIL import Image
from test_convert import drawn

from data.classes import read_classes
from data.dataset import EvalSet
from data.layout import find_split, read_list
from support.errors import UserError
from tools.check.__main__ import main as check
from tools.convert.__main__ import main

ORDER = ["background", "aeroplane", "person"]  # background first, then by name
VOC = {"background": 0, "aeroplane": 1, "person": 15}


def strokes_of(kind: str, number: int = 3) -> list[Picture]:
    """Pictures of strokes; those of ScribbleSup have points in the middle of pixels."""
    pictures = draw_strokes(number)
    if kind == "scribblesup":
        for picture in pictures:
            picture.shapes[:] = [(*shape, (np.round(points) + 0.5).tolist()) for *shape, points in picture.shapes]
    return pictures


def convert(source: Path, out: Path, *words: str) -> int:
    images = source.parent / "images"
    words = (*words, "--images", str(images)) if source.name == "scribbles" else words
    return main([str(source), str(out), "--scribbles", "--workers", "0", *words])


def scribble_of(out: Path, name: str) -> np.ndarray:
    with Image.open(out / f"pascal_2012_scribble/{name}.png") as picture:
        assert picture.mode == "P"
        return np.asarray(picture)


@pytest.mark.parametrize(("kind", "width"), [("scribblesup", 3.0), ("labelme", 3.0), ("cvat", 3.0), ("labelme", 6.5)])
def test_strokes_are_on_the_right_pixels(tmp_path, kind, width):
    pictures = strokes_of(kind)
    source = getattr(annotated, f"write_{kind}")(tmp_path / "in", pictures)
    assert convert(source, tmp_path / "out", *([] if width == 3 else ["--line_width", str(width)])) == 0
    numbers = VOC
    if kind != "scribblesup":
        names = read_classes(str(tmp_path / "out/classes.txt"), None).names
        assert names[0] == "background"
        assert set(names) <= {*ORDER, *annotated.CLASSES}  # CVAT's file declares the latter
        numbers = {name: number for number, name in enumerate(names)}
    for picture in pictures:
        expected = drawn(picture, numbers, 255, width)
        assert (expected != 255).any()
        assert (scribble_of(tmp_path / "out", picture.name) == expected).all()
        image = np.asarray(Image.open(tmp_path / f"out/JPEGImages/{picture.name}.png"))
        assert (image == picture.pixels).all()


def test_unlabelled_ignore_takes_photos_that_nobody_has_drawn_in(tmp_path, capsys):
    annotated.write_labelme(tmp_path / "in", draw_strokes())
    photo = next((tmp_path / "in").rglob("*.png"))
    shutil.copy(photo, photo.with_name("new.png"))
    assert convert(tmp_path / "in", tmp_path / "without") == 0
    assert "1 image(s) have no usable label" in capsys.readouterr().out
    assert convert(tmp_path / "in", tmp_path / "with", "--unlabelled", "ignore") == 0
    for name, number in (("without", 3), ("with", 4)):
        assert len((tmp_path / name / "ImageSets/Segmentation/train.txt").read_text().split()) == number
    assert set(np.unique(scribble_of(tmp_path / "with", "new"))) == {255}


def test_the_layout_is_what_scribble_only_reads(tmp_path, capsys):
    """A list has a name on each line, without folder or space."""
    annotated.write_labelme(tmp_path / "in/night shift", draw_strokes())
    assert convert(tmp_path / "in", tmp_path / "out") == 0
    assert f"{tmp_path / 'out/ImageSets/Segmentation/train.txt'}: 3 name(s)" in capsys.readouterr().out
    split = find_split(tmp_path / "out", "ScribbleOnly", "train", {"label": ""})
    dataset = EvalSet(split, 3)
    names = [files["label"].stem for files in dataset.files]
    assert names == [f"night_shift_picture_{number}" for number in range(3)]
    assert {value for item in dataset for value in np.unique(item["label"])} <= {0, 1, 2, 255}
    words = [str(tmp_path / "out"), "--dataset", "ScribbleOnly", "--splits", "train", "--workers", "0"]
    assert check(words) == 0


def test_scribblesup_has_vocs_classes_else_its_own(tmp_path):
    """The first pixel is (1, 1)."""
    shapes = [("aeroplane", "line", [[0.5, 0.5], [30.5, 20.5]]), ("background", "line", [[3.5, 40.5], [50.5, 40.5]])]
    source = annotated.write_scribblesup(tmp_path / "in", [Picture("a", np.zeros((47, 61, 3), np.uint8), shapes)])
    assert convert(source, tmp_path / "out") == 0
    assert read_classes(str(tmp_path / "out/classes.txt"), 21).names == read_classes("voc", 21).names
    path = source / "a.xml"
    path.write_text(path.read_text().replace("<tag>plane</tag>", "<tag>grass</tag>"))  # of PASCAL-Context
    assert convert(source, tmp_path / "two") == 0
    assert read_classes(str(tmp_path / "two/classes.txt"), None).names == ["background", "grass"]
    assert scribble_of(tmp_path / "two", "a")[0, 0] == 1
    for wrong, right in (("planee", "plane"), ("Aeroplane", "aeroplane"), ("motor-bike", "motorbike")):
        path.write_text(re.sub("<tag>[^<]*</tag>", f"<tag>{wrong}</tag>", path.read_text(), count=1))
        with pytest.raises(UserError, match=rf"a\.xml: polygon 1 \({wrong}\): its tag .* correct it to '{right}'"):
            convert(source, tmp_path / "three")


def test_brush_masks_of_label_studio(tmp_path, capsys):
    """Its PNG files name no image; of a task's annotations, the last counts."""
    strokes = np.zeros((2, 20, 30), np.uint8)
    strokes[0, 4:7, 2:20] = strokes[1, 10:13, 5:25] = 255
    for number, name in enumerate(("cat", "my-dog")):
        for annotation, value in ((10, strokes[number]), (9, 255 - strokes[number])):
            put(tmp_path / f"in/masks/task-1-annotation-{annotation}-by-3-tag-{name}-0.png", value)
    put(tmp_path / "in/photo.jpg", np.zeros((20, 30, 3), np.uint8))
    with pytest.raises(UserError, match="nothing to convert"):
        convert(tmp_path / "in", tmp_path / "out")
    assert "do not say which image they are of: put the project's JSON" in capsys.readouterr().err
    (tmp_path / "in/tasks.json").write_text('[{"id": 1, "image": "/data/upload/2/0a1b2c3d-photo.jpg"}]')
    cat = tmp_path / "in/masks/task-1-annotation-10-by-3-tag-cat-0.png"
    put(cat, Image.fromarray(strokes[0]).convert("RGB"))
    with pytest.raises(UserError, match="no image could be converted"):
        convert(tmp_path / "in", tmp_path / "none")
    assert "cat-0.png: has 3 channels, but a brush mask is grey: save it as grey PNG" in capsys.readouterr().err
    put(cat, strokes[0])
    assert convert(tmp_path / "in", tmp_path / "out") == 0
    assert read_classes(str(tmp_path / "out/classes.txt"), None).names == ["cat", "my-dog"]
    assert (scribble_of(tmp_path / "out", "photo") == np.select([strokes[0] > 0, strokes[1] > 0], [0, 1], 255)).all()


@pytest.mark.parametrize(
    ("ground", "classes", "expected", "said"),
    [
        ((0, 0, 0, 0), "", [255, 0, 1], ""),
        ((0, 0, 0, 255), "back #000000\nred #ff0000", [255, 255, 1], ""),  # one transparent pixel is no ground
        ((0, 0, 0, 0), "green #00ff00\nred #ff0000", [255, 255, 1], ""),  # no class has black: status 1
        ((0, 0, 0, 0), "back #000000\nred #ff0000", [255, 0, 1], "class back is black"),
        ((0, 0, 0), "back #000000\nred #ff0000", [255, 255, 1], "class back is black"),
        ((255, 255, 255), "", [1, 255, 0], "#ffffff is on 83% of the pixels"),
    ],
)
def test_strokes_painted_in_black(tmp_path, ground, classes, expected, said, capsys):
    """The rows: 10 of the ground, 1 of black, 1 of red. Black is a stroke only if other pixels are transparent."""
    picture = np.full((12, 8, len(ground)), ground, np.uint8)
    picture[10] = [0, 0, 0, 255][: len(ground)]
    picture[11] = [255, 0, 0, 255][: len(ground)]
    if ground == (0, 0, 0, 255):
        picture[0, 0, 3] = 0
    put(tmp_path / "in/masks/a.png", picture)
    put(tmp_path / "in/images/a.png", picture[..., :3])
    (tmp_path / "names.txt").write_text(classes)
    words = ["--classes", str(tmp_path / "names.txt")] if classes else []
    is_lost = "green" in classes
    assert convert(tmp_path / "in", tmp_path / "out", *words) == is_lost
    assert scribble_of(tmp_path / "out", "a")[9:, 0].tolist() == expected
    out, err = capsys.readouterr()
    assert said in out
    assert ("#000000: a colour that no class has: ignored (255) in 1 place(s)" in err) == is_lost


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<annotation>", "<annotation><object/>", "no scribbles of ScribbleSup"),
        ("<polygon>", "<polygon><tag> </tag></polygon><polygon>", "polygon 1: it has no tag"),
        ("<polygon>", "<polygon><tag>plane</tag></polygon><polygon>", "polygon 1 (aeroplane): left out"),
    ],
)
def test_damage_of_scribblesup_is_named_and_the_rest_is_written(tmp_path, old, new, message, capsys):
    source = annotated.write_scribblesup(tmp_path / "in", strokes_of("scribblesup", 2))
    path = source / "picture_0.xml"
    path.write_text(path.read_text().replace(old, new, 1))
    assert convert(source, tmp_path / "out") == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "picture_0" in line]
    assert message in line
    written = sorted(path.stem for path in (tmp_path / "out/pascal_2012_scribble").iterdir())
    assert written == (["picture_0"] if "left out" in message else []) + ["picture_1"]
    assert read_list(tmp_path / "out/ImageSets/Segmentation/train.txt") == written


def test_a_repaired_file_is_added_and_names_in_other_lists_stay_there(tmp_path):
    source = annotated.write_labelme(tmp_path / "in", draw_strokes())
    good = (source / "picture_2.json").read_text()
    (source / "picture_2.json").write_text("{")
    words = ["--classes", str(tmp_path / "classes.txt")]
    (tmp_path / "classes.txt").write_text("\n".join(ORDER))
    assert convert(source, tmp_path / "out", *words) == 1
    lists = tmp_path / "out/ImageSets/Segmentation"
    (lists / "train.txt").write_text("picture_1\n")
    (lists / "val.txt").write_text("picture_0\n")
    (lists / ".0123456789abcdef.part.txt").write_text("picture_2\n")  # of a killed process, see files.writing()
    (source / "picture_2.json").write_text(good)
    assert convert(source, tmp_path / "out", *words) == 0
    assert read_list(lists / "train.txt") == ["picture_1", "picture_2"]
    assert read_list(lists / "val.txt") == ["picture_0"]
    with pytest.raises(UserError, match="has results made with other settings"):
        convert(source, tmp_path / "out", *words, "--line_width", "5")
