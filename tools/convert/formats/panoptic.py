"""COCO's panoptic format: a JSON file, and a folder of PNGs whose colours are numbers of segments.

Format: https://cocodataset.org/#format-data, section 4. A pixel belongs to the segment with the number
R + 256 * G + 256**2 * B; 0 is unlabelled. Each item of `annotations` has image_id, file_name (the PNG) and
segments_info, whose items have id, category_id and iscrowd. The PNGs of X.json are in the folder X beside it.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from support.errors import InputError
from tools.convert.formats.coco import File, read_files
from tools.convert.formats.pairs import decode_mask
from tools.convert.reading import value_of
from tools.convert.source import Entry, Options, Region, Source, collect

Record = tuple[int, tuple[Path, dict[int, str | None]]]


def read(source: Path, options: Options) -> Source:
    """Return the images and classes of a panoptic file, or of all such files below a folder."""
    return read_files(source, options, "panoptic", "annotations", _records)


def _records(file: File, result: Source) -> Iterator[Record]:
    """Yield the image's id, the PNG and {number: class} of its segments for each annotation."""

    def read_one(numbered: tuple[int, dict]) -> Record:
        position, annotation = numbered
        where = f"{file.path}: annotations[{position}]"
        number = value_of(annotation, "image_id", int, where)
        segments = file.path.with_suffix("") / value_of(annotation, "file_name", str, where)
        if number not in file.images:
            raise InputError(f"{where}: image_id {number} is not in 'images'")
        if not segments.is_file():
            looked = file.path.with_suffix("")
            raise InputError(f"{where}: {segments}: no such file; the PNGs are looked for in {looked}")
        classes = {}
        for segment in value_of(annotation, "segments_info", list, where):
            category = value_of(segment, "category_id", int, where)
            name = None if segment.get("iscrowd") else file.names.get(category, f"category_id {category}")
            classes[value_of(segment, "id", int, where)] = name
        return number, (segments, classes)

    annotations = value_of(file.content, "annotations", list, str(file.path))
    return collect(read_one, enumerate(annotations), result.faults)


def draw(entry: Entry, size: tuple[int, int], options: Options, faults: list[str]) -> Iterator[Region]:
    """Yield the segments of an image; they do not overlap."""
    path, classes = entry.record
    pixels = decode_mask(path, lambda image: image.convert("RGB") if image.mode == "RGBA" else image, size)
    if pixels.ndim != 3 or pixels.dtype != np.uint8:
        raise InputError(f"{path}: not an RGB image: the segments' numbers are its colours")
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
