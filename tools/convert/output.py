"""Write OUT: images, masks and classes.txt, as --dataset Folder reads them. Nothing that exists is overwritten."""

import contextlib
import filecmp
import os
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from data.images import decoding, image_size, label_png
from support.errors import InputError, UserError
from support.files import write_atomic, writing
from support.labels import IGNORE
from tools.convert.numbering import Numbering
from tools.convert.source import Draw, Entry, Options


class Job(NamedTuple):
    """What all entries have in common. options: the flags. folders: where the images and the masks go."""

    draw: Draw
    options: Options
    numbering: Numbering
    folders: tuple[Path, Path]


@dataclass
class Result:
    """What became of an entry. pixels: {label value: number}, None if it was skipped. unlisted: {class: shapes}.

    how: "linked", "copied", "written" or "kept" (the image of an earlier start).
    """

    pixels: dict[int, int] | None = None
    faults: list[str] = field(default_factory=list)
    unlisted: Counter = field(default_factory=Counter)
    how: str = ""


def convert(entry: Entry, job: Job) -> Result:
    """Write the image and the mask of an entry. An entry that cannot be used is skipped and named in Result.faults."""
    result = Result()
    try:
        if entry.extract is None:
            _check_image(entry.image, entry)
            source: Path | bytes = entry.image
            suffix = entry.image.suffix
        else:
            source, suffix = entry.extract(entry.image)
        image = job.folders[0] / f"{entry.name}{suffix}"
        with _image_at(image, source, job, result) as path:
            size = _check_image(path, entry) if isinstance(source, bytes) else image_size(path)
            label = _paint(entry, size, job, result)
            _write_mask(job.folders[1] / f"{entry.name}.png", label, job.numbering.colours)
    except InputError as error:
        result.faults.append(str(error))
        return result
    values, counts = np.unique(label, return_counts=True)
    result.pixels = dict(zip(values.tolist(), counts.tolist(), strict=True))
    return result


def _check_image(path: Path, entry: Entry) -> tuple[int, int]:
    """Return the (height, width) of an image. Raises InputError if it is damaged or not of the size it should have."""
    try:
        size = image_size(path)
        with decoding(path), Image.open(path) as image:
            image.load()
    except UserError as error:
        raise InputError(
            str(error).replace(str(path), f"{entry.where}: image" if entry.extract else str(path))
        ) from None
    if entry.size not in (None, size):
        turned = " (EXIF turns the image: save it upright)" if entry.size == size[::-1] else ""
        raise InputError(
            f"{entry.where}: annotated as {entry.size[1]}x{entry.size[0]} pixels, but the image has "
            f"{size[1]}x{size[0]}{turned}: skipped"
        )
    return size


@contextlib.contextmanager
def _image_at(target: Path, source: Path | bytes, job: Job, result: Result):
    """Yield the path of an image's pixels; put the image at `target` if the body succeeds.

    Raises InputError if another image is there.
    """
    if target.exists():
        same = (
            target.read_bytes() == source if isinstance(source, bytes) else filecmp.cmp(source, target, shallow=False)
        )
        if not same:
            raise InputError(f"{target}: exists and differs: not overwritten; remove it to convert it again")
        result.how = "kept"
        yield target
        return
    with writing(target, parents=True) as scratch:
        if isinstance(source, bytes):
            scratch.write_bytes(source)
            result.how = "written"
        elif job.options.copy or not _link(source, scratch):
            shutil.copyfile(source, scratch)
            result.how = "copied"
        else:
            result.how = "linked"
        yield scratch


def _link(source: Path, target: Path) -> bool:
    """Make a hard link; return False if the file system cannot."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        return False
    return True


def _paint(entry: Entry, size: tuple[int, int], job: Job, result: Result) -> np.ndarray:
    """Return the label map (height, width) uint8 of an entry: its regions over each other in drawing order."""
    numbering = job.numbering
    unlisted = numbering.unlabelled if job.options.unlisted == "background" else IGNORE
    label = np.full(size, numbering.unlabelled, np.uint8)
    for name, top, left, mask in job.draw(entry, size, job.options, result.faults):
        value = IGNORE if name is None else numbering.numbers.get(name, unlisted)
        if name is not None and name not in numbering.numbers:
            result.unlisted[name] += 1
        label[top : top + mask.shape[0], left : left + mask.shape[1]][mask] = value
    return label


def _write_mask(target: Path, label: np.ndarray, colours: np.ndarray) -> None:
    """Write a palette PNG, unless it is there. Raises InputError if another mask is there."""
    if target.exists():
        with decoding(target), Image.open(target) as present:
            if not np.array_equal(np.asarray(present), label):
                raise InputError(f"{target}: exists and differs: not overwritten; remove it to convert it again")
        return
    write_atomic(target, label_png(label, colours), parents=True)
