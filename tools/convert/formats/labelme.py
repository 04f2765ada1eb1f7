"""LabelMe's JSON files, one for each image.

Format: https://github.com/wkentaro/labelme, labelme/_label_file.py and labelme/utils/shape.py. A file has `shapes`,
`imagePath`, relative to the file, `imageData` (null, or the image in base64), `imageHeight` and `imageWidth`. A shape
has `label`, `points` [[x, y], ...] in pixels and `shape_type`: polygon, rectangle (two corners), circle (centre and a
point on it), oriented_rectangle (four corners), line, linestrip, point, or mask (two corners, and a PNG in base64).
"""

import base64
import posixpath
import struct
from pathlib import Path

import cv2
import numpy as np

from data.images.files import decode_bytes
from support.errors import InputError
from tools.convert.drawing import Patch, ellipse, fill, place, read_points, rectangle, stroke
from tools.convert.reading import read_json, read_size, read_value
from tools.convert.source import Entry, Shape, Source

SUGGESTED = "suggested: "  # begins the labels of the places of tools.suggest: points that are no strokes


def read(source: Source) -> None:
    """Read the images and classes of a folder of LabelMe files, or of one file."""

    def read_file(path: Path) -> list[Entry]:
        content, shapes = read_json(path), []
        for number, shape in enumerate(read_value(content, "shapes", list, str(path)), 1):
            label = read_value(shape, "label", str, str(path))
            kind = shape.get("shape_type")
            if label.startswith(SUGGESTED) and kind == "point":
                continue
            label = label if kind == "mask" else label.removeprefix(SUGGESTED)  # LabelMe offers it for strokes, too
            shapes.append(Shape(label, f"{path}: shape {number} ({label})", shape))
        height, width = content.get("imageHeight"), content.get("imageWidth")
        size = read_size(height, width, str(path)) if height else None
        reference = read_value(content, "imagePath", str, str(path)).replace("\\", "/")
        from_root = posixpath.normpath(posixpath.join(path.parent.relative_to(source.root).as_posix(), reference))
        try:
            image = source.find_image(from_root, str(path))
        except InputError:
            if not content.get("imageData"):
                raise
            image = path  # see embedded_image()
        return [Entry(source.output_name(path), str(path), image, shapes, size)]

    source.read_files(".json", read_file)
    source.names = sorted(source.shape_names)


def patch(shape: dict, where: str, size: tuple[int, int], line_width: float) -> Patch:
    """Return the pixels of a shape."""
    kind = str(shape.get("shape_type") or "polygon")
    points = read_points(shape.get("points"), where)
    if len(points) < 2 and kind in ("rectangle", "circle", "mask"):
        raise InputError(f"{where}: {len(points)} point(s), but it needs 2")
    if kind in ("polygon", "rectangle", "oriented_rectangle") and len(points):
        # LabelMe limits points to about size - 1, but its masks have the last row and column: move those to the border.
        in_last = (points >= np.array(size[::-1]) - 1) & (points < size[::-1]) & (points > points.min(axis=0))
        points = np.where(in_last, size[::-1], points)
    if kind in ("polygon", "oriented_rectangle") or (kind == "rectangle" and len(points) == 4):  # X-AnyLabeling's
        return fill(points, size)
    if kind == "rectangle":
        return fill(rectangle(*points[0], *points[1]), size)
    if kind == "circle":
        radius = float(np.hypot(*(points[1] - points[0])))
        return ellipse(tuple(points[0]), (radius, radius), size)
    if kind in ("line", "linestrip", "point"):
        return stroke(points, line_width, size)
    if kind == "mask":
        (left, top), (right, bottom) = np.trunc(points[:2]).astype(int).tolist()
        box = (bottom - top + 1, right - left + 1)
        if box[0] > size[0] or box[1] > size[1]:
            raise InputError(f"{where}: a mask of {box[1]}x{box[0]} pixels in an image of {size[1]}x{size[0]}")
        return place(_decode_mask(read_value(shape, "mask", str, where), box, where), top, left, size)
    raise InputError(f"{where}: shape_type {kind!r} is not known")


def embedded_image(path: Path) -> tuple[bytes, str]:
    """Return the image that a LabelMe file has in imageData, and its suffix: LabelMe writes JPEG or PNG."""
    data = _decode_base64(read_value(read_json(path), "imageData", str, str(path)), f"{path}: imageData")
    return data, ".jpg" if data.startswith(b"\xff\xd8") else ".png"


def _decode_base64(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise InputError(f"{where}: not base64") from None


def _decode_mask(text: str, box: tuple[int, int], where: str) -> np.ndarray:
    """Return the mask (height, width) bool of a PNG in base64. Raises InputError if it is none of the size `box`."""
    data = _decode_base64(text, f"{where}: a mask")
    # The size is compared before memory is taken: a PNG of a few kilobytes can have gigabytes of pixels.
    size = struct.unpack(">II", data[16:24]) if data.startswith(b"\x89PNG") and len(data) > 24 else None
    if size not in (None, box[::-1]):
        raise InputError(f"{where}: a mask of {size[0]}x{size[1]} pixels in a box of another size")
    pixels = decode_bytes(data, cv2.IMREAD_GRAYSCALE) if size else None
    if pixels is None:
        raise InputError(f"{where}: a mask whose PNG is damaged")
    return np.asarray(pixels > 0)
