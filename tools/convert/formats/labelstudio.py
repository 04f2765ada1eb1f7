"""Label Studio's JSON export: polygons, rectangles, ellipses, brush masks, vectors (lines) and key points on images.

Format: https://labelstud.io/guide/export and https://labelstud.io/tags/brushlabels. The file is a list of tasks with
`data` (the image's URL) and `annotations`, whose `result` holds regions: type, original_width, original_height and
value. Coordinates are in percent of the image's width and height. A brush mask is the RLE of an RGBA image
(tools.convert.rle): a pixel belongs to it if its alpha is at least 128. A vector (https://labelstud.io/tags/vectorlabels)
has `vertices`: id, x, y, prevPointId and, where isBezier, the two control points of the curve that ends there. It is a
line or, if `closed`, a polygon.
"""

from pathlib import Path
from typing import Any

import numpy as np

from data.images import IMAGE_SUFFIXES
from support.errors import InputError
from tools.convert import polygons, rle
from tools.convert.polygons import Patch, read_points
from tools.convert.reading import (
    ImageFinder,
    annotation_files,
    output_name,
    path_of_url,
    read_json,
    size_of,
    split_of,
    value_of,
)
from tools.convert.source import Entry, Options, Shape, Source, collect

TYPES = ("polygon", "rectangle", "ellipse", "brush", "keypoint", "vector")
CURVE_STEPS = 16  # straight pieces of a Bezier curve


def read(source: Path, options: Options) -> Source:
    """Return the images and classes of an export, or of all exports below a folder."""
    result = Source()
    finder = ImageFinder([source if source.is_dir() else source.parent], options.images)

    def read_one(path: Path) -> list[Entry]:
        tasks = read_json(path)
        if not isinstance(tasks, list):
            raise InputError(f"{path}: not a list of tasks: export the project as JSON")
        split = split_of(path.stem) if source.is_dir() else ""
        numbers = [task.get("id", at) if isinstance(task, dict) else at for at, task in enumerate(tasks)]
        items = [(task, f"{path}: task {number}", finder, split) for task, number in zip(tasks, numbers, strict=True)]
        return list(collect(_entry, items, result.faults))

    for entries in collect(read_one, annotation_files(source, ".json"), result.faults):
        result.entries += entries
    result.names = sorted(result.shape_names())
    return result


def _entry(item: tuple[Any, str, ImageFinder, str]) -> Entry:
    """Return the entry of a task, its place, with the finder and the split. Raises InputError."""
    task, where, finder, split = item
    annotation = _annotation(task, where)
    regions = [region for region in value_of(annotation, "result", list, where) if isinstance(region, dict)]
    # A control without labels of its own has them in another result with the same id.
    shared = {str(region.get("id")): names for region in regions if (names := _labels(region))}
    shapes, sizes = [], set()
    for position, region in enumerate(regions):
        kind = str(region.get("type", "")).removesuffix("labels")
        if kind not in TYPES:
            continue
        here = f"{where}: region {region.get('id', position)}"
        names = _labels(region) or shared.get(str(region.get("id")), [])
        if not names:
            raise InputError(f"{here}: it has no label: skipped")
        if turn := region.get("image_rotation"):
            raise InputError(f"{here}: the image is turned by {turn} degrees in Label Studio: skipped")
        sizes.add(size_of(region, "original_height", "original_width", here))
        shapes.append(Shape(names[0], f"{here} ({names[0]})", region | {"type": kind}))
    if len(sizes) > 1:
        raise InputError(f"{where}: its regions name images of several sizes: {sorted(sizes)}")
    url = _image_of(value_of(task, "data", dict, where), where)
    path = finder.find(path_of_url(url), where)
    return Entry(output_name(path.name), where, path, shapes, next(iter(sizes), None), split=split)


def _annotation(task: Any, where: str) -> dict:
    """Return the annotation to use: the ground truth if there is one, else the one that was changed last."""
    if isinstance(task, dict) and "annotations" not in task and "data" not in task:
        raise InputError(f"{where}: no 'annotations': export as JSON, not as JSON-MIN")
    annotations = value_of(task, "annotations", list, where)
    usable = [item for item in annotations if isinstance(item, dict) and not item.get("was_cancelled")]
    if not usable:
        raise InputError(f"{where}: it is not annotated: skipped")
    return max(usable, key=lambda item: (bool(item.get("ground_truth")), str(item.get("updated_at", ""))))


def _labels(region: dict) -> list[str]:
    """Return the class names in a region: value.polygonlabels, value.labels or the like."""
    value = region.get("value")
    items = value.items() if isinstance(value, dict) else ()
    lists = [names for key, names in items if key.endswith("labels") and isinstance(names, list)]
    return [name for name in lists[0] if isinstance(name, str)] if lists else []


def _image_of(data: dict, where: str) -> str:
    """Return the URL of a task's image: data.image, or the one value that ends like an image."""
    texts = {key: value for key, value in data.items() if isinstance(value, str)}
    images = [value for value in texts.values() if path_of_url(value).lower().endswith(IMAGE_SUFFIXES)]
    if "image" in texts:
        return texts["image"]
    if len(images) != 1:
        raise InputError(f"{where}: 'data' names {len(images)} images, expected one")
    return images[0]


def patch(region: dict, where: str, size: tuple[int, int], options: Options, faults: list[str]) -> Patch:
    """Return the pixels of a region."""
    kind, value = region["type"], value_of(region, "value", dict, where)
    height, width = size
    if kind == "brush":
        values = rle.decode_label_studio(value_of(value, "rle", list, where), height * width * 4, where)
        return 0, 0, values.reshape(height, width, 4)[:, :, 3] >= 128
    percent = np.array([width, height]) / 100
    if kind == "polygon":
        return polygons.fill([read_points(value.get("points"), 3, where) * percent], size)
    if kind == "vector":
        lines = [line * percent for line in _vector_lines(value_of(value, "vertices", list, where), where)]
        if value.get("closed"):
            return polygons.fill([np.concatenate(lines)], size)
        return polygons.union([polygons.stroke(line, options.line_width, size) for line in lines])

    def pair(*keys: str) -> np.ndarray:
        return read_points([[value_of(value, key, (int, float), where) for key in keys]], 1, where)[0] * percent

    corner = pair("x", "y")
    rotation = read_points([[value.get("rotation") or 0, 0]], 1, where)[0, 0]
    if kind == "rectangle":
        ring = polygons.rectangle(*corner, *(corner + pair("width", "height")))
        return polygons.fill([polygons.turned(ring, rotation, corner)], size)
    if kind == "ellipse":
        return polygons.ellipse(tuple(corner), tuple(pair("radiusX", "radiusY")), size, rotation)
    return polygons.stroke(corner[None], options.line_width, size)


def _vector_lines(vertices: list, where: str) -> list[np.ndarray]:
    """Return the lines (N, 2) of a vector, in percent. A vertex that does not follow the last one begins a line."""
    places: dict[str, np.ndarray] = {}
    lines: list[list[np.ndarray]] = []
    last = None
    for vertex in vertices:
        name, place = value_of(vertex, "id", str, where), _place(vertex, where)
        before = vertex.get("prevPointId", last)
        if before is not None and (not isinstance(before, str) or before not in places):
            raise InputError(f"{where}: vertex {name!r}: no vertex {before!r} comes before it")
        if before is None or before != last:
            lines.append([] if before is None else [places[before]])
        curved = vertex.get("isBezier") and isinstance(vertex.get("controlPoint1"), dict)
        if curved and before is not None and isinstance(vertex.get("controlPoint2"), dict):
            ends = [places[before], *(_place(vertex[key], where) for key in ("controlPoint1", "controlPoint2")), place]
            lines[-1] += _curve(ends)
        else:
            lines[-1].append(place)
        places[name], last = place, name
    if not lines:
        raise InputError(f"{where}: a vector without vertices")
    return [np.stack(line) for line in lines]


def _place(record: dict, where: str) -> np.ndarray:
    return read_points([[value_of(record, key, (int, float), where) for key in ("x", "y")]], 1, where)[0]


def _curve(ends: list[np.ndarray]) -> list[np.ndarray]:
    """Return points of a cubic Bezier curve. ends: the start, which is left out, two control points and the end."""
    t = np.arange(1, CURVE_STEPS + 1)[:, None] / CURVE_STEPS
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
    return list(sum(weight * end for weight, end in zip(weights, ends, strict=True)))
