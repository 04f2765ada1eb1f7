"""COCO's JSON of object annotations: polygons, and masks as RLE, compressed or not.

Format: https://cocodataset.org/#format-data. `images` have id, file_name, height and width; `categories` have id and
name; `annotations` have image_id, category_id, iscrowd and segmentation: polygons [[x1, y1, x2, y2, ...], ...], which
together are one object, or {"counts", "size": [height, width]}. Counts run down the columns.
"""

import posixpath
from collections import Counter
from pathlib import Path
from typing import Any

from support.errors import InputError
from tools.convert.drawing import Patch, fill, from_runs, read_points
from tools.convert.reading import SPLITS, output_name, read_json, read_size, read_value, split_in, whole_number
from tools.convert.source import Entry, Shape, Source

Id = int | str

MAX_CROWDS = 0.1  # share of the objects; in COCO itself it is 0.01


def read(source: Source) -> None:
    """Read the images and classes of a COCO file, or of all such files below a folder.

    A folder's other files are left out, such as COCO's captions and key points.
    """
    others: list[Path] = []
    categories: dict[str, Id] = {}

    def read_file(path: Path) -> list[Entry]:
        content, is_folder = read_json(path), source.path.is_dir()
        if is_folder and not _has_masks(content):
            others.append(path)
            return []
        names = _categories(content, path)
        source.names += [name for name, count in Counter(names.values()).items() if count > 1]  # for a note
        for number, name in names.items():
            categories.setdefault(name, number)
        images: dict[Id, Any] = {}

        def read_image(item: tuple[int, Any]) -> tuple[Id, Any]:
            return _read_id(item[1], "id", f"{path}: images[{item[0]}]"), item[1]

        for number, image in source.collect(read_image, enumerate(read_value(content, "images", list, str(path)))):
            images[number] = None if number in images else image
        shapes = _read_shapes(content, path, names, images, source)
        folder, split = _split_folder(source.root, path), split_in(path.stem) if is_folder else ""
        roots = [path.parent, *([path.parent.parent] if path.parent.name == "annotations" else []), source.root]

        def entry(number: Id) -> Entry:
            where = f"{path}: image {number}"
            if images[number] is None:
                raise InputError(f"{path}: id {number} occurs twice in 'images': skipped")
            reference = read_value(images[number], "file_name", str, where)
            name = posixpath.join(folder, output_name(reference))
            size = read_size(images[number].get("height"), images[number].get("width"), where)
            file = source.find_image(reference, str(path), *roots, subset=split)
            return Entry(name, f"{path}: {reference}", file, shapes[number], size, split="" if folder else split)

        return list(source.collect(entry, shapes))

    source.read_files(".json", read_file)
    source.names[:0] = sorted(categories, key=lambda name: (isinstance(categories[name], str), categories[name]))
    if others:
        source.notes.append(f"{len(others)} JSON file(s) without COCO masks, such as {others[0]}: left out")


def _read_id(record: Any, key: str, where: str) -> Id:
    """Return an id of a record: 3 for 3, for VIA's "3" and for pandas' 3.0; another text stays as it is."""
    value = read_value(record, key, (int, float, str), where)
    number = whole_number(value)
    return read_value(record, key, str, where) if number is None else number


def _has_masks(content: object) -> bool:
    """Return whether the content of a JSON file is COCO's, and not of captions, key points, or images alone."""
    content = content if isinstance(content, dict) else {}
    if not content.get("categories") or not {"images", "annotations"} <= content.keys():
        return False
    annotations = content["annotations"]
    first = annotations[0] if isinstance(annotations, list) and annotations else None
    return not (isinstance(first, dict) and first.keys() & {"caption", "keypoints"})


def _categories(content: object, path: Path) -> dict[Id, str]:
    """Return {id: name} of a COCO file's categories. Raises InputError if there are none or one is invalid."""
    categories = read_value(content, "categories", list, str(path))
    names = {_read_id(item, "id", f"{path}: categories"): item.get("name") for item in categories}
    if len(names) < len(categories):
        raise InputError(f"{path}: 'categories' has one id twice: give each class an id of its own")
    if not names or not all(isinstance(name, str) and name.strip() for name in names.values()):
        raise InputError(f"{path}: 'categories' is empty, or has one without name")
    return names


def _split_folder(root: Path, path: Path) -> str:
    """Return the folder, below the root, of an annotation file: the names of its images begin with it.

    In a path to "annotations", only the parts that name a split are kept. "valid" and "Training" become "val" and
    "train".
    """
    parts = [SPLITS.get(part.lower(), part) for part in path.parent.relative_to(root).parts]
    if "annotations" in parts:
        parts = [part for part in parts[: parts.index("annotations")] if part in SPLITS.values()]
    return "/".join(parts)


def _read_shapes(
    content: dict, path: Path, names: dict[Id, str], images: dict[Id, dict], source: Source
) -> dict[Id, list[Shape]]:
    """Return {image id: shapes}: crowds, which are ignored, then objects in the order of the file, polygon by polygon.

    An image with an invalid annotation is left out, because its mask would be wrong.
    """
    shapes: dict[Id, list[Shape]] = {number: [] for number in images}
    annotations = read_value(content, "annotations", list, str(path))
    if not annotations:
        remedy = "Label Studio leaves brush labels out of COCO: export JSON there"
        raise InputError(f"{path}: 'annotations' is empty, so no object is labelled: export again ({remedy})")
    if any(isinstance(item, dict) and "segments_info" in item for item in annotations[:1]):
        raise InputError(f"{path}: panoptic COCO, whose masks are PNG files: export or download the instances")
    num_crowds = sum(isinstance(item, dict) and item.get("iscrowd") in (1, "1") for item in annotations)
    has_crowds = num_crowds <= MAX_CROWDS * len(annotations)
    if num_crowds:
        marked = f"{num_crowds} of {len(annotations)} objects are marked as crowds"
        why = "drawn as objects, because CVAT and supervision mark every mask as a crowd"
        why = "ignored (255); to draw one as an object, set its iscrowd to 0" if has_crowds else why
        source.notes.append(f"{path}: {marked}: {why}")
    num_empty, is_lost = 0, False
    for position, annotation in enumerate(annotations):
        where = f"{path}: annotations[{position}]"
        number: Id | None = None
        try:
            number = _read_id(annotation, "image_id", where)
            if number not in images:
                raise InputError(f"{where}: image_id {number} is not in 'images'")
            category = _read_id(annotation, "category_id", where)
            name = names.get(category, f"category_id {category}")
            crowd = annotation.get("iscrowd")
            if crowd not in (None, 0, 1, "0", "1"):
                raise InputError(f"{where}: iscrowd {crowd!r}: must be 0 or 1")
            is_crowd = has_crowds and crowd in (1, "1")
            segmentation, box = annotation.get("segmentation"), annotation.get("bbox")
            is_list = isinstance(segmentation, list) and segmentation
            # VIA's polygons are not in a list.
            parts = segmentation if is_list and not isinstance(segmentation[0], int | float) else [segmentation]
            _check_extent(parts, box, where)
            if segmentation == [] and isinstance(box, list) and 0 in box[2:]:
                num_empty += 1
            elif number in shapes:
                for at, part in enumerate(parts, 1):
                    here = f"{where}: polygon {at}" if len(parts) > 1 else where
                    shapes[number].append(Shape(None if is_crowd else name, here, part))
        except InputError as error:
            source.faults.append(str(error))
            is_lost |= number not in images
            shapes.pop(number, None)  # type: ignore[arg-type]
    if is_lost and (blank := [number for number, drawn in shapes.items() if not drawn]):
        shapes = {number: drawn for number, drawn in shapes.items() if drawn}
        left = f"{len(blank)} image(s) without an object, such as image {blank[0]}: left out"
        source.faults.append(f"{path}: {left}: the annotation without an image may be of one of them")
    if num_empty:
        source.notes.append(f"{path}: {num_empty} object(s) have no outline and a box of no area: left out")
    return {number: sorted(drawn, key=lambda shape: shape.name is not None) for number, drawn in shapes.items()}


def _check_extent(parts: list, box: object, where: str) -> None:
    """Raise InputError if polygons span less than half of their box: other numbers were written as coordinates."""
    values = [value for part in parts if isinstance(part, list) for value in part]
    if not (isinstance(box, list) and len(box) == 4 and len(values) > 3):
        return
    if not all(isinstance(value, int | float) for value in (*box, *values)):
        return
    for side, axis in zip(box[2:], (values[::2], values[1::2]), strict=True):
        if 2 * (span := max(axis) - min(axis)) + 4 < side:
            remedy = "are they RLE counts, or coordinates from 0 to 1?"
            raise InputError(f"{where}: its polygons span {span:.4g} pixels, but its bbox {side:.4g}: {remedy}")


def patch(segmentation: object, where: str, size: tuple[int, int], line_width: float) -> Patch:
    """Return the pixels of one of an object's polygons, or its mask."""
    if isinstance(segmentation, dict):
        counts = segmentation.get("counts")
        if segmentation.get("size") != list(size):
            raise InputError(f"{where}: an RLE of size {segmentation.get('size')}, but the image has {list(size)}")
        if isinstance(counts, str):
            counts = _decompress(counts, where)
        if not isinstance(counts, list):
            raise InputError(f"{where}: 'counts' is missing or invalid")
        return Patch(0, 0, from_runs(counts, size[0] * size[1], where).reshape(size[::-1]).T)
    if not segmentation:
        raise InputError(f"{where}: no segmentation: a box alone is no mask")
    if not isinstance(segmentation, list) or len(segmentation) % 2:
        raise InputError(f"{where}: not a list of x, y, x, y, ...")
    return fill(read_points([segmentation[at : at + 2] for at in range(0, len(segmentation), 2)], where), size)


def _decompress(text: str, where: str) -> list[int]:
    """Return the run lengths of COCO's compressed RLE.

    Each character's code, minus 48, has 6 bits: one says whether more characters follow, 5 belong to the number, the
    lowest first. The last of these is the sign. The fourth number and all after it are differences to the number two
    before (cocodataset/cocoapi, common/maskApi.c, rleFrString).
    """
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64:
            raise InputError(f"{where}: {character!r} is no character of COCO's compressed RLE")
        value |= (bits & 31) << shift
        shift += 5
        if shift > 60:
            raise InputError(f"{where}: the compressed RLE has a number of more than 60 bits")
        if not bits & 32:
            value -= (bits & 16) << (shift - 4)  # two's complement
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    if shift:
        raise InputError(f"{where}: the compressed RLE is cut off")
    return counts
