"""Write images and masks, as --dataset Folder reads them. Nothing that exists is overwritten."""

import contextlib
import filecmp
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data.images import label_png
from data.images.deep import any_header, read_values
from data.images.files import MASK, opened
from support.errors import InputError, NotRGBError
from support.files import write_atomic, write_errors, writing
from support.labels import IGNORE
from tools.convert.drawing import LINE_WIDTH, STROKE_WIDTH
from tools.convert.formats.labelme import embedded_image
from tools.convert.source import Converted, Entry, Kind, Numbering, Options

DIFFERS = "exists and differs: not overwritten; remove it to convert it again"


def convert(entry: Entry, kind: Kind, options: Options, numbering: Numbering, images: Path, masks: Path) -> Converted:
    """Write the image and the mask of an entry to these folders. Converted.fault says why they cannot be written."""
    result = Converted()
    try:
        with _image_file(entry) as image:
            label = paint(entry, _check_image(entry, image), kind, options, numbering, result)
            write_mask(masks / f"{entry.name}.png", label, numbering.colours)
            put_image(images / f"{entry.name}{image.suffix}", image)
    except InputError as error:
        result.fault = str(error)
    except MemoryError:
        result.fault = f"{entry.where}: ran out of memory: skipped; lower --workers"
    return result


@contextlib.contextmanager
def _image_file(entry: Entry) -> Iterator[Path]:
    """Yield the file of an entry's image: a temporary one if the image is inside of its annotation file."""
    if entry.image.suffix.lower() != ".json":
        yield entry.image
        return
    data, suffix = embedded_image(entry.image)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"image{suffix}"
        write_atomic(path, data)
        try:
            yield path
        except InputError as error:
            raise InputError(str(error).replace(str(path), f"{entry.image}: imageData")) from None


def _check_image(entry: Entry, file: Path) -> tuple[int, int]:
    """Return the (height, width) of an image. Raises InputError if it is damaged or not of the size it should have."""
    size, turn, *_ = any_header(file)
    try:
        with opened(file, MASK) as image:  # not IMAGE: 16-bit grey is copied as it is
            image.load()
    except NotRGBError:
        read_values(file)
    if entry.size not in (None, size):
        why = "EXIF turns the image: save it upright" if turn > 4 else "width and height are swapped: correct them"
        swapped = f" ({why})" if entry.size == size[::-1] else ""
        raise InputError(
            f"{entry.where}: annotated as {entry.size[1]}x{entry.size[0]} pixels, but the image has "
            f"{size[1]}x{size[0]}{swapped}: skipped"
        )
    return size


def paint(
    entry: Entry, size: tuple[int, int], kind: Kind, options: Options, numbering: Numbering, result: Converted
) -> np.ndarray:
    """Return the label map (height, width) uint8 of an entry: its regions over each other in drawing order."""
    width = options.line_width or (STROKE_WIDTH if options.scribbles else LINE_WIDTH)
    label, is_free = np.full(size, numbering.unlabelled, np.uint8), np.ones(size, bool)
    for name, where, data in kind.shapes(entry.record, size, options, result) if kind.shapes else entry.record:
        top, left, mask, is_thin = kind.patch(data, where, size, width)
        if not mask.any():
            result.empty.append(where)
            continue
        result.thin += [where] if is_thin else []
        if name not in numbering.numbers:
            result.unlisted.setdefault(name, []).append(where)
        value = numbering.numbers.get(name, IGNORE)
        box = slice(top, top + mask.shape[0]), slice(left, left + mask.shape[1])
        label[box][mask], is_free[box][mask] = value, False
    result.num_pixels, result.num_unlabelled = is_free.size, int(is_free.sum())
    return label


def write_mask(target: Path, label: np.ndarray, colours: np.ndarray) -> None:
    """Write a palette PNG, unless it is there. Raises InputError if another mask is there."""
    if not os.path.lexists(target):
        write_atomic(target, label_png(label, colours), parents=True)
        return
    is_same = False
    with contextlib.suppress(InputError), opened(target, MASK) as present:
        is_same = np.array_equal(np.asarray(present), label)
    if not is_same:  # or a folder, or a link to nothing
        raise InputError(f"{target}: {DIFFERS}")


def put_image(target: Path, source: Path) -> None:
    """Make a hard link to an image, or a copy if the disk cannot link. Raises InputError if another image is there."""
    if os.path.lexists(target):
        if not (target.is_file() and filecmp.cmp(source, target, shallow=False)):
            raise InputError(f"{target}: {DIFFERS}")
        return
    with write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        os.link(source.resolve(), target)
        return
    with writing(target) as scratch:
        shutil.copyfile(source, scratch)
