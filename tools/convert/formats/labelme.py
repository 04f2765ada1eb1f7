"""LabelMe's JSON files, one for each image, or the XML files of its old web tool.

Format: https://github.com/wkentaro/labelme, labelme/_label_file.py and labelme/utils/shape.py. A file has `shapes`,
`imagePath`, relative to the file, `imageData` (the image in base64, or null), `imageHeight` and `imageWidth`. A shape
has `label`, `points` [[x, y], ...] in pixels and `shape_type`: polygon, rectangle (two corners), circle (centre and a
point on it), oriented_rectangle (four corners), line, linestrip, point, or mask (two corners, and a PNG in base64).
The web tool (https://github.com/CSAILVision/LabelMeAnnotationTool) writes an `annotation` with `filename`, `imagesize`
(`nrows`, `ncols`) and an `object` for each polygon: `name`, `deleted` (0 or 1), and `polygon` with `pt` of `x` and `y`.
"""

import base64
import binascii
import os
from pathlib import Path
from typing import Any

import numpy as np

from data.images import IMAGE_SUFFIXES
from data.layout import list_folder
from support.errors import InputError
from tools.convert import polygons
from tools.convert.polygons import Patch, read_points
from tools.convert.reading import (
    ImageFinder,
    annotation_files,
    decode_png,
    output_name,
    place,
    read_json,
    read_xml,
    size_of,
    value_of,
)
from tools.convert.source import Entry, Options, Shape, Source, collect

LEAST_POINTS = {"rectangle": 2, "circle": 2, "line": 2, "linestrip": 2, "point": 1, "mask": 2, "oriented_rectangle": 4}
MAGIC = {  # how a file of each suffix begins
    b"\x89PNG": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
    b"RIFF": ".webp",
}


def read(source: Path, options: Options) -> Source:
    """Return the images and classes of a folder of LabelMe files, or of one file."""
    result = Source()
    root = source if source.is_dir() else source.parent
    finder = ImageFinder([root], options.images)

    def read_one(path: Path) -> Entry:
        content = read_json(path) if path.suffix.lower() == ".json" else _read_xml(path)
        shapes = []
        for number, shape in enumerate(value_of(content, "shapes", list, str(path)), 1):
            label = value_of(shape, "label", str, str(path))
            shapes.append(Shape(label, f"{path}: shape {number} ({label})", shape))
        name = output_name(path.relative_to(root).as_posix().removeprefix("Annotations/"))  # the web tool's folder
        size = size_of(content, "imageHeight", "imageWidth", str(path)) if content.get("imageHeight") else None
        if content.get("imageData"):
            return Entry(name, str(path), path, shapes, size, embedded_image)
        return Entry(name, str(path), _find_image(path, content, finder), shapes, size)

    result.entries += collect(read_one, annotation_files(source, ".json", ".xml"), result.faults)
    result.names = sorted(result.shape_names())
    used = {entry.image.resolve() for entry in result.entries}
    images = [path for paths in list_folder(root, IMAGE_SUFFIXES).values() for path in paths] if source.is_dir() else []
    labelled = [path for path in images if any(path.with_suffix(suffix).is_file() for suffix in (".json", ".xml"))]
    without = [path for path in images if path.resolve() not in used and path not in labelled]
    if without:
        result.notes.append(f"{len(without)} image(s) have no LabelMe file, such as {without[0]}: left out")
    return result


def _read_xml(path: Path) -> dict[str, Any]:
    """Return what the JSON file of the same polygons has."""
    content = read_xml(path)
    shapes = [
        {
            "label": item.findtext("name", "").strip(),
            "points": [[point.findtext("x", ""), point.findtext("y", "")] for point in item.findall("polygon/pt")],
        }
        for item in content.findall("object")
        if item.findtext("deleted", "0").strip() != "1"
    ]
    if content.tag != "annotation" or any(not shape["label"] or not shape["points"] for shape in shapes):
        raise InputError(f"{path}: not LabelMe's XML: expected <annotation> with <object>: <name> and <polygon>")
    size = [content.findtext(f"imagesize/{key}", "").strip() for key in ("nrows", "ncols")]
    height, width = (int(side) if side.isdecimal() else 0 for side in size)
    reference = content.findtext("filename", "").strip()
    return {"shapes": shapes, "imagePath": reference, "imageHeight": height, "imageWidth": width}


def _find_image(path: Path, content: dict, finder: ImageFinder) -> Path:
    """Return the image of a file without imageData: at imagePath from the file's folder, or below the root."""
    reference = value_of(content, "imagePath", str, str(path)).replace("\\", "/")
    beside = Path(os.path.abspath(path.parent / reference))
    inside = any(beside.is_relative_to(os.path.abspath(root)) for root in finder.roots)
    if inside and beside.is_file() and beside.suffix.lower() in IMAGE_SUFFIXES:
        return beside
    return finder.find(reference, str(path))


def embedded_image(path: Path) -> tuple[bytes, str]:
    """Return (image file, suffix) that a LabelMe file has in imageData. Raises InputError if it is none."""
    try:
        data = base64.b64decode(value_of(read_json(path), "imageData", str, str(path)), validate=True)
    except (binascii.Error, ValueError):
        raise InputError(f"{path}: imageData that is not base64") from None
    suffix = next((suffix for magic, suffix in MAGIC.items() if data.startswith(magic)), "")
    if not suffix:
        raise InputError(f"{path}: imageData is no image of a known format")
    return data, suffix


def patch(shape: dict, where: str, size: tuple[int, int], options: Options, faults: list[str]) -> Patch:
    """Return the pixels of a shape."""
    kind = str(shape.get("shape_type") or "polygon")
    points = read_points(shape.get("points"), LEAST_POINTS.get(kind, 3), where)
    if kind in ("polygon", "rectangle", "oriented_rectangle"):
        # LabelMe limits points to about size - 1, but its masks have the last row and column: move those to the border.
        in_last = (points >= np.array(size[::-1]) - 1) & (points < size[::-1]) & (points > points.min(axis=0))
        points = np.where(in_last, size[::-1], points)
    if kind in ("polygon", "oriented_rectangle"):
        return polygons.fill([points], size)
    if kind == "rectangle":
        return polygons.fill([polygons.rectangle(*points[0], *points[1])], size)
    if kind == "circle":
        radius = float(np.hypot(*(points[1] - points[0])))
        return polygons.ellipse(tuple(points[0]), (radius, radius), size)
    if kind in ("line", "linestrip", "point"):
        return polygons.stroke(points, options.line_width, size)
    if kind == "mask":
        mask = decode_png(value_of(shape, "mask", str, where), where)
        (left, top), (right, bottom) = np.trunc(points[:2]).astype(int)
        if mask.shape != (bottom - top + 1, right - left + 1):
            raise InputError(f"{where}: a mask of {mask.shape[1]}x{mask.shape[0]} pixels in a box of another size")
        return place(mask, int(top), int(left), size, where)
    raise InputError(f"{where}: shape_type {kind!r} is not known")
