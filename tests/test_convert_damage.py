"""Damage of each format is named in one line, and what is good is written."""

import base64
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import annotated
import numpy as np
import pytest
from annotated import Picture
from faulty_data import exif, remove, save, truncate, write
from PIL import Image
from test_convert import convert, drawn, mask_of

from support.errors import UserError
from tools.convert.formats import coco, labelme
from tools.convert.source import Source

SQUARE = [[2.0, 3.0], [20.0, 3.0], [20.0, 15.0], [2.0, 15.0]]
NOISE = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
PICTURES = [
    Picture(name, NOISE, [("cat", "polygon", SQUARE), ("dog", "mask", (5, 6, np.ones((4, 5), bool)))])
    for name in ("bad", "good")
]
POLYGONS = [picture._replace(shapes=picture.shapes[:1]) for picture in PICTURES]


def put(path: str, value, *keys) -> Callable[[Path], None]:
    """A damage: replace the value at `keys` in a JSON file."""

    def damage(root: Path) -> None:
        content = [json.loads((root / path).read_text())]
        inner = content
        for key in (0, *keys)[:-1]:
            inner = inner[key]
        inner[(0, *keys)[-1]] = value
        (root / path).write_text(json.dumps(content[0]))

    return damage


def replace(path: str, old: str, new: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        text = (root / path).read_text()
        assert old in text
        (root / path).write_text(text.replace(old, new, 1))

    return damage


def copy(path: str, target: str) -> Callable[[Path], None]:
    return lambda root: shutil.copy(root / path, root / target)


def swap_sides(root: Path, turn: int) -> None:
    """Swap the sides of an image in COCO's file, or those of the image by the EXIF orientation `turn`."""
    path = next(root.rglob("bad.*"))
    Image.open(path).save(path, exif=exif(turn))
    for key, value in (("width", 24), ("height", 32)) if turn == 1 else ():
        put(C, value, "images", 0, key)(root)


def both(one: Callable[[Path], object], other: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda root: (one(root), other(root))


SMALL = np.zeros((10, 12, 3), np.uint8)
RAMP = np.arange(24 * 32, dtype=np.uint32).reshape(24, 32)
MANY = np.stack([RAMP % 256, RAMP // 256, RAMP * 0 + 9], axis=2).astype(np.uint8)
HUGE = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (60000).to_bytes(4, "big") * 2 + b"\x08\0\0\0\0"
HUGE_PNG = base64.b64encode(HUGE).decode()
DEEP: list = []
for _ in range(90):
    DEEP = [DEEP]
L = "bad.json"
EMBEDDED = both(remove("bad.png"), put(L, base64.b64encode(b"\x89PNG broken").decode(), "imageData"))


def points(values: list, shape: int = 0) -> Callable[[Path], None]:
    return put(L, values, "shapes", shape, "points")


# Each damage of the entry "bad", what is said, and what becomes of it: "skip", "keep" (written without the shape, or
# with 255 in its place), "lost" (skipped, and so is each of its shapes by a line), or "stop" (status 2).
LABELME = [
    (truncate("bad.png"), "not a whole, readable image", "skip"),
    (remove("bad.png"), "not below", "skip"),
    (EMBEDDED, r"bad\.json: imageData: not a whole, readable image", "skip"),
    (save("bad.png", SMALL), "12x10", "skip"),
    (truncate(L), "not JSON", "skip"),
    (put(L, []), "'shapes' is missing", "skip"),
    (points([[float("nan"), 1], [5, 1], [5, 9]]), r"shape 1 \(cat\): a coordinate", "skip"),
    (points([[1, 1], [5, 1]]), r"1 shape\(s\) cover no pixel .* shape 1 \(cat\): left out", "keep"),
    (put(L, "spline", "shapes", 0, "shape_type"), "shape_type 'spline'", "skip"),
    (points([[6, 5], [8, 8]], 1), "in a box of another size", "skip"),
    (put(L, -5, "imageHeight"), "32x-5 pixels", "skip"),
    # Sizes and numbers are compared before memory is taken
    (put(L, HUGE_PNG, "shapes", 1, "mask"), "a mask of 60000x60000 pixels in a box of another size", "skip"),
    (points([[0, 0], [59999, 59999]], 1), "60000x60000 pixels in an image of 32x24", "skip"),
    (points([[10**400, 1], [5, 1], [5, 9]]), "coordinates that are not numbers", "skip"),
    (points(DEEP), "coordinates that are not", "skip"),
    (points([[True, 1], [5, 1], [5, 9]]), "coordinates that are not numbers", "skip"),
    (points([["1_0", 1], [5, 1], [5, 9]]), "coordinates that are not numbers", "skip"),
    (put(L, True, "imageHeight"), "height or width is missing or not a number", "skip"),
    (write(L, "狗", "gbk"), "not UTF-8 text: save it as UTF-8", "skip"),
    (replace(L, '"imageHeight": 24', f'"imageHeight": {"1" * 5000}'), "32xnan pixels", "skip"),
]
C = "instances.json"
CUT = ("annotations", 1, "segmentation")
OUTLINE = ("annotations", 0, "segmentation")
FRACTIONS = both(put(C, [[0.1, 0.1, 0.9, 0.1, 0.9, 0.9]], *OUTLINE), put(C, [10, 10, 40, 40], "annotations", 0, "bbox"))
COCO = [
    (put(C, [], "categories"), "'categories' is empty", "stop"),
    (put(C, 555, "annotations", 0, "image_id"), "image_id 555 is not in 'images'", "keep"),
    (put(C, 99, "annotations", 0, "category_id"), "class 'category_id 99': not in the list", "keep"),
    (put(C, [[1, 1, 5, 1, 5]], *OUTLINE), "not a list of x, y", "skip"),
    (put(C, [], *OUTLINE), "a box alone is no mask", "skip"),
    (put(C, [[1, 1, 5, 1]], *OUTLINE), "cover no pixel", "keep"),
    (put(C, [24 * 32 - 1], *CUT, "counts"), "run lengths of 767 pixels", "skip"),
    (put(C, [True, 24 * 32 - 1], *CUT, "counts"), "run lengths that are not whole numbers", "skip"),
    (put(C, [0.5, 24 * 32 - 0.5], *CUT, "counts"), "a run length of 0.5 pixels", "skip"),
    (put(C, None, "annotations", 0, "image_id"), "'image_id' is missing or invalid", "keep"),
    (put(C, "12~~", *CUT, "counts"), "no character of COCO's compressed RLE", "skip"),
    (put(C, "1o", *CUT, "counts"), "is cut off", "skip"),
    (put(C, 101, "images", 0, "id"), "id 101 occurs twice in 'images'", "stop"),
    (lambda root: swap_sides(root, 1), "annotated as 24x32 .* has 32x24 .width and height are swapped", "skip"),
    (lambda root: swap_sides(root, 6), "annotated as 32x24 .* has 24x32 .EXIF turns the image", "skip"),
    (put(C, "yes", "annotations", 0, "iscrowd"), "iscrowd 'yes': must be 0 or 1", "skip"),
    (put(C, [0], "annotations", 0, "iscrowd"), r"iscrowd \[0\]: must be 0 or 1", "skip"),
    (FRACTIONS, "span 0.8 pixels, but its bbox 40", "skip"),
    (put(C, "x", "images", 0), r"images\[0\]: 'id' is missing or invalid", "lost"),
    (put(C, 1, "categories", 1, "id"), "'categories' has one id twice", "stop"),
    (put(C, [], "annotations"), "'annotations' is empty, so no object is labelled", "stop"),
    # Their sum is 768 in int64, by overflow.
    (put(C, [2**62, 2**62, 2**62, 2**62 - 1, 769], *CUT, "counts"), "run lengths of 184467440737095", "skip"),
    (put(C, "o" * 200_000, *CUT, "counts"), "a number of more than 60 bits", "skip"),
    (replace(C, '"category_id": 1,', f'"category_id": {"1" * 5000},'), "'category_id' is missing or invalid", "skip"),
]
X = "annotations.xml"
CVAT = [
    (replace(X, "<image", "<track/><image"), "not 'CVAT for images 1.1'", "stop"),
    (replace(X, ' width="32"', ""), "width is missing", "skip"),
    (replace(X, "2.0,3.0;", "2.0;"), "coordinates that are not", "skip"),
    (replace(X, 'rle="0, 20"', 'rle="0, 21"'), "run lengths of 21 pixels in all, but the mask has 20", "skip"),
    (replace(X, 'rle="0, 20"', 'rle="-4, 24"'), "a run length of -4 pixels", "skip"),
    (replace(X, ' width="32"', ' width="3_2"'), "width is missing or not a number", "skip"),
    (replace(X, 'z_order="0"', 'z_order="top"'), "z_order is missing or not a number", "skip"),
    (replace(X, "<polygon", '<cuboid label="cat"/><polygon'), "this kind of shape is not read", "skip"),
    (replace(X, "<polygon", '<points label="cat" points="1,2"/><polygon'), r"points \(cat\): .* no area: left", "keep"),
    (replace(X, "<polygon", '<skeleton label="cat"/><polygon'), "this kind of shape has no area: left out", "keep"),
    (replace(X, 'top="5" width="5"', 'top="5" width="9e6"'), "a mask of 9000000x4 pixels, but", "skip"),
    (replace(X, "<annotations>", '<!DOCTYPE a [<!ENTITY b "c">]><annotations>'), "defines XML entities", "stop"),
    # It would hide the declaration of entities, which can stand for gigabytes of text.
    (write(X, "<?xml version='1.0' encoding='UTF-16'?><annotations/>", "utf-16"), "not UTF-8", "stop"),
]
M = "masks/bad.png"
COLOURS = [
    (copy("images/good.png", "images/bad.bmp"), "two files of one name", "skip"),
    (remove("images/bad.png"), "a mask without an image", "skip"),
    (remove(M), "an image without a mask: expected", "skip"),
    (save(M, SMALL), "12x10 pixels, but the image has 32x24", "skip"),
    (lambda root: (root / M).rename(root / "masks/bad.jpg"), "JPEG compression changes label values", "skip"),
    (save(M, MANY), "768 colours, as smoothing or JPEG leave them", "skip"),
]
LINE = "0 0.1 0.2 0.3 0.4 0.5 0.6\n"
YOLO = [
    (write("labels/bad.txt", text), message, "skip")
    for text, message in (
        (f"\n{LINE}\n\n0 0.5 0.5 0.1 0.1\n", r"bad\.txt line 5: a box, which has no outline"),
        ("0 0.1 0.2 0.3 0.4 0.5\n", r"bad\.txt line 1: expected a class number, then x y of each point"),
        (LINE.replace("0 ", "cat ", 1), r"bad\.txt line 1: expected a class number"),
        (LINE.replace("0 ", f"{'1' * 5000} ", 1), r"bad\.txt line 1: expected a class number"),
        (LINE.replace("0.1", "0.1_2"), r"bad\.txt line 1 \(cat\): coordinates that are not numbers"),
        (LINE.replace("0.1", "x"), r"bad\.txt line 1 \(cat\): coordinates that are not numbers"),
        ("0 10 20 30 40 50 60\n", "coordinates must be fractions of the image's width and height"),
    )
]
CASES = {"labelme": LABELME, "coco": COCO, "cvat": CVAT, "colours": COLOURS, "yolo": YOLO}


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("undamaged")
    annotated.write_colours(folder / "colours", PICTURES, drawn)
    (folder / "colours/classes.txt").write_text("background #000000\ncat #c8000a\ndog #00dc1e\n")
    for kind in ("labelme", "coco", "cvat", "yolo"):
        getattr(annotated, f"write_{kind}")(folder / kind, POLYGONS if kind == "yolo" else PICTURES)
    return {kind: folder / kind for kind in CASES}


@pytest.mark.parametrize(
    ("kind", "damage", "message", "fate"), [(kind, *case) for kind, cases in CASES.items() for case in cases]
)
def test_damage_is_named_and_the_rest_is_written(tmp_path, undamaged, kind, damage, message, fate, capsys):
    """The message is the only line, and the entry "good" is written as it should be."""
    shutil.copytree(undamaged[kind], tmp_path / "in")
    damage(tmp_path / "in")
    source, out = tmp_path / "in" / ("instances.json" if kind == "coco" else ""), tmp_path / "out"
    if fate == "stop":
        with pytest.raises(UserError) as error:
            convert(kind, source, out)
        assert re.search(message, f"{error.value} {capsys.readouterr().err}")
        assert not out.exists()
        return
    assert convert(kind, source, out) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line and "converting" not in line]
    assert len(lines) == 1 + 2 * (fate == "lost"), lines
    assert re.search(message, lines[0])
    assert (mask_of(out, "good") == drawn((POLYGONS if kind == "yolo" else PICTURES)[1])).all()
    for folder in ("masks", "images"):
        assert (out / folder / "bad.png").exists() == (fate == "keep")


def test_a_polygon_of_coco_may_lie_anywhere_if_its_box_agrees():
    annotation = {"image_id": 1, "category_id": 1, "segmentation": [[205, 20, 20, 5, 20, 5]], "bbox": [20, 5, 185, 15]}
    assert coco._read_shapes({"annotations": [annotation]}, Path("a"), {1: "cat"}, {1: {}}, Source(Path("a"), None))


@pytest.mark.parametrize("image", [1.5, None, 7])
def test_an_image_is_no_background_if_the_image_of_an_annotation_is_unknown(image):
    box = {"category_id": 1, "segmentation": [[1, 1, 9, 1, 9, 9]]}
    result = Source(Path("a"), None)
    content = {"annotations": [box | {"image_id": 1}, box | {"image_id": image}]}
    assert coco._read_shapes(content, Path("a"), {1: "cat"}, {1: {}, 2: {}, 3: {}}, result).keys() == {1}
    assert "2 image(s) without an object, such as image 2: left out" in result.faults[1]


def test_a_labelme_rectangle_of_four_points_is_their_polygon():
    shape = {"shape_type": "rectangle", "points": [[5, 5], [25, 5], [25, 25], [5, 25]]}  # as X-AnyLabeling writes it
    assert labelme.patch(shape, "a", (40, 60), 1.0).mask.sum() == 400  # 20 x 20
