"""Read the values of images of any bits and bands: TIFF, PNG of 16 bits, and what data.images reads."""

import contextlib
import logging
import math
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from data.images import Header, files, read_header
from support import shell
from support.errors import InputError, NotRGBError, UserError
from support.files import read_bytes

import_extra = partial(shell.import_extra, extra="tiff", feature="TIFF of more than 8 bits or other bands than RGB")

MAX_BYTES = 2**32  # of a PNG file
END_OF_PNG = b"IEND\xaeB`\x82"
ORIENTATION, NODATA = 274, 42113  # tags of TIFF; the second one is GDAL's
MODES = ("L", "LA", "RGB", "RGBA")  # PIL's modes of 8 bits whose values are read as they are; others become RGB
PALETTE = 3  # a value of the tag PhotometricInterpretation


def any_header(path: Path) -> Header:
    """Return the Header of an image of any bits and bands. Reads no pixels. Raises InputError if it is damaged."""
    try:
        return read_header(path)
    except NotRGBError:
        return deep_header(path)


def deep_header(path: Path) -> Header:
    """Return a file's Header, as read_values() reads it. Raises InputError if it cannot be read."""
    if files.is_tiff(path):
        with _tiff(path) as (parts, tags):
            size, turn = _size(parts[0]), _orientation(tags)
            bands = sum(math.prod(part.shape) for part in parts) // math.prod(size)
            return Header(size[::-1] if turn > 4 else size, turn, 1, bands, parts[0].dtype.name, is_rgb=False)
    with files.opened(path, files.VALUES) as image:
        is_deep = files.bits(image) == 16  # looking for the orientation may load the pixels
        turn, size, frames = files.orientation(image), (image.height, image.width), files.num_frames(path, image)
        bands = len(image.getbands()) if is_deep or image.mode in MODES else 3
        kind = "uint16" if is_deep else "uint8"
        return Header(size[::-1] if turn > 4 else size, turn, frames, bands, kind, is_rgb=False)


def read_values(path: Path) -> tuple[np.ndarray, float | None]:
    """Return an image's values (H, W, bands) of the file's dtype, upright, and the value for "no data", or None.

    The pages of a TIFF file are bands, too, except smaller ones. Raises InputError if the file cannot be read, and
    UserError if a package for it is missing.
    """
    if files.is_tiff(path):
        return _read_tiff(path)
    with files.opened(path, files.VALUES) as image:
        if files.bits(image) == 16:
            values, turn = _read_png(path), files.orientation(image)
            return _upright(values, turn), None
        files.turn_upright(image)
        values = np.array(image if image.mode in MODES else image.convert("RGB"))
    return values.reshape(*values.shape[:2], -1), None


@contextlib.contextmanager
def _tiff(path: Path) -> Iterator[tuple[list[Any], dict[int, Any]]]:
    """Yield the largest images of a TIFF file, each a tifffile.TiffPageSeries, and the tags {number: value} of one.

    Thumbnails, overviews and masks of transparency are left out. Turns exceptions about the file, here and in the
    `with` block, into an InputError.
    """
    tifffile = import_extra("tifffile")
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # it would print a line of its own for a damaged file
    try:
        with tifffile.TiffFile(path, is_ome=False) as file:  # OME's metadata may refer to other files
            images = [part for part in file.series if {"Y", "X"} <= set(part.axes) and not part.keyframe.is_mask]
            largest = max(map(_size, images), key=math.prod, default=(0, 0))
            parts = [part for part in images if _size(part) == largest]
            if not math.prod(largest):
                raise InputError(f"{path}: no image of rows and columns: replace it")
            if len({part.dtype for part in parts}) > 1 or parts[0].keyframe.photometric == PALETTE:
                kinds = " and ".join(dict.fromkeys(part.dtype.name for part in parts))
                raise InputError(f"{path}: its pages have {kinds} values, or a palette: save one kind of values")
            _check_whole(path, file, parts)
            yield parts, {tag.code: tag.value for tag in parts[0].keyframe.tags}
    except UserError:
        raise
    except (*files.DAMAGED, tifffile.TiffFileError) as error:  # a TiffFileError is a ValueError only in newer versions
        if "imagecodecs" in str(error):
            import_extra("imagecodecs")
        problem = f"not a whole, readable image ({' '.join(str(error).split())})"
        raise InputError(f"{path}: {problem}: replace it") from None


def _size(part: Any) -> tuple[int, int]:
    """Return the (height, width) of a tifffile.TiffPageSeries."""
    sides = dict(zip(part.axes, part.shape, strict=True))
    return sides["Y"], sides["X"]


def _check_whole(path: Path, file: Any, parts: list[Any]) -> None:
    """Raise InputError if pixels or pages of a TIFF file lie beyond its end, or if there are too many pixels.

    tifffile may read such pixels as 0, and leaves out such pages.
    """
    most = Image.MAX_IMAGE_PIXELS
    if most and math.prod(_size(parts[0])) > 2 * most:
        raise InputError(f"{path}: too large ({_size(parts[0])}): cut it into smaller images")
    pages = [page for part in parts for page in part.pages]
    ends = [at + n for page in pages for at, n in zip(page.dataoffsets, page.databytecounts, strict=True)]
    handle, kind = file.filehandle, file.tiff
    handle.seek(file.pages[-1].offset)  # its number of tags, the tags, and the offset of the next page
    handle.seek(struct.unpack(kind.tagnoformat, handle.read(kind.tagnosize))[0] * kind.tagsize, 1)
    is_last = struct.unpack(kind.offsetformat, handle.read(kind.offsetsize)) == (0,)
    if max(ends, default=0) > handle.size or not is_last:
        raise InputError(f"{path}: not a whole, readable image (its end is missing): replace it")


def _read_tiff(path: Path) -> tuple[np.ndarray, float | None]:
    with _tiff(path) as (parts, tags):
        bands = []
        for part in parts:
            values = part.asarray(maxworkers=1)  # the loader has its own processes
            values = np.moveaxis(values, (part.axes.index("Y"), part.axes.index("X")), (0, 1))
            bands.append(values.reshape(*values.shape[:2], -1))
        nodata = None
        with contextlib.suppress(ValueError):
            nodata = float(tags[NODATA].strip("\0 ")) if NODATA in tags else None
        return _upright(bands[0] if len(bands) == 1 else np.concatenate(bands, axis=2), _orientation(tags)), nodata


def _read_png(path: Path) -> np.ndarray:
    """Return the values of a PNG of 16 bits: (H, W, bands) uint16. OpenCV, unlike PIL, reads colours of 16 bits."""
    data = read_bytes(path, MAX_BYTES)
    values = files.decode_bytes(data, cv2.IMREAD_UNCHANGED) if END_OF_PNG in data[-64:] else None
    if values is None:
        raise InputError(f"{path}: not a whole, readable image: replace it")
    values = values.reshape(*values.shape[:2], -1)
    return values[..., [2, 1, 0, *range(3, values.shape[2])]] if values.shape[2] > 2 else values  # from BGR


def _orientation(tags: dict[int, Any]) -> int:
    turn = tags.get(ORIENTATION, 1)
    return int(turn) if turn in range(2, 9) else 1


def _upright(values: np.ndarray, turn: int) -> np.ndarray:
    """Return an image turned as an EXIF orientation of 1 to 8 says (Exif 2.32, table 6)."""
    values = values.swapaxes(0, 1) if turn > 4 else values
    values = values[::-1] if turn in (3, 4, 7, 8) else values
    values = values[:, ::-1] if turn in (2, 3, 6, 7) else values
    return np.ascontiguousarray(values)
