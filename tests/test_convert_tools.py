"""Masks equal those of the annotation tools' own libraries, where these are installed; they are no dependency."""

import json
from pathlib import Path

import annotated
import numpy as np
import pytest
from annotated import Picture, draw_pictures
from test_convert import NUMBERS, convert, mask_of

SIZE = (47, 61)


def random_masks(number: int = 12) -> list[np.ndarray]:
    """Noise, blocks, all, nothing, and a column."""
    rng = np.random.default_rng(1)
    masks = [rng.random(SIZE) < share for share in np.linspace(0.01, 0.99, number)]
    masks += [np.kron(rng.random((6, 8)) < 0.5, np.ones((8, 8)))[:47, :61] > 0 for _ in range(number)]
    return [*masks, np.ones(SIZE, bool), annotated.whole(SIZE, 0, 7, np.ones((47, 1), bool))]


def near_outlines(picture: Picture, most: float) -> np.ndarray:
    """Pixels whose centre is at most `most` pixels from the outline of a shape."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    near = np.zeros(SIZE, bool)
    for _, kind, data in picture.shapes:
        if kind == "circle":
            near |= np.abs(np.hypot(x - data[0], y - data[1]) - data[2]) <= most
            continue
        points = np.array(data) if kind == "polygon" else np.array(data)[[[0, 1], [2, 1], [2, 3], [0, 3]]]
        for start, end in zip(points, np.roll(points, -1, axis=0), strict=True):
            step = end - start
            along = np.clip(((x - start[0]) * step[0] + (y - start[1]) * step[1]) / (step @ step), 0, 1)
            near |= np.hypot(x - start[0] - along * step[0], y - start[1] - along * step[1]) <= most
    return near


def test_coco_rle_equals_pycocotools(tmp_path):
    tools = pytest.importorskip("pycocotools.mask")
    for number, mask in enumerate(random_masks()):
        check_coco(tmp_path / str(number), tools, mask)


def check_coco(tmp_path: Path, tools, mask: np.ndarray) -> None:
    tmp_path.mkdir()
    source = annotated.write_coco(tmp_path / "in", [Picture("a", np.zeros((*SIZE, 3), np.uint8), [])])
    content = json.loads(source.read_text())
    encoded = tools.encode(np.asfortranarray(mask.astype(np.uint8)))
    segmentation = {"size": list(SIZE), "counts": encoded["counts"].decode()}
    content["annotations"] = [{"image_id": 100, "category_id": 8, "iscrowd": 0, "segmentation": segmentation}]
    source.write_text(json.dumps(content))
    assert convert("coco", source, tmp_path / "out") == 0
    assert ((mask_of(tmp_path / "out", "a") == 2) == mask).all()
    assert segmentation["counts"] == annotated.compress(annotated.runs(mask.T))  # the tests' own encoder


def test_coco_polygons_equal_pycocotools_away_from_outlines(tmp_path):
    tools = pytest.importorskip("pycocotools.mask")
    pictures = draw_pictures(40, kinds="polygon", seed=4)
    convert("coco", annotated.write_coco(tmp_path / "in", pictures), tmp_path / "out")
    for picture in pictures:
        label = np.zeros(SIZE, np.uint8)
        for name, _, points in picture.shapes:
            flat = [value for point in points for value in point]
            label[tools.decode(tools.frPyObjects([flat], *SIZE))[:, :, 0] > 0] = NUMBERS[name]
        differ = label != mask_of(tmp_path / "out", picture.name)
        assert not (differ & ~near_outlines(picture, 0.5)).any()


def test_label_studio_brush_equals_its_converter(tmp_path):
    brush = pytest.importorskip("label_studio_converter.brush")
    for number, mask in enumerate(random_masks()):
        check_brush(tmp_path / str(number), brush, mask)


def check_brush(tmp_path: Path, brush, mask: np.ndarray) -> None:
    tmp_path.mkdir()
    source = annotated.write_labelstudio(
        tmp_path / "in", [Picture("a", np.zeros((*SIZE, 3), np.uint8), [("cat", "mask", (0, 0, mask))])]
    )
    tasks = json.loads((source / "export.json").read_text())
    value = tasks[0]["annotations"][0]["result"][0]["value"]
    own = brush.decode_rle(value["rle"])  # the tests' own encoder
    assert (own.reshape(*SIZE, 4)[:, :, 3] == mask * 255).all()
    value["rle"] = brush.mask2rle(mask.astype(np.uint8) * 255)
    (source / "export.json").write_text(json.dumps(tasks))
    assert convert("labelstudio", source, tmp_path / "out") == 0
    assert (mask_of(tmp_path / "out", "a") == mask).all()


def test_cvat_masks_equal_its_sdk(tmp_path):
    masks = pytest.importorskip("cvat_sdk.masks")
    for number, mask in enumerate(random_masks()):
        check_cvat(tmp_path / str(number), masks, mask)


def check_cvat(tmp_path: Path, masks, mask: np.ndarray) -> None:
    tmp_path.mkdir()
    *counts, x0, y0, x1, y1 = masks.encode_mask(mask)
    source = annotated.write_cvat(tmp_path / "in", [Picture("a", np.zeros((*SIZE, 3), np.uint8), [])])
    shape = f'<mask label="dog" rle="{", ".join(map(str, counts))}" left="{x0}" top="{y0}" '
    shape += f'width="{x1 - x0 + 1}" height="{y1 - y0 + 1}" z_order="0"/>'
    path = source / "annotations.xml"
    path.write_text(path.read_text().replace("</image>", f"{shape}</image>"))
    assert convert("cvat", source, tmp_path / "out") == 0
    assert ((mask_of(tmp_path / "out", "a") == 2) == mask).all()


def test_labelme_equals_its_own_drawing_away_from_outlines(tmp_path):
    utils = pytest.importorskip("labelme.utils")
    pictures = draw_pictures(40, kinds="polygon box circle", seed=6)
    convert("labelme", annotated.write_labelme(tmp_path / "in", pictures), tmp_path / "out")
    for picture in pictures:
        shapes = json.loads(Path(tmp_path / f"in/{picture.name}.json").read_text())["shapes"]
        label, _ = utils.shapes_to_label(SIZE, shapes, NUMBERS)
        differ = label != mask_of(tmp_path / "out", picture.name)
        assert not (differ & ~near_outlines(picture, 2)).any()  # LabelMe rounds, and draws the outline, too
    masks = draw_pictures(3, kinds="mask", seed=6)
    convert("labelme", annotated.write_labelme(tmp_path / "in2", masks), tmp_path / "out2")
    for picture in masks:
        shapes = json.loads(Path(tmp_path / f"in2/{picture.name}.json").read_text())["shapes"]
        for shape, (_, _, (_, _, mask)) in zip(shapes, picture.shapes, strict=True):
            shape["mask"] = mask
        label, _ = utils.shapes_to_label(SIZE, shapes, NUMBERS)
        assert (label == mask_of(tmp_path / "out2", picture.name)).all()
