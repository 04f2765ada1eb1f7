"""COCO's JSON of object annotations: polygons, and masks as RLE, compressed or not.

Format: https://cocodataset.org/#format-data. `images` have id, file_name, height and width; `categories` have id and
name; `annotations` have image_id, category_id, iscrowd and segmentation: polygons [[x1, y1, x2, y2, ...], ...], which
together are one object, or {"counts", "size": [height, width]}. Counts run down the columns (tools.convert.rle).
"""

import functools
import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path

from support.errors import InputError
from tools.convert import polygons, rle
from tools.convert.polygons import FewPointsError, Patch, read_points
from tools.convert.reading import (
    SPLITS,
    ImageFinder,
    Shape,
    annotation_files,
    draw_shapes,
    output_name,
    read_json,
    size_of,
    split_of,
    value_of,
)
from tools.convert.source import Entry, Options, Region, Source

MAX_CROWDS = 0.1  # share of the objects; in COCO itself it is 0.01


def read(source: Path, options: Options) -> Source:
    """Return the images and classes of a COCO file, or of all such files below a folder."""

    def read_one(content: dict, names: dict[int, str], path: Path, root: Path, result: Source) -> None:
        split = split_of(path.stem) if source.is_dir() else ""
        _read_images(content, names, path, split_folder(root, path), split, image_finder(root, path, options), result)

    return read_files(source, "COCO", "images", read_one)


def read_files(
    source: Path, kind: str, key: str, read_one: Callable[[dict, dict[int, str], Path, Path, Source], None]
) -> Source:
    """Return the images and classes of a JSON file with COCO's categories, or of all such files below a folder.

    kind: its name, for notes. key: what its top level has; other files of a folder are left out, such as COCO's
    captions and key points. read_one: adds the entries of a file to the Source, given the file's content, {number:
    name} of its categories, its path and the root.
    """
    result, others = Source(), []
    root = source if source.is_dir() else source.parent
    categories: dict[str, int] = {}
    for path in annotation_files(source, ".json"):
        try:
            content = read_json(path)
            if source.is_dir() and not _has_masks(content, key):
                others.append(path)
                continue
            names = read_categories(content, path)
            for number, name in names.items():
                categories.setdefault(name, number)
            read_one(content, names, path, root, result)
        except InputError as error:
            result.faults.append(str(error))
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


def image_finder(root: Path, path: Path, options: Options) -> ImageFinder:
    """Return a finder for the images of an annotation file: beside it, then below the root.

    For a file in a folder "annotations", as in COCO, its parent folder is searched, too. The folder that has the file's
    name holds panoptic PNGs.
    """
    above = [path.parent.parent] if path.parent.name == "annotations" else []
    roots = [path.parent, *above, root]
    inner = [folder / "images" for folder in roots if (folder / "images").is_dir()]
    return ImageFinder(inner + roots, options.images, exclude=path.with_suffix(""))


def read_categories(content: object, path: Path) -> dict[int, str]:
    """Return {id: name} of a COCO file's categories. Raises InputError if there are none or one is invalid."""
    categories = value_of(content, "categories", list, str(path))
    names = {value_of(item, "id", int, f"{path}: categories"): item.get("name") for item in categories}
    if not names or not all(isinstance(name, str) and name.strip() for name in names.values()):
        raise InputError(f"{path}: 'categories' is empty, or has one without name")
    return names


def index_images(content: object, path: Path, faults: list[str]) -> dict[int, dict]:
    """Return {id: image} of a COCO file; add a line to `faults` for each that is invalid or there twice."""
    images: dict[int, dict] = {}
    repeated = set()
    for position, image in enumerate(value_of(content, "images", list, str(path))):
        where = f"{path}: images[{position}]"
        try:
            number = value_of(image, "id", int, where)
            value_of(image, "file_name", str, where)
            size_of(image, "height", "width", where)
            if number in images:
                repeated.add(number)
            images[number] = image
        except InputError as error:
            faults.append(str(error))
    # Which of them the annotations mean is not known.
    faults += [f"{path}: id {number} is there twice in 'images': both are skipped" for number in sorted(repeated)]
    return {number: image for number, image in images.items() if number not in repeated}


def split_folder(root: Path, path: Path) -> str:
    """Return the folder of an annotation file below the root, which begins the names of its images.

    It is "" for a file in the root or in a folder "annotations". "valid" and "Training" become "val" and "train".
    """
    parts = [SPLITS.get(part.lower(), part) for part in path.parent.relative_to(root).parts]
    return "" if "annotations" in parts else "/".join(parts)


def _read_images(
    content: dict, names: dict[int, str], path: Path, folder: str, split: str, finder: ImageFinder, result: Source
) -> None:
    """Add an entry for each image of a COCO file. folder: see split_folder(). split: "" or what the file is of."""
    images = index_images(content, path, result.faults)
    records: dict[int, list[tuple[str, str | None, object]]] = {number: [] for number in images}
    annotations = value_of(content, "annotations", list, str(path))
    num_crowds = sum(isinstance(item, dict) and item.get("iscrowd") == 1 for item in annotations)
    has_crowds = num_crowds <= MAX_CROWDS * len(annotations)
    if not has_crowds:
        marked = f"{num_crowds} of {len(annotations)} objects are marked as crowds"
        result.notes.append(f"{path}: {marked}, which CVAT, Datumaro and supervision do with masks: drawn as objects")
    for position, annotation in enumerate(annotations):
        where = f"{path}: annotations[{position}]"
        try:
            number, category = (value_of(annotation, key, int, where) for key in ("image_id", "category_id"))
            if number not in images:
                raise InputError(f"{where}: image_id {number} is not in 'images'")
            is_crowd = has_crowds and annotation.get("iscrowd")
            name = None if is_crowd else names.get(category, f"category_id {category}")
            records[number].append((where, name, annotation.get("segmentation")))
        except InputError as error:
            result.faults.append(str(error))
            number = annotation.get("image_id") if isinstance(annotation, dict) else None
            if isinstance(number, int) and number in images:
                records[number].append((where, "", None))
    for number, image in images.items():
        where = f"{path}: {image['file_name']}"
        try:
            found = finder.find(image["file_name"], str(path), split)
        except InputError as error:
            result.faults.append(str(error))
            continue
        record = sorted(records[number], key=lambda item: item[1] is not None)  # crowds first: objects cover them
        size = size_of(image, "height", "width", where)
        name = posixpath.join(folder, output_name(image["file_name"]))
        result.entries.append(Entry(name, where, found, record, size, split="" if folder else split))


def draw(entry: Entry, size: tuple[int, int], options: Options, faults: list[str]) -> Iterator[Region]:
    """Yield crowds, which are ignored, then objects in the order of the file, each the union of its polygons."""
    if any(name == "" for _, name, _ in entry.record):
        raise InputError(f"{entry.where}: has an annotation that cannot be used: skipped")

    def shapes() -> Iterator[Shape]:
        for where, name, segmentation in entry.record:
            yield name, where, functools.partial(_patch, segmentation, where, size, faults)

    return draw_shapes(shapes(), faults)


def _patch(segmentation: object, where: str, size: tuple[int, int], faults: list[str]) -> Patch:
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
        except FewPointsError as error:
            few.append(error)
            continue
        patches.append(polygons.fill([points], size))
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
