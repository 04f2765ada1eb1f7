"""Label Studio's JSON export: polygons, rectangles, ellipses and brush masks; and its PNG files of brush masks.

Format: https://labelstud.io/guide/export. The JSON is a list of tasks with `data` (the image's URL) and `annotations`,
whose `result` holds regions: type, original_width, original_height and value. Coordinates are in percent of the image's
width and height; a rectangle is turned about its corner. A brush mask is the RLE of an RGBA image, or a file
task-T-annotation-A-by-USER-CONTROL-LABEL-N.png: a pixel belongs to it if its alpha or its grey value is at least 128.
The PNG files name no image: a JSON file of the tasks beside them does, or the image is named task-T.
"""

import re
import urllib.parse
from pathlib import Path
from typing import Any

import numpy as np

from data.folders import list_files
from data.images import decode
from data.images.files import IMAGE_SUFFIXES
from support.errors import InputError
from tools.convert.drawing import Patch, ellipse, fill, read_points, rectangle, turned
from tools.convert.reading import output_name, read_json, read_size, read_value, split_in
from tools.convert.source import Entry, Shape, Source

READ, UNREAD = ("polygon", "rectangle", "ellipse", "brush"), ("vector", "bitmask", "magicwand")
UNFINISHED = {
    "annotations": "its annotations are cancelled (skipped in Label Studio)",
    "predictions": "it has only predictions: submit them as annotations in Label Studio",
    "drafts": "it has only a draft: submit it in Label Studio",
}
BRUSH = re.compile(r"task-(\d{1,18})-annotation-(\d{1,18})-by-[^-]*-[^-]+-(.+)-\d+")


def read(source: Source) -> None:
    """Read the images and classes of an export, or of all exports below a folder."""
    drawn, done = find_brushes(source.path), set()
    brushes = {task: annotations[max(annotations)] for task, annotations in drawn.items()}  # the last annotation's
    several = [f"{source.path}: task {task}" for task, annotations in drawn.items() if len(annotations) > 1]

    def read_tasks(tasks: list, path: Path) -> list[Entry]:
        def read_task(task: Any) -> Entry:
            number = read_value(task, "id", int, f"{path}: a task")
            where, size = f"{path}: task {number}", None
            done.add(number)
            if "annotations" in task or number not in brushes:
                shapes, size = _read_shapes(task, where, source.faults, several)
            image, split = _find_image(task, where, source), split_in(path.stem) if source.path.is_dir() else ""
            shapes = shapes if size else brushes.get(number, [])
            return Entry(output_name(image.name), where, image, shapes, size, split)

        return list(source.collect(read_task, tasks))

    def read_file(path: Path) -> list[Entry]:
        tasks = read_json(path)
        if not isinstance(tasks, list):
            raise InputError(f"{path}: not a list of tasks: export the project as JSON")
        return read_tasks(tasks, path)

    if not brushes or list_files(source.path, (".json",)):
        source.read_files(".json", read_file)
    others = [{"id": number, "image": f"task-{number}"} for number in sorted(brushes.keys() - done)]
    named = read_tasks(others, source.path)
    source.entries += named
    if len(named) < len(others):
        remedy = "put the project's JSON export beside them, or name the images task-1, task-2 and so on"
        source.notes.append(f"{source.path}: Label Studio's PNG files do not say which image they are of: {remedy}")
    if several:
        choice = "the ground truth is drawn, or else the one that was changed last"
        source.notes.append(f"{len(several)} task(s) have several annotations, such as {several[0]}: {choice}")
    source.names = sorted(source.shape_names)


def find_brushes(source: Path) -> dict[int, dict[int, list[Shape]]]:
    """Return {task: {annotation: its masks, by name}} of the PNG files below a folder."""
    tasks: dict[int, dict[int, list[Shape]]] = {}
    for path in list_files(source, (".png",)):
        if match := BRUSH.fullmatch(path.stem):
            tasks.setdefault(int(match[1]), {}).setdefault(int(match[2]), []).append(Shape(match[3], str(path), path))
    return tasks


def _read_shapes(
    task: dict, where: str, faults: list[str], several: list[str]
) -> tuple[list[Shape], tuple[int, int] | None]:
    """Return the shapes of a task, and its image's (height, width) if there is a shape. Adds a fault per key point.

    The annotation is the ground truth, or else the one that was changed last. Adds the task to `several` if it has more
    than one.
    """
    if "annotations" not in task and not task.get("predictions"):
        raise InputError(f"{where}: no 'annotations': export JSON, not JSON-MIN: skipped")
    annotations = read_value({"annotations": []} | task, "annotations", list, where)
    usable = [item for item in annotations if isinstance(item, dict) and not item.get("was_cancelled")]
    if not usable:
        reason = next((text for key, text in UNFINISHED.items() if task.get(key)), "it is not annotated")
        raise InputError(f"{where}: {reason}: skipped")
    several += [where] if len(usable) > 1 else []
    last = max(usable, key=lambda item: (bool(item.get("ground_truth")), str(item.get("updated_at", ""))))
    regions = [region for region in read_value(last, "result", list, where) if isinstance(region, dict)]
    # A control without labels of its own has them in another result with the same id.
    labels = {str(region.get("id")): names for region in regions if (names := _labels(region))}
    shapes, images, size = [], set(), None
    for region in regions:
        kind, here = str(region.get("type", "")).removesuffix("labels"), f"{where}: region {region.get('id')}"
        if kind in UNREAD:
            raise InputError(f"{here}: a {kind}: not supported: skipped")
        if kind in READ and (degrees := region.get("image_rotation")):
            turned = f"drawn while Label Studio showed the image turned by {degrees} degrees"
            raise InputError(f"{here}: {turned}: not supported: skipped; turn it back there, and draw again")
        if kind == "keypoint":
            faults.append(f"{here}: a key point has no area: left out")
        if kind not in READ:  # such as choices, which label the whole image
            continue
        names = _labels(region) or labels.get(str(region.get("id")), [])
        if len(names) != 1:
            raise InputError(f"{here}: {len(names)} labels, but a mask needs 1: skipped")
        size = read_size(region.get("original_height"), region.get("original_width"), here)
        images.add((str(region.get("to_name")), size))
        shapes.append(Shape(names[0], f"{here} ({names[0]})", region | {"type": kind}))
    if len(images) > 1:
        raise InputError(f"{where}: its regions are of several images: skipped")
    return shapes, size


def _labels(region: dict) -> list[str]:
    """Return the class names in a region: value.polygonlabels, value.labels or the like."""
    value = region.get("value")
    lists = [names for key, names in value.items() if key.endswith("labels")] if isinstance(value, dict) else []
    return [str(name) for names in lists if isinstance(names, list) for name in names]


def _find_image(task: dict, where: str, source: Source) -> Path:
    """Return the image of a task, in whose data a URL, a path or /data/local-files/?d=PATH names it."""
    data = read_value(task, "data", dict, where) if "data" in task else task
    texts = [text for text in data.values() if isinstance(text, str) and text.lower().endswith(IMAGE_SUFFIXES)]
    chosen = data.get("image", texts[0] if len(texts) == 1 else None)
    if not isinstance(chosen, str):
        raise InputError(f"{where}: {len(texts)} images in its data, expected 1: skipped")
    path, _, query = chosen.partition("?")
    name = urllib.parse.unquote(urllib.parse.parse_qs(query).get("d", [path])[0]).rpartition("/")[2]
    try:
        return source.find_image(name, where)
    except InputError:  # Label Studio puts eight digits before the name of a file that is uploaded
        return source.find_image(re.sub("^[0-9a-f]{8}-", "", name), where)


def patch(region: Any, where: str, size: tuple[int, int], line_width: float) -> Patch:
    """Return the pixels of a region, or of the file of a brush mask."""
    height, width = size
    if isinstance(region, Path):
        pixels = decode(region)
        if pixels.ndim > 2:
            raise InputError(f"{where}: has {pixels.shape[2]} channels, but a brush mask is grey: save it as grey PNG")
        if pixels.shape != size:
            raise InputError(f"{where}: {pixels.shape[1]}x{pixels.shape[0]} pixels, but the image has {width}x{height}")
        return Patch(0, 0, pixels >= 128)
    kind, value = region["type"], read_value(region, "value", dict, where)
    if kind == "brush":
        values = _decode_rle(read_value(value, "rle", list, where), height * width * 4, where)
        return Patch(0, 0, values.reshape(height, width, 4)[:, :, 3] >= 128)
    percent = np.array([width, height]) / 100
    if kind == "polygon":
        return fill(read_points(value.get("points"), where) * percent, size)
    sides = ("width", "height") if kind == "rectangle" else ("radiusX", "radiusY")
    pairs = [[value.get(key) for key in keys] for keys in (("x", "y"), sides)]
    place, extent = read_points(pairs, where) * percent
    degrees = float(read_points([[value.get("rotation") or 0, 0]], where)[0, 0])
    if kind == "ellipse":
        return ellipse(tuple(place), tuple(extent), size, degrees)
    return fill(turned(rectangle(*place, *(place + extent)), degrees, place), size)


def _decode_rle(rle: list, num_values: int, where: str) -> np.ndarray:
    """Return the values (num_values,) uint8 of Label Studio's brush RLE, which is thi.ng's rle-pack.

    A stream of bits: the number of values (32 bits), the bits of a value minus 1 (5), and the bits of a length minus 1,
    in four sizes (4 each). Then runs: whether the value repeats (1), which of the four sizes (2), the length minus 1,
    and one value or, if it does not repeat, `length` values (HumanSignal/label-studio-converter, brush.py, decode_rle).
    """
    try:
        bits = np.unpackbits(np.frombuffer(bytes(rle), np.uint8))
    except (TypeError, ValueError):
        raise InputError(f"{where}: an RLE that is not a list of bytes") from None
    at = 0

    def read(count: int, width: int = 0) -> Any:
        """Return a number of `count` bits, or an array of `count` numbers of `width` bits."""
        nonlocal at
        part, at = bits[at : at + count * (width or 1)], at + count * (width or 1)
        if at > len(bits):
            raise InputError(f"{where}: the brush RLE is cut off")
        return np.packbits(part) if width else int("".join(map(str, part)) or "0", 2)

    count, word = read(32), read(5) + 1
    sizes = [read(4) + 1 for _ in range(4)]
    if count != num_values or word != 8:
        raise InputError(f"{where}: a brush RLE of {count} values of {word} bits, but the image has {num_values} of 8")
    values, start = np.zeros(num_values, np.uint8), 0
    while start < num_values:
        repeated = read(1)
        stop = start + 1 + read(sizes[read(2)])
        if stop > num_values:
            raise InputError(f"{where}: a run of the brush RLE ends past the last pixel")
        values[start:stop] = read(1 if repeated else stop - start, 8)
        start = stop
    return values
