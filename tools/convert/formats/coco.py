"""COCO's JSON of object annotations: polygons, and masks as RLE, compressed or not.

Format: https://cocodataset.org/#format-data. `images` have id, file_name, height and width; `categories` have id and
name; `annotations` have image_id, category_id, iscrowd and segmentation: polygons [[x1, y1, x2, y2, ...], ...], which
together are one object, or {"counts", "size": [height, width]}. Counts run down the columns (tools.convert.rle).
"""

import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from support.errors import InputError
from tools.convert import polygons, rle
from tools.convert.polygons import FewPointsError, Patch, read_points
from tools.convert.reading import (
    SPLITS,
    ImageFinder,
    annotation_files,
    output_name,
    read_json,
    size_of,
    split_of,
    value_of,
)
from tools.convert.source import Entry, Options, Shape, Source, collect

MAX_CROWDS = 0.1  # share of the objects; in COCO itself it is 0.01


class File(NamedTuple):
    """A JSON file: path, content, {id: name} of its categories, and {id: image} of its images."""

    path: Path
    content: dict
    names: dict[int, str]
    images: dict[int, dict]


# Yields (image id, record of the Entry) of each image of a File; adds lines to the Source's faults and notes.
Records = Callable[[File, Source], Iterator[tuple[int, Any]]]


def read(source: Path, options: Options) -> Source:
    """Return the images and classes of a COCO file, or of all such files below a folder."""
    return read_files(source, options, "COCO", "images", _records)


def read_files(source: Path, options: Options, kind: str, key: str, records: Records) -> Source:
    """Return the images and classes of a JSON file with COCO's categories, or of all such files below a folder.

    kind: its name, for notes. key: what its top level has; other files of a folder are left out, such as COCO's
    captions and key points.
    """
    result, others = Source(), []
    categories: dict[str, int] = {}
    root = source if source.is_dir() else source.parent

    def read_one(path: Path) -> list[Entry]:
        content = read_json(path)
        if source.is_dir() and not _has_masks(content, key):
            others.append(path)
            return []
        names = _categories(content, path)
        for number, name in names.items():
            categories.setdefault(name, number)
        file = File(path, content, names, _images(content, path, result.faults))
        folder, split = _split_folder(root, path), split_of(path.stem) if source.is_dir() else ""
        finder = _image_finder(root, path, options)

        def entry(found: tuple[int, Any]) -> Entry:
            image = file.images[found[0]]
            reference, where = image["file_name"], f"{path}: {image['file_name']}"
            name = posixpath.join(folder, output_name(reference))
            size = size_of(image, "height", "width", where)
            file_ = finder.find(reference, str(path), split)
            return Entry(name, where, file_, found[1], size, split="" if folder else split)

        return list(collect(entry, records(file, result), result.faults))

    for entries in collect(read_one, annotation_files(source, ".json"), result.faults):
        result.entries += entries
    result.names = sorted(categories, key=lambda name: categories[name])
    if others:
        shown = ", ".join(map(str, others[:3])) + (", ..." if len(others) > 3 else "")
        result.notes.append(f"{len(others)} JSON file(s) without {kind} masks: left out: {shown}")
    return result


def _has_masks(content: object, key: str) -> bool:
    """Return whether the content of a JSON file is COCO's, and not of captions, key points, or images alone."""
    if not isinstance(content, dict) or key not in content:
        return False
    annotations = content.get("annotations")
    if not annotations:
        return bool(content.get("categories")) and annotations is not None
    first = annotations[0] if isinstance(annotations, list) else None
    return not (isinstance(first, dict) and first.keys() & {"caption", "keypoints"})


def _image_finder(root: Path, path: Path, options: Options) -> ImageFinder:
    """Return a finder for the images of an annotation file: beside it, then below the root.

    For a file in a folder "annotations", as in COCO, its parent folder is searched, too. The folder that has the file's
    name holds panoptic PNGs.
    """
    above = [path.parent.parent] if path.parent.name == "annotations" else []
    roots = [path.parent, *above, root]
    inner = [folder / "images" for folder in roots if (folder / "images").is_dir()]
    return ImageFinder(inner + roots, options.images, exclude=path.with_suffix(""))


def _categories(content: object, path: Path) -> dict[int, str]:
    """Return {id: name} of a COCO file's categories. Raises InputError if there are none or one is invalid."""
    categories = value_of(content, "categories", list, str(path))
    names = {value_of(item, "id", int, f"{path}: categories"): item.get("name") for item in categories}
    if not names or not all(isinstance(name, str) and name.strip() for name in names.values()):
        raise InputError(f"{path}: 'categories' is empty, or has one without name")
    return names


def _images(content: object, path: Path, faults: list[str]) -> dict[int, dict]:
    """Return {id: image} of a COCO file; add a line to `faults` for each that is invalid or there twice."""

    def read_one(numbered: tuple[int, dict]) -> tuple[int, dict]:
        position, image = numbered
        where = f"{path}: images[{position}]"
        value_of(image, "file_name", str, where)
        size_of(image, "height", "width", where)
        return value_of(image, "id", int, where), image

    found = list(collect(read_one, enumerate(value_of(content, "images", list, str(path))), faults))
    numbers = [number for number, _ in found]
    repeated = {number for number in numbers if numbers.count(number) > 1} if len(set(numbers)) < len(numbers) else ()
    # Which of them the annotations mean is not known.
    faults += [f"{path}: id {number} is there twice in 'images': both are skipped" for number in sorted(repeated)]
    return {number: image for number, image in found if number not in repeated}


def _split_folder(root: Path, path: Path) -> str:
    """Return the folder of an annotation file below the root, which begins the names of its images.

    Of the folders above a folder "annotations", only those of splits count. "valid" and "Training" become "val" and
    "train".
    """
    parts = [SPLITS.get(part.lower(), part) for part in path.parent.relative_to(root).parts]
    if "annotations" in parts:
        parts = [part for part in parts[: parts.index("annotations")] if part in SPLITS.values()]
    return "/".join(parts)


def _records(file: File, result: Source) -> Iterator[tuple[int, list[Shape]]]:
    """Yield the id and the shapes of each image: crowds, which are ignored, then objects in the order of the file."""
    shapes: dict[int, list[Shape]] = {number: [] for number in file.images}
    annotations = value_of(file.content, "annotations", list, str(file.path))
    num_crowds = sum(isinstance(item, dict) and item.get("iscrowd") == 1 for item in annotations)
    has_crowds = num_crowds <= MAX_CROWDS * len(annotations)
    if not has_crowds:
        marked = f"{num_crowds} of {len(annotations)} objects are marked as crowds"
        result.notes.append(
            f"{file.path}: {marked}, which CVAT, Datumaro and supervision do with masks: drawn as objects"
        )
    num_empty = 0
    for position, annotation in enumerate(annotations):
        where = f"{file.path}: annotations[{position}]"
        number = -1  # not known yet
        try:
            number = value_of(annotation, "image_id", int, where)
            if number not in file.images:
                raise InputError(f"{where}: image_id {number} is not in 'images'")
            category = value_of(annotation, "category_id", int, where)
            name = file.names.get(category, f"category_id {category}")
            is_crowd = has_crowds and annotation.get("iscrowd")
            segmentation, box = annotation.get("segmentation"), annotation.get("bbox")
            if segmentation == [] and isinstance(box, list) and 0 in box[2:]:
                num_empty += 1
            elif number in shapes:
                shapes[number].append(Shape(None if is_crowd else name, where, segmentation))
        except InputError as error:
            result.faults.append(str(error))
            shapes.pop(number, None)  # its mask would be wrong
    if num_empty:
        result.notes.append(f"{file.path}: {num_empty} object(s) have no outline and a box of no area: left out")
    for number, found in shapes.items():
        yield number, sorted(found, key=lambda shape: shape.name is not None)  # objects cover crowds


def patch(segmentation: object, where: str, size: tuple[int, int], options: Options, faults: list[str]) -> Patch:
    """Return the union of an object's polygons, or its mask."""
    if isinstance(segmentation, dict):
        return _decode(segmentation, where, size)
    if not isinstance(segmentation, list) or not segmentation:
        raise InputError(f"{where}: no segmentation: a box alone is no mask")
    patches, few = [], []
    for number, values in enumerate(segmentation, 1):
        here = f"{where}: polygon {number}"
        if not isinstance(values, list) or len(values) % 2:
            raise InputError(f"{here}: not a list of x, y, x, y, ...")
        try:
            points = read_points([values[at : at + 2] for at in range(0, len(values), 2)], 3, here)
            patches.append(polygons.fill([points], size))
        except FewPointsError as error:
            few.append(error)
    if not patches:
        raise few[0]
    faults += map(str, few)
    return polygons.union(patches)


def _decode(segmentation: dict, where: str, size: tuple[int, int]) -> Patch:
    counts = segmentation.get("counts")
    if segmentation.get("size") != list(size):
        raise InputError(f"{where}: an RLE of size {segmentation.get('size')}, but the image has {list(size)}")
    if isinstance(counts, str):
        counts = rle.coco_counts(counts, where)
    if not isinstance(counts, list):
        raise InputError(f"{where}: 'counts' is missing or invalid")
    return 0, 0, rle.from_runs(counts, size[0] * size[1], where).reshape(size[::-1]).T
