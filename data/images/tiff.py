"""Read TIFF files of any number of channels with tifffile, whole or by rows.

Pillow reads few of these: four channels, eight bits. OpenCV reads at most four channels, and of 16-bit or float files
with separate planes it returns wrong pixels (tests/test_rasters.py).
"""

import importlib
import itertools
import logging
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from support import shell
from support.errors import UserError

if TYPE_CHECKING:
    from tifffile import TiffPage

NONE, LZW, DEFLATE, PACKBITS, LZMA, ZSTANDARD = 1, 5, (8, 32946), 32773, 34925, 50000
BY_IMAGECODECS = {LZW: "LZW", PACKBITS: "PackBits", ZSTANDARD: "Zstandard"}  # tifffile alone has none or a slow one
FLOAT_PREDICTOR = 3  # needs imagecodecs, too
PHOTOMETRIC, ORIENTATION = 262, 274  # tags
UNREAD = {0: "0 is white", 3: "a palette", 6: "YCbCr"}  # values of PHOTOMETRIC
REDUCED, MASK = 1, 4  # bits of a page's subfile type: thumbnails, overviews and masks
MAX_PAGES = 64
MAX_RATIO = 2**17  # of pixel bytes to compressed bytes; a larger one means a damaged header

logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what matters of a damaged file is raised here


class TiffRaster:
    """A TIFF file. If each of its pages has one channel, and all are of one size and type, the pages are channels."""

    def __init__(self, path: Path):
        first, *others = _pages(path)
        alike = [page for page in others if page.shape == first.shape and page.dtype == first.dtype]
        self.path = path
        self.pages = [first, *alike] if first.samplesperpixel == 1 else [first]
        for page in self.pages:
            _check(path, page)
        self.shape = first.imagelength, first.imagewidth, first.samplesperpixel * len(self.pages)
        self.dtype = np.dtype(first.dtype)
        self.unit = 1 if first.is_final else _block(first)[0]
        has_colours = first.tags.valueof(PHOTOMETRIC) == 2 and self.dtype == np.uint8
        self.is_rgb = has_colours and first.samplesperpixel in (3, 4)
        self.has_unknown = self.is_rgb and first.samplesperpixel == 4 and not any(first.extrasamples[:1])

    def rows(self, top: int, bottom: int) -> np.ndarray:
        out = np.empty((bottom - top, *self.shape[1:]), self.dtype)
        with self.path.open("rb") as file:
            for number, page in enumerate(self.pages):
                part = out[..., number : number + page.samplesperpixel]
                if page.is_final:
                    part[:] = _mapped(self.path, page)[top:bottom]
                else:
                    _decode(file, page, top, part)
        return out


def _pages(path: Path) -> "list[TiffPage]":
    """Return a file's pages without thumbnails, overviews and masks. Raises ValueError if there is none."""
    import tifffile  # here, as its import takes 0.15 s

    with tifffile.TiffFile(path) as file:
        pages = [page.aspage() for page in itertools.islice(file.pages, MAX_PAGES)]
    pages = [page for page in pages if not page.subfiletype & (REDUCED | MASK)]
    if not pages:
        raise ValueError("it has no image")
    return pages


def _check(path: Path, page: "TiffPage") -> None:
    """Raise UserError for a compression or a meaning of values that is not read, ValueError for damaged fields."""
    meaning = page.tags.valueof(PHOTOMETRIC, default=1)
    orientation = page.tags.valueof(ORIENTATION, default=1)
    problems = {
        f"compression {page.compression}": page.compression not in (NONE, *DEFLATE, LZMA, *BY_IMAGECODECS),
        f"predictor {page.predictor}": page.predictor not in (1, 2, FLOAT_PREDICTOR),
        UNREAD.get(meaning, ""): meaning in UNREAD,
        f"orientation {orientation}": orientation != 1,
        f"{page.bitspersample} bits": page.dtype is None or page.bitspersample != 8 * page.dtype.itemsize,
    }
    for problem in (name for name, is_found in problems.items() if is_found):
        raise UserError(f"{path}: {problem}: save it as a plain TIFF file (8 or 16 bits or float32, LZW or Deflate)")
    if page.compression in BY_IMAGECODECS or page.predictor == FLOAT_PREDICTOR:
        try:
            importlib.import_module("imagecodecs")
        except ImportError:
            name = BY_IMAGECODECS.get(page.compression, "the predictor for floats")
            raise UserError(f"{path}: {name} needs the package imagecodecs: {shell.install_command('tiff')}") from None
    stored = sum(page.databytecounts)
    if (
        page.nbytes > stored * (1 if page.compression == NONE else MAX_RATIO)
        or math.prod(page.chunks) > stored * MAX_RATIO
    ):
        raise ValueError(f"{page.nbytes} bytes of pixels do not fit its data")


def _block(page: "TiffPage") -> tuple[int, int]:
    """Return the (rows, columns) that are stored together: of a tile or a strip."""
    return (page.tilelength, page.tilewidth) if page.is_tiled else (page.rowsperstrip, page.imagewidth)


def _planes(page: "TiffPage") -> int:
    return page.samplesperpixel if page.planarconfig == 2 else 1


def _mapped(path: Path, page: "TiffPage") -> np.ndarray:
    """Return the values of a page whose data are stored like an array, (H, W, C).

    Mapped anew for each call: what was read would stay in this process's memory.
    """
    shape = _planes(page), page.imagelength, page.imagewidth, page.samplesperpixel // _planes(page)
    dtype = np.dtype(page.dtype).newbyteorder(page.parent.byteorder)
    values = np.memmap(path, dtype, "r", page.dataoffsets[0], shape)
    return values[0] if len(values) == 1 else values[..., 0].transpose(1, 2, 0)


def _decode(file: BinaryIO, page: "TiffPage", top: int, out: np.ndarray) -> None:
    """Fill `out`, (rows, W, C), with a page's rows from `top` on. Only their strips or tiles are read."""
    height, width = _block(page)
    bottom, across, down = top + len(out), -(-page.imagewidth // width), -(-page.imagelength // height)
    places = itertools.product(range(top // height, -(-bottom // height)), range(across), range(_planes(page)))
    for row, column, plane in places:
        number = (plane * down + row) * across + column
        start, size = page.dataoffsets[number], page.databytecounts[number]
        if start + size > os.fstat(file.fileno()).st_size:
            raise ValueError("the file is truncated")
        file.seek(start)
        block, (_, _, first, left, _), _ = page.decode(file.read(size), number)
        assert block is not None  # which it is of no data only
        values = block[0, max(0, top - first) : bottom - first, : page.imagewidth - left]
        begin = max(0, first - top)
        out[begin : begin + len(values), left : left + width, plane : plane + values.shape[2]] = values
