"""python -m tools.scribbles convert: strokes are on the right pixels, where --dataset ScribbleOnly reads them."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scribbled
from annotated import Picture
from PIL import Image
from scribbled import CLASSES, draw_strokes
from test_convert import inside

from data.classes import read_classes
from data.dataset import SegmentationDataset
from data.layout import find_split, read_list
from support.errors import UserError
from tools.check.__main__ import main as check
from tools.scribbles.__main__ import main

ORDER = ["background", "aeroplane", "person"]  # background first, then by name
VOC = {"background": 0, "aeroplane": 1, "person": 15}
IN_VOC = {"scribblesup": VOC}
PLACES = 300  # on a piece of line: at most 0.3 pixels apart, so that a distance of 1.5 is at most 0.01 too large


def distances(points: list, size: tuple[int, int]) -> np.ndarray:
    """The distance of each pixel's centre to a line, (H, W): to the nearest of many places on it."""
    y, x = np.mgrid[: size[0], : size[1]] + 0.5
    nearest = np.full(size, np.inf)
    for start, end in zip(points, points[1:] or points, strict=False):
        for share in np.linspace(0, 1, PLACES):
            column, row = np.array(start) + share * (np.array(end) - start)
            nearest = np.minimum(nearest, (x - column) ** 2 + (y - row) ** 2)
    return nearest**0.5


def drawn(picture: Picture, numbers: dict[str, int], width: float) -> tuple[np.ndarray, np.ndarray]:
    """The scribble of a picture, and the pixels that lie too close to the edge of a stroke to tell, (H, W) bool."""
    size = picture.pixels.shape[:2]
    y, x = np.mgrid[: size[0], : size[1]] + 0.5
    label, unclear = np.full(size, 255, np.uint8), np.zeros(size, bool)
    for name, kind, data in picture.shapes:
        if kind == "brush":
            mask = data
        elif kind == "area":
            mask = inside(data, x, y)
        else:
            far = distances(data, size)
            mask = far <= width / 2
            unclear |= abs(far - width / 2) < 0.05
        label[mask] = numbers[name]
    return label, unclear


def rounded(pictures: list[Picture]) -> list[Picture]:
    """The pictures as ScribbleSup's format has them: points in the middle of pixels."""
    return [
        picture._replace(
            shapes=[
                (name, kind, (np.round(np.array(points) + 0.5) - 0.5).tolist()) for name, kind, points in picture.shapes
            ]
        )
        for picture in pictures
    ]


def convert(kind: str, source: Path, out: Path, *words: str) -> int:
    return main(["convert", kind, str(source), str(out), "--workers", "0", *words])


def scribble_of(out: Path, name: str) -> np.ndarray:
    with Image.open(out / f"pascal_2012_scribble/{name}.png") as picture:
        assert picture.mode == "P"
        return np.asarray(picture)


def strokes_of(kind: str) -> list[Picture]:
    kinds = {"scribblesup": "line", "labelstudio": "line dot area brush"}.get(kind, "line dot area")
    pictures = draw_strokes(kinds=kinds)
    return rounded(pictures) if kind == "scribblesup" else pictures


def write(kind: str, folder: Path, pictures: list[Picture]) -> tuple[Path, list[str]]:
    """Write the pictures in a format; the source, and the flags that find the images."""
    source = getattr(scribbled, f"write_{kind}")(folder, pictures)
    return source, ["--images", str(folder / "images")] if kind == "scribblesup" else []


@pytest.mark.parametrize(
    ("kind", "width"), [("scribblesup", 3.0), ("labelme", 3.0), ("cvat", 3.0), ("labelstudio", 3.0), ("labelme", 6.5)]
)
def test_strokes_are_on_the_right_pixels(tmp_path, kind, width, capsys):
    pictures = strokes_of(kind)
    source, words = write(kind, tmp_path / "in", pictures)
    words += [] if width == 3 else ["--line_width", str(width)]
    assert convert(kind, source, tmp_path / "out", *words) == 0
    numbers = IN_VOC.get(kind)
    if numbers is None:
        names = read_classes(str(tmp_path / "out/classes.txt"), None).names
        assert names == [name for name in ORDER if name in names]
        numbers = {name: number for number, name in enumerate(names)}
    for picture in pictures:
        expected, unclear = drawn(picture, numbers, width)
        assert (expected != 255).any()
        assert unclear.mean() < 0.1
        assert (scribble_of(tmp_path / "out", picture.name) == expected)[~unclear].all()
        image = np.asarray(Image.open(tmp_path / f"out/JPEGImages/{picture.name}.png"))
        assert (image == picture.pixels).all()


def test_the_layout_is_what_scribble_only_reads(tmp_path, capsys):
    source, _ = write("labelme", tmp_path / "in", draw_strokes(kinds="line"))
    assert convert("labelme", source, tmp_path / "out") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-2] == f"{tmp_path / 'out/ImageSets/Segmentation/train.txt'}: 3 name(s)"
    assert "-m tools.check" in said[-1] or "data/check" in said[-1]
    split = find_split(tmp_path / "out", "ScribbleOnly", "train", {"label": ""})
    dataset = SegmentationDataset(split, len(CLASSES))
    assert [files["label"].name for files in dataset.files] == [f"picture_{number}.png" for number in range(3)]
    assert {value for item in dataset for value in np.unique(item["label"])} <= {0, 1, 2, 255}
    words = [str(tmp_path / "out"), "--dataset", "ScribbleOnly", "--splits", "train", "--workers", "0"]
    assert check(words) == 0
    assert "nothing wrong found" in capsys.readouterr().out


def test_scribblesup_has_vocs_classes_else_its_own(tmp_path):
    picture = rounded(draw_strokes(1, kinds="line"))[0]
    line = [[5.5, 5.5], [30.5, 20.5]]
    pictures = [
        picture._replace(shapes=[("aeroplane", "line", line), ("background", "line", [[3.5, 40.5], [50.5, 40.5]])])
    ]
    source, words = write("scribblesup", tmp_path / "in", pictures)
    assert convert("scribblesup", source, tmp_path / "out", *words) == 0
    assert read_classes(str(tmp_path / "out/classes.txt"), 21).names == read_classes("voc", 21).names
    assert set(np.unique(scribble_of(tmp_path / "out", picture.name))) == {0, 1, 255}
    path = source / f"{picture.name}.xml"
    path.write_text(path.read_text().replace("<tag>plane</tag>", "<tag>grass</tag>"))  # of PASCAL-Context
    assert convert("scribblesup", source, tmp_path / "two", *words) == 0
    assert read_classes(str(tmp_path / "two/classes.txt"), None).names == ["background", "grass"]
    # The first pixel is (1, 1), and one that lies outside is cut off.
    path.write_text(path.read_text().replace("<X>6</X><Y>6</Y>", "<X>1</X><Y>1</Y>"))
    assert convert("scribblesup", source, tmp_path / "three", *words) == 0
    assert scribble_of(tmp_path / "three", picture.name)[0, 0] == 1


def xml(old: str, new: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path = root / "scribbles/picture_0.xml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return damage


@pytest.mark.parametrize(
    ("damage", "message", "is_kept"),
    [
        (lambda root: (root / "images/picture_0.png").unlink(), "'picture_0.png': not below", False),
        (lambda root: (root / "images/picture_0.png").write_bytes(b"x"), "not a whole, readable image", False),
        (lambda root: Image.new("RGB", (12, 10)).save(root / "images/picture_0.png"), "annotated as 61x47", False),
        (xml("</annotation>", ""), "picture_0.xml: not XML", False),
        (xml("<annotation>", "<annotation><object/>"), "no scribbles of ScribbleSup", False),
        (xml("<width>61</width>", ""), "height or width is missing", False),
        (xml("<height>47</height>", "<height>tall</height>"), "height or width is missing or not a number", False),
        (xml("<height>47</height>", "<height>0</height>"), "an image of 61x0 pixels", False),
        (xml("<tag>", "<tagg>"), "not XML", False),
        (xml("<X>", "<X>a"), "coordinates that are not numbers", False),
        (xml("<X>", "<X>nan</X><X>"), "not a finite number", False),
        (xml("<polygon>", "<polygon><tag> </tag></polygon><polygon>"), "polygon 1: it has no tag", False),
        (xml("<polygon>", "<polygon><tag>plane</tag></polygon><polygon>"), "0 point(s), but it needs at least 1", True),
        (xml("<filename>picture_0.png</filename>", "<filename>a.gif</filename>"), "not one of .jpg", False),
        (
            xml("<point>", "<point><X>900</X><Y>900</Y></point></polygon><polygon><tag>plane</tag><point>"),
            "covers no",
            True,
        ),
    ],
)
def test_damage_of_scribblesup_is_named_and_the_rest_is_written(tmp_path, damage, message, is_kept, capsys):
    pictures = rounded(draw_strokes(2, kinds="line"))
    source, words = write("scribblesup", tmp_path / "in", pictures)
    damage(tmp_path / "in")
    assert convert("scribblesup", source, tmp_path / "out", *words) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if "picture_0" in line]
    assert len(lines) == 1
    assert message in lines[0]
    written = sorted(path.stem for path in (tmp_path / "out/pascal_2012_scribble").iterdir())
    assert written == (["picture_0"] if is_kept else []) + ["picture_1"]
    assert read_list(tmp_path / "out/ImageSets/Segmentation/train.txt") == written


def test_a_repaired_file_is_added_and_names_in_other_lists_stay_there(tmp_path):
    source, _ = write("labelme", tmp_path / "in", draw_strokes(kinds="line"))
    good = (source / "picture_2.json").read_text()
    (source / "picture_2.json").write_text("{")
    words = ["--classes", str(tmp_path / "classes.txt")]
    (tmp_path / "classes.txt").write_text("\n".join(ORDER))
    assert convert("labelme", source, tmp_path / "out", *words) == 1
    lists = tmp_path / "out/ImageSets/Segmentation"
    (lists / "train.txt").write_text("picture_1\n")
    (lists / "val.txt").write_text("picture_0\n")
    (source / "picture_2.json").write_text(good)
    assert convert("labelme", source, tmp_path / "out", *words) == 0
    assert read_list(lists / "train.txt") == ["picture_1", "picture_2"]
    assert read_list(lists / "val.txt") == ["picture_0"]
    with pytest.raises(UserError, match="holds the result of another command"):
        convert("labelme", source, tmp_path / "out", *words, "--line_width", "5")


def test_a_list_that_was_being_written_when_the_command_was_killed_is_not_read(tmp_path):
    source, _ = write("labelme", tmp_path / "in", draw_strokes(2, kinds="line"))
    convert("labelme", source, tmp_path / "out")
    lists = tmp_path / "out/ImageSets/Segmentation"
    (lists / "train.txt").rename(lists / ".0123456789abcdef.part.txt")  # see files.writing()
    convert("labelme", source, tmp_path / "out")
    assert read_list(lists / "train.txt") == ["picture_0", "picture_1"]


def test_names_fit_into_a_list(tmp_path):
    """A list has a name on each line, without folder or space."""
    write("labelme", tmp_path / "in/night shift", draw_strokes(1, kinds="line"))
    assert convert("labelme", tmp_path / "in", tmp_path / "out") == 0
    assert read_list(tmp_path / "out/ImageSets/Segmentation/train.txt") == ["night_shift_picture_0"]
    assert (tmp_path / "out/JPEGImages/night_shift_picture_0.png").is_file()


def vector(tmp_path: Path, value: dict) -> np.ndarray:
    """Label Studio's vector of class person, drawn 2 pixels wide beside a brush stroke of another class."""
    brush = np.zeros((20, 20), bool)
    brush[19, 19] = True
    picture = Picture(
        "a", np.zeros((20, 20, 3), np.uint8), [("aeroplane", "brush", brush), ("person", "line", [[0, 0], [1, 1]])]
    )
    source = scribbled.write_labelstudio(tmp_path / "in", [picture])
    tasks = json.loads((source / "export.json").read_text())
    region = tasks[0]["annotations"][0]["result"][1]
    region["value"] = value | {"vectorlabels": ["person"]}
    (source / "export.json").write_text(json.dumps(tasks))
    status = convert("labelstudio", source, tmp_path / "out", "--line_width", "2")
    return scribble_of(tmp_path / "out", "a") == 1 if status == 0 else np.zeros(0)


def test_vectors_of_label_studio_may_branch_close_and_bend(tmp_path):
    """5 % of 20 pixels are 1 pixel."""
    (tmp_path / "1").mkdir()
    branched = scribbled.vertices([[50, 10], [50, 50], [10, 50], [90, 50]])
    branched[3]["prevPointId"] = "v1"
    expected = np.zeros((20, 20), bool)
    expected[9:11, 1:19] = True  # from (2, 10) to (18, 10): centres at most 1 from it; the round ends reach one more
    expected[1:10, 9:11] = True
    assert (vector(tmp_path / "1", {"vertices": branched, "closed": False}) == expected).all()

    square = scribbled.vertices([[10, 10], [60, 10], [60, 60], [10, 60]])
    expected = np.zeros((20, 20), bool)
    expected[2:12, 2:12] = True
    (tmp_path / "2").mkdir()
    assert (vector(tmp_path / "2", {"vertices": square, "closed": True}) == expected).all()

    # A curve from (2, 10) to (18, 10) whose control points are 8 pixels above: its highest point is 0.75 * 8 above.
    bent = scribbled.vertices([[10, 50], [90, 50]])
    bent[1] |= {"isBezier": True, "controlPoint1": {"x": 10, "y": 10}, "controlPoint2": {"x": 90, "y": 10}}
    (tmp_path / "3").mkdir()
    found = vector(tmp_path / "3", {"vertices": bent, "closed": False})
    assert np.flatnonzero(found[:, 10]).tolist() == [3, 4]
    assert not found[9, 5:15].any()


@pytest.mark.parametrize(
    "junk", [None, [], [{}], [{"id": "a", "x": 1}], [{"id": "a", "x": 1, "y": 1, "prevPointId": [1]}], "x"]
)
def test_vectors_that_are_none_are_named(tmp_path, junk, capsys):
    with pytest.raises(UserError, match="no image could be converted"):
        vector(tmp_path, {"vertices": junk, "closed": False})
    assert "task 0: region r1 (person): " in capsys.readouterr().err
