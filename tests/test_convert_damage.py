"""Damage of each format is named in one line, and what is good is written."""

import base64
import json
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import annotated
import annotated_masks
import numpy as np
import pytest
from annotated import Picture
from PIL import Image
from test_convert import convert, drawn, mask_of

from support.errors import UserError

SQUARE = [[2.0, 3.0], [20.0, 3.0], [20.0, 15.0], [2.0, 15.0]]
NOISE = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
PICTURES = [
    Picture(name, NOISE, [("cat", "polygon", SQUARE), ("dog", "mask", (5, 6, np.ones((4, 5), bool)))])
    for name in ("bad", "good")
]
NAN = float("nan")


def edit(path: str, change: Callable, *keys) -> Callable[[Path], None]:
    """A damage: replace the value at `keys` in a JSON file by change(value), or remove it if that is `...`."""

    def damage(root: Path) -> None:
        content = json.loads((root / path).read_text())
        inner = content
        for key in keys[:-1]:
            inner = inner[key]
        if not keys:
            content = change(content)
        elif (value := change(inner[keys[-1]] if isinstance(inner, list) else inner.get(keys[-1]))) is ...:
            del inner[keys[-1]]
        else:
            inner[keys[-1]] = value
        (root / path).write_text(json.dumps(content))

    return damage


def put(path: str, value, *keys) -> Callable[[Path], None]:
    return edit(path, lambda _: value, *keys)


def replace(path: str, old: str, new: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        text = (root / path).read_text()
        assert old in text
        (root / path).write_text(text.replace(old, new, 1))

    return damage


def truncate(path: str, share: float = 0.5) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        data = (root / path).read_bytes()
        (root / path).write_bytes(data[: int(len(data) * share)])

    return damage


def remove(path: str) -> Callable[[Path], None]:
    return lambda root: (root / path).unlink()


def save(path: str, pixels: np.ndarray, **options) -> Callable[[Path], None]:
    return lambda root: Image.fromarray(pixels).save(root / path, **options)


SMALL = np.zeros((10, 12, 3), np.uint8)
# Each damage of the entry "bad", what is said, and what becomes of it: "skip", "keep" (written without the shape, or
# with 255 in its place), or "stop" (status 2).
L = "bad.json"
LABELME = [
    (truncate("bad.png"), "not a whole, readable image", "skip"),
    (remove("bad.png"), "no such file|not below", "skip"),
    (save("bad.png", SMALL), "12x10", "skip"),
    (truncate(L), "not JSON", "skip"),
    (put(L, []), "'shapes' is missing", "skip"),
    (put(L, [[NAN, 1], [5, 1], [5, 9]], "shapes", 0, "points"), r"shape 1 \(cat\): a coordinate", "skip"),
    (put(L, [[1, 1], [5, 1]], "shapes", 0, "points"), "2 point.s., but it needs at least 3", "keep"),
    (put(L, [[1, 1, 1], [5, 1, 2]], "shapes", 0, "points"), "not pairs of x and y", "skip"),
    (put(L, [["a", 1], [5, 1], [2, 2]], "shapes", 0, "points"), "not numbers", "skip"),
    (put(L, [[90, 90], [95, 90], [95, 95]], "shapes", 0, "points"), "covers no pixel", "keep"),
    (put(L, "spline", "shapes", 0, "shape_type"), "shape_type 'spline'", "skip"),
    (put(L, ..., "shapes", 0, "label"), "'label' is missing", "skip"),
    (put(L, "####", "imageData"), "imageData that is not base64", "skip"),
    (put(L, base64.b64encode(b"no image").decode(), "imageData"), "no image of a known format", "skip"),
    (put(L, "AAAA", "shapes", 1, "mask"), "PNG is damaged", "skip"),
    (put(L, [[6, 5], [8, 8]], "shapes", 1, "points"), "in a box of another size", "skip"),
    (put(L, -5, "imageHeight"), "32x-5 pixels", "skip"),
]
C = "instances.json"
CUT = ("annotations", 1, "segmentation")
COCO = [
    (put(C, [], "categories"), "'categories' is empty", "stop"),
    (put(C, ..., "annotations"), "'annotations' is missing", "stop"),
    (put(C, 555, "annotations", 0, "image_id"), "image_id 555 is not in 'images'", "keep"),
    (put(C, 99, "annotations", 0, "category_id"), "class 'category_id 99': not in the list", "keep"),
    (put(C, "text", "annotations", 0), "'image_id' is missing", "keep"),
    (put(C, [[1, 1, 5, 1, 5]], "annotations", 0, "segmentation"), "not a list of x, y", "skip"),
    (put(C, [[1, 1, 5, 1]], "annotations", 0, "segmentation"), "polygon 1: 2 point", "keep"),
    (put(C, [], "annotations", 0, "segmentation"), "a box alone is no mask", "skip"),
    (put(C, [24 * 32 - 1], *CUT, "counts"), "run lengths of 767 pixels", "skip"),
    (put(C, "12~~", *CUT, "counts"), "no character of COCO's compressed RLE", "skip"),
    (put(C, "1o", *CUT, "counts"), "is cut off", "skip"),
    (put(C, [32, 24], *CUT, "size"), r"an RLE of size \[32, 24\]", "skip"),
    (put(C, "other.gif", "images", 0, "file_name"), "not one of .jpg", "skip"),
    (put(C, 101, "images", 0, "id"), "id 101 is there twice in 'images': both are skipped", "stop"),
]
X = "annotations.xml"
CVAT = [
    (truncate(X), "not XML", "stop"),
    (replace(X, "<image", "<track/><image"), "not 'CVAT for images 1.1'", "stop"),
    (replace(X, ' width="32"', ""), "'?width'? is missing", "skip"),
    (replace(X, 'name="bad.png"', ""), "image 0: it has no name", "skip"),
    (replace(X, "2.0,3.0;", "2.0;"), "coordinates that are not", "skip"),
    (replace(X, '<polygon label="cat"', "<polygon"), "it has no label", "skip"),
    (replace(X, 'rle="0, 20"', 'rle="0, 21"'), "run lengths of 21 pixels in all, but the mask has 20", "skip"),
    (replace(X, 'rle="0, 20"', 'rle=""'), "an empty mask", "skip"),
    (replace(X, 'left="6"', 'left="600"'), "outside the image", "skip"),
    (replace(X, 'left="6"', ""), "left is missing", "skip"),
    (replace(X, 'z_order="0"', 'z_order="top"'), "z_order is missing or not a number", "skip"),
    (replace(X, "<polygon", "<cuboid/><polygon"), "it has a cuboid", "skip"),
]
S = "export.json"
RESULT = (0, "annotations", 0, "result")
LABELSTUDIO = [
    (put(S, {"tasks": []}), "not a list of tasks", "stop"),
    (put(S, "task", 0), "task 0: 'annotations' is missing", "skip"),
    (put(S, {"image": "bad.png", "label": []}, 0), "not as JSON-MIN", "skip"),
    (put(S, [], 0, "annotations"), "it is not annotated", "skip"),
    (put(S, True, 0, "annotations", 0, "was_cancelled"), "it is not annotated", "skip"),
    (put(S, ..., *RESULT, 0, "value", "polygonlabels"), "it has no label", "skip"),
    (edit(S, lambda rle: rle[:9], *RESULT, 1, "value", "rle"), "the brush RLE is cut off", "skip"),
    (edit(S, lambda rle: [0, 0, 0, 8, *rle[4:]], *RESULT, 1, "value", "rle"), "of 8 values of 8 bits", "skip"),
    (put(S, [300], *RESULT, 1, "value", "rle"), "not a list of bytes", "skip"),
    (put(S, 90, *RESULT, 0, "image_rotation"), "turned by 90 degrees", "skip"),
    (put(S, 99, *RESULT, 0, "original_width"), "images of several sizes", "skip"),
    (put(S, {"text": "none"}, 0, "data"), "'data' names 0 images", "skip"),
]
A = "ds0/ann/bad.png.json"
BITMAP = ("objects", 1, "bitmap")
SUPERVISELY = [
    (remove("ds0/img/bad.png"), "no such file", "skip"),
    (remove("meta.json"), "no such file", "stop"),
    (truncate("meta.json"), "not JSON", "stop"),
    (remove(A), "bad.png: no annotation", "skip"),
    (put(A, ..., "size"), "'size' is missing", "skip"),
    (put(A, "bird", "objects", 0, "classTitle"), "class 'bird': not in the list", "keep"),
    (put(A, [[[1, 1], [5, 1]]], "objects", 0, "points", "interior"), "interior: 2 point", "keep"),
    (put(A, "graph", "objects", 0, "geometryType"), "geometryType 'graph' has no area", "skip"),
    (put(A, "%%%", *BITMAP, "data"), "not a PNG in base64", "skip"),
    (put(A, base64.b64encode(zlib.compress(b"raw")).decode(), *BITMAP, "data"), "PNG is damaged", "skip"),
    (put(A, [900, 5], *BITMAP, "origin"), "outside the image", "skip"),
    (put(A, [], "objects", 0, "points"), "'points' is missing", "skip"),
]
CASES = {"labelme": LABELME, "coco": COCO, "cvat": CVAT, "labelstudio": LABELSTUDIO, "supervisely": SUPERVISELY}


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("undamaged")
    return {kind: write(folder / kind, kind) and folder / kind for kind in CASES}


def write(folder: Path, kind: str) -> Path:
    return getattr(annotated_masks if kind == "supervisely" else annotated, f"write_{kind}")(folder, PICTURES)


def check_damage(
    kind: str, source: Path, out: Path, message: str, fate: str, good: np.ndarray, capsys, words=()
) -> None:
    """Convert damaged data: the message is the only line, and the entry "good" is written as it should be."""
    if fate == "stop":
        with pytest.raises(UserError) as error:
            convert(kind, source, out, *words)
        assert re.search(message, f"{error.value} {capsys.readouterr().err}")
        assert not out.exists()
        return
    assert convert(kind, source, out, *words) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line and "converting" not in line]
    assert len(lines) == 1, lines
    assert re.search(message, lines[0])
    prefix = "ds0/" if kind == "supervisely" else ""
    assert (mask_of(out, f"{prefix}good") == good).all()
    for folder in ("masks", "images"):
        assert (out / folder / f"{prefix}bad.png").exists() == (fate == "keep")


@pytest.mark.parametrize(
    ("kind", "damage", "message", "fate"), [(kind, *case) for kind, cases in CASES.items() for case in cases]
)
def test_damage_is_named_and_the_rest_is_written(tmp_path, undamaged, kind, damage, message, fate, capsys):
    shutil.copytree(undamaged[kind], tmp_path / "in")
    damage(tmp_path / "in")
    source = tmp_path / "in" / ("instances.json" if kind == "coco" else "")
    check_damage(kind, source, tmp_path / "out", message, fate, expected(kind), capsys)


def expected(kind: str) -> np.ndarray:
    label = drawn(PICTURES[1])
    if kind == "supervisely":  # outlines included
        label[3:16, 2:21] = np.where(label[3:16, 2:21] == 2, 2, 1)
    return label
