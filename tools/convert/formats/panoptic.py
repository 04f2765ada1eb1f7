"""COCO's panoptic format: a JSON file, and a folder of PNGs whose colours are numbers of segments.

Format: https://cocodataset.org/#format-data, section 4. A pixel belongs to the segment with the number
R + 256 * G + 256**2 * B; 0 is unlabelled. Each item of `annotations` has image_id, file_name (the PNG) and
segments_info, whose items have id, category_id and iscrowd. The PNGs of X.json are in the folder X beside it.
"""

import posixpath
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data.images import decode
from support.errors import InputError, UserError
from tools.convert.formats.coco import image_finder, index_images, read_files, split_folder
from tools.convert.reading import ImageFinder, output_name, size_of, split_of, value_of
from tools.convert.source import Entry, Options, Region, Source


def read(source: Path, options: Options) -> Source:
    """Return the images and classes of a panoptic file, or of all such files below a folder."""

    def read_one(content: dict, names: dict[int, str], path: Path, root: Path, result: Source) -> None:
        images = index_images(content, path, result.faults)
        folder = split_folder(root, path)
        split = split_of(path.stem) if source.is_dir() and not folder else ""
        _read_annotations(content, images, names, path, folder, split, image_finder(root, path, options), result)

    return read_files(source, "panoptic", "annotations", read_one)


def _read_annotations(
    content: dict,
    images: dict[int, dict],
    names: dict[int, str],
    path: Path,
    folder: str,
    split: str,
    finder: ImageFinder,
    result: Source,
) -> None:
    """Add an entry for each annotation of a panoptic file. folder, split: see coco._read_images()."""
    for position, annotation in enumerate(value_of(content, "annotations", list, str(path))):
        where = f"{path}: annotations[{position}]"
        try:
            number = value_of(annotation, "image_id", int, where)
            segments = path.with_suffix("") / value_of(annotation, "file_name", str, where)
            if number not in images:
                raise InputError(f"{where}: image_id {number} is not in 'images'")
            if not segments.is_file():
                raise InputError(
                    f"{where}: {segments}: no such file; the PNGs are looked for in {path.with_suffix('')}"
                )
            classes = {}
            for segment in value_of(annotation, "segments_info", list, where):
                category = value_of(segment, "category_id", int, where)
                name = None if segment.get("iscrowd") else names.get(category, f"category_id {category}")
                classes[value_of(segment, "id", int, where)] = name
            image = images[number]
            found = finder.find(image["file_name"], str(path), split)
        except InputError as error:
            result.faults.append(str(error))
            continue
        size = size_of(image, "height", "width", where)
        name = posixpath.join(folder, output_name(image["file_name"]))
        where = f"{path}: {image['file_name']}"
        result.entries.append(Entry(name, where, found, (segments, classes), size, split=split))


def draw(entry: Entry, size: tuple[int, int], options: Options, faults: list[str]) -> Iterator[Region]:
    """Yield the segments of an image; they do not overlap."""
    path, classes = entry.record
    try:
        pixels = decode(path, lambda image: image.convert("RGB") if image.mode == "RGBA" else image)
    except UserError as error:
        raise InputError(str(error)) from None
    if pixels.ndim != 3 or pixels.dtype != np.uint8:
        raise InputError(f"{path}: not an RGB image: the segments' numbers are its colours")
    if pixels.shape[:2] != size:
        raise InputError(f"{path}: {pixels.shape[1]}x{pixels.shape[0]} pixels, but the image has {size[1]}x{size[0]}")
    numbers = pixels.astype(np.uint32) @ np.array([1, 256, 65536], np.uint32)
    present = np.unique(numbers)
    unknown = [number for number in present.tolist() if number and number not in classes]
    if unknown:
        raise InputError(f"{path}: segment {unknown[0]} is not in segments_info ({len(unknown)} such): skipped")
    for number, name in classes.items():
        if number in present:
            yield Region(name, 0, 0, numbers == number)
        else:
            faults.append(f"{path}: segment {number} has no pixel: left out")
