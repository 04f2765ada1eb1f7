"""A Supervisely project: meta.json, and in each data set the folders img and ann.

Format: https://developer.supervisely.com/getting-started/supervisely-annotation-format. DATASET/ann/NAME.jpg.json has
`size` and `objects` with classTitle, geometryType and points {"exterior", "interior"} or bitmap {"origin", "data"},
a PNG packed by zlib in base64. Points are [column, row] of pixels, so that the pixels of an outline belong to the
object, as in Supervisely's own code (supervisely/geometry/polygon.py, which calls cv2.fillPoly): the exterior is
filled with its outline, then each interior is cleared with its outline.
"""

from functools import partial
from pathlib import Path

import cv2
import numpy as np

from data.images import IMAGE_SUFFIXES
from data.layout import list_folder
from support.errors import InputError, UserError
from tools.convert import polygons
from tools.convert.polygons import FewPointsError, Patch, read_points
from tools.convert.reading import (
    colour_of,
    decode_png,
    output_name,
    place,
    read_json,
    size_of,
    value_of,
)
from tools.convert.source import Entry, Options, Shape, Source, collect


def read(source: Path, options: Options) -> Source:
    """Return the images and classes of a project. Raises UserError if the folder is none."""
    meta = source / "meta.json"
    if not meta.is_file():
        raise UserError(f"{meta}: no such file: name the folder of a Supervisely project")
    result = Source()
    for item in value_of(read_json(meta), "classes", list, str(meta)):
        name = value_of(item, "title", str, str(meta))
        result.names.append(name)
        if colour := colour_of(item.get("color")):
            result.colours[name] = colour
    folders = sorted(path.parent for path in source.glob("**/ann") if path.is_dir())
    if not folders:
        raise UserError(f"{source}: no folder with ann and img in it")
    for folder in folders:
        images = options.images / folder.relative_to(source) if options.images else folder / "img"
        paths = {
            images / path.stem: path for path in sorted((folder / "ann").glob("*.json"))
        }  # NAME.jpg of NAME.jpg.json
        result.entries += collect(partial(_entry, source), paths.items(), result.faults)
        for found in list_folder(images, IMAGE_SUFFIXES).values():
            result.faults += [f"{path}: no annotation: skipped" for path in found if path not in paths]
    return result


def _entry(source: Path, pair: tuple[Path, Path]) -> Entry:
    """Return the entry of an image and its annotation. Its name begins with the folder of its data set."""
    image, path = pair
    content = read_json(path)
    size = size_of(value_of(content, "size", dict, str(path)), "height", "width", str(path))
    if not image.is_file() or image.suffix.lower() not in IMAGE_SUFFIXES:
        raise InputError(f"{path}: image {image}: no such file, or none of {', '.join(IMAGE_SUFFIXES)}")
    shapes = []
    for number, item in enumerate(value_of(content, "objects", list, str(path)), 1):
        name = value_of(item, "classTitle", str, f"{path}: object {number}")
        shapes.append(Shape(name, f"{path}: object {number} ({name})", item))
    name = output_name((path.parent.parent.relative_to(source) / path.stem).as_posix())
    return Entry(name, str(path), image, shapes, size)


def patch(item: dict, where: str, size: tuple[int, int], options: Options, faults: list[str]) -> Patch:
    """Return the pixels of an object."""
    kind = item.get("geometryType")
    if kind == "bitmap":
        bitmap = value_of(item, "bitmap", dict, where)
        mask = decode_png(value_of(bitmap, "data", str, where), where, compressed=True)
        left, top = read_points([bitmap.get("origin")], 1, where)[0].astype(int)
        return place(mask, int(top), int(left), size, where)
    points = value_of(item, "points", dict, where)
    exterior = value_of(points, "exterior", list, where)
    if kind == "polygon":
        rings = [read_points(exterior, 3, where)]
        for ring in value_of(points, "interior", list, where) if points.get("interior") else ():
            try:
                rings.append(read_points(ring, 3, f"{where}: interior"))
            except FewPointsError as error:
                faults.append(str(error))
        return _fill(rings, size)
    if kind == "rectangle":
        corners = np.floor(read_points(exterior, 2, where)[:2])
        low, high = corners.min(axis=0), corners.max(axis=0)
        return polygons.fill([polygons.rectangle(*low, *(high + 1))], size)  # the corners' pixels belong to it
    if kind in ("line", "point"):
        return polygons.stroke(read_points(exterior, 1, where) + 0.5, options.line_width, size)
    raise InputError(f"{where}: geometryType {kind!r} has no area: skipped")


def _fill(rings: list[np.ndarray], size: tuple[int, int]) -> Patch:
    """Return the pixels of an exterior ring and its outline, without those of the interior rings and their outlines."""
    mask = np.zeros(size, np.uint8)
    for number, ring in enumerate(rings):
        cv2.fillPoly(mask, [np.floor(ring).astype(np.int32)], 0 if number else 1)
    return 0, 0, mask.astype(bool)
