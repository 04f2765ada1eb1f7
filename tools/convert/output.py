"""Write OUT: images, masks and classes.txt, as --dataset Folder reads them. Nothing that exists is overwritten."""

import contextlib
import filecmp
import json
import os
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from data.images import decoding, image_size, label_png
from support.errors import InputError, UserError
from support.files import write_atomic, writing
from support.labels import IGNORE
from tools.claims import ANOTHER_COMMAND, read_mark
from tools.convert.source import Draw, Entry, Options

MARK = ".convert.json"  # what OUT was converted from; a hidden file, which readers of data sets skip


@dataclass(frozen=True)
class Job:
    """What all entries have in common. numbers and unlabelled: see Numbering. prefix: folder of the split, or "".

    unlisted: label value of classes that have no number. palette: 768 bytes. copy: copy images instead of linking them.
    folders: of the images and of the masks, in `out`.
    """

    out: Path
    prefix: str
    draw: Draw
    options: Options
    numbers: dict[str, int]
    unlabelled: int
    unlisted: int
    palette: bytes
    copy: bool
    folders: tuple[str, str]


@dataclass
class Result:
    """What became of an entry. pixels: {label value: number}, None if it was skipped. unlisted: {class: shapes}.

    how: "linked", "copied", "written" or "kept" (the image of an earlier start).
    """

    pixels: dict[int, int] | None = None
    faults: list[str] = field(default_factory=list)
    unlisted: Counter = field(default_factory=Counter)
    how: str = ""


def prepare(out: Path, classes: str, split: str, settings: dict) -> None:
    """Create OUT with its classes.txt, or check that it is the result of the same command, or of another split.

    classes: content of classes.txt. settings: what the command converts; JSON. Raises UserError if OUT has other
    content, before anything is written.
    """
    done = read_mark(out / MARK) or {}
    name = split or "all"
    if done.get(name, settings) != settings or (done and bool(split) == ("all" in done)):
        raise UserError(f"{out}: {ANOTHER_COMMAND}")
    written = out / "classes.txt"
    if written.is_file() and written.read_text(encoding="utf-8") != classes:
        raise UserError(
            f"{written}: other classes than those of this command: name a new folder, or add --classes {written}"
        )
    write_atomic(out / MARK, json.dumps(done | {name: settings}, indent=1), parents=True)
    if not written.is_file():
        write_atomic(written, classes)


def convert(entry: Entry, job: Job) -> Result:
    """Write the image and the mask of an entry. An entry that cannot be used is skipped and named in Result.faults."""
    result = Result()
    try:
        if entry.extract is None:
            _check_image(entry.image, entry, job)
            source: Path | bytes = entry.image
            suffix = entry.image.suffix
        else:
            source, suffix = entry.extract(entry.image)
        image = job.out / job.folders[0] / f"{job.prefix}{entry.name}{suffix}"
        with _image_at(image, source, job, result) as path:
            size = _check_image(path, entry, job) if isinstance(source, bytes) else image_size(path)
            label = _paint(entry, size, job, result)
            _write_mask(job.out / job.folders[1] / f"{job.prefix}{entry.name}.png", label, job.palette)
    except InputError as error:
        result.faults.append(str(error))
        return result
    values, counts = np.unique(label, return_counts=True)
    result.pixels = dict(zip(values.tolist(), counts.tolist(), strict=True))
    return result


def _check_image(path: Path, entry: Entry, job: Job) -> tuple[int, int]:
    """Return the (height, width) of an image. Raises InputError if it is damaged or not of the size it should have."""
    try:
        size = image_size(path)
        if path.suffix.lower() not in (".tif", ".tiff"):  # those of many channels are not for PIL
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
        elif job.copy or not _link(source, scratch):
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
    label = np.full(size, job.unlabelled, np.uint8)
    for name, top, left, mask in job.draw(entry, size, job.options, result.faults):
        value = IGNORE if name is None else job.numbers.get(name, job.unlisted)
        if name is not None and name not in job.numbers:
            result.unlisted[name] += 1
        label[top : top + mask.shape[0], left : left + mask.shape[1]][mask] = value
    return label


def _write_mask(target: Path, label: np.ndarray, palette: bytes) -> None:
    """Write a palette PNG, unless it is there. Raises InputError if another mask is there."""
    if target.exists():
        with decoding(target), Image.open(target) as present:
            if not np.array_equal(np.asarray(present), label):
                raise InputError(f"{target}: exists and differs: not overwritten; remove it to convert it again")
        return
    colours = np.frombuffer(palette, np.uint8)
    write_atomic(target, label_png(label, colours), parents=True)


def drop_clashes(entries: list[Entry], faults: list[str]) -> list[Entry]:
    """Return the entries without those whose name an earlier one has, in any letter case; add a line for each."""
    taken: dict[str, Entry] = {}
    for entry in entries:
        other = taken.setdefault(entry.name.casefold(), entry)
        if other is not entry:
            faults.append(f"{entry.where}: its output {entry.name!r} would replace that of {other.where}: skipped")
    return list(taken.values())
