"""Read TIFF files of any number of channels, whole or by rows.

Pillow reads few of these: four channels, eight bits. OpenCV reads at most four channels, and of 16-bit or float files
with separate planes it returns wrong pixels (tests/test_rasters.py). Sources: TIFF 6.0; BigTIFF; Adobe's technical
notes 1 (tiles, predictors) and 3 (floating point).
"""

import io
import struct
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from errors import UserError

# Tags: section 8 of TIFF 6.0, and sections 14, 15 and 19.
SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, ORIENTATION = 254, 256, 257, 258, 259, 262, 274
STRIP_STARTS, SAMPLES, STRIP_ROWS, STRIP_SIZES, PLANAR, PREDICTOR = 273, 277, 278, 279, 284, 317
TILE_WIDTH, TILE_HEIGHT, TILE_STARTS, TILE_SIZES, SAMPLE_FORMAT = 322, 323, 324, 325, 339
EXTRA_SAMPLES = 338
DEFAULTS = {SUBFILE: 0, BITS: 1, COMPRESSION: 1, PHOTOMETRIC: 1, ORIENTATION: 1, SAMPLES: 1, PLANAR: 1, PREDICTOR: 1}
DEFAULTS |= {EXTRA_SAMPLES: 0, SAMPLE_FORMAT: 1, STRIP_ROWS: 2**32 - 1}
INTEGERS = {1: "B", 3: "H", 4: "I", 16: "Q"}  # TIFF's types of field
NONE, DEFLATE = 1, (8, 32946)
BY_PILLOW = {
    5: "LZW",
    32773: "PackBits",
    50000: "Zstandard",
    34925: "LZMA",
}  # codecs of bytes: Pillow undoes them, this module reads the values
REDUCED, MASK = 1, 4  # bits of SUBFILE
DTYPES = {(8, 1): "u1", (16, 1): "u2", (16, 2): "i2", (32, 3): "f4"}  # by bits and sample format
MAX_PAGES = 64
MAX_RATIO = 2**17  # of pixel bytes to compressed bytes; a larger one means a damaged header


@dataclass
class Page:
    """One image of a file: its fields, {tag: values}, and what follows from them."""

    path: Path
    order: str  # of bytes: "<" or ">"
    fields: dict[int, tuple[int, ...]] = field(repr=False)

    def __getitem__(self, tag: int) -> int:
        """Return the first value of a field, or TIFF's default. Raises ValueError if a required field is missing."""
        if tag not in self.fields and tag not in DEFAULTS:
            raise ValueError(f"tag {tag} is missing")
        return self.fields[tag][0] if tag in self.fields else DEFAULTS[tag]

    @cached_property
    def dtype(self) -> np.dtype:
        """Return the type of a value in the file's byte order. Raises UserError for one that is not read."""
        kinds = set(self.fields.get(BITS, (1,))), set(self.fields.get(SAMPLE_FORMAT, (1,)))
        (bits, *more_bits), (form, *more_forms) = kinds
        name = DTYPES.get((bits, 1 if form == 4 else form))  # 4: undefined
        if name is None or more_bits or more_forms:
            kind = {1: "unsigned integers", 2: "integers", 3: "floats"}.get(form, "values")
            raise UserError(f"{self.path}: {kind} of {bits} bits: convert them to 8 or 16 bits, or to float32")
        return np.dtype(self.order + name)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self[HEIGHT], self[WIDTH], self[SAMPLES]

    @property
    def block(self) -> tuple[int, int]:
        """Return the (rows, columns) that are stored together: of a tile or a strip."""
        if TILE_STARTS in self.fields:
            return self[TILE_HEIGHT], self[TILE_WIDTH]
        return min(self[STRIP_ROWS], self[HEIGHT]), self[WIDTH]

    def check(self) -> None:
        """Raise UserError for a compression or a meaning of values that is not read."""
        problems = {
            f"compression {self[COMPRESSION]}": self[COMPRESSION] not in (NONE, *DEFLATE, *BY_PILLOW),
            f"predictor {self[PREDICTOR]}": self[PREDICTOR] not in (1, 2, 3),
            "a palette": self[PHOTOMETRIC] == 3,
            "0 is white": self[PHOTOMETRIC] == 0,
            f"orientation {self[ORIENTATION]}": self[ORIENTATION] != 1,
        }
        for problem in (name for name, is_found in problems.items() if is_found):
            raise UserError(f"{self.path}: {problem}: save it as a plain TIFF file (none, LZW or Deflate compression)")

    def rows(self, file: BinaryIO, top: int, bottom: int) -> np.ndarray:
        """Return rows top..bottom - 1, (rows, W, C), in the machine's byte order."""
        height, width, samples = self.shape
        tiled = TILE_STARTS in self.fields
        starts, sizes = (
            self.fields[tag] for tag in ((TILE_STARTS, TILE_SIZES) if tiled else (STRIP_STARTS, STRIP_SIZES))
        )
        block_height, block_width = self.block
        across, down = -(-width // block_width), -(-height // block_height)
        planes = samples if self[PLANAR] == 2 else 1
        if len(starts) < across * down * planes or len(sizes) < across * down * planes:
            raise ValueError(f"{len(starts)} blocks of {across * down * planes}")
        num_bytes = height * width * samples * self.dtype.itemsize
        if num_bytes > sum(sizes) * (1 if self[COMPRESSION] == NONE else MAX_RATIO):
            raise ValueError(f"{num_bytes} bytes of pixels do not fit its data")
        out = np.empty((bottom - top, width, samples), self.dtype.newbyteorder("="))
        for row in range(top // block_height, -(-bottom // block_height)):
            block_top = row * block_height
            rows = block_height if tiled else min(block_height, height - block_top)
            first, last = max(top, block_top) - block_top, min(bottom, block_top + rows) - block_top
            for column in range(across):
                left = column * block_width
                right = min(width, left + block_width)
                for plane in range(planes):
                    number = (plane * down + row) * across + column
                    shape = rows, block_width, samples // planes
                    values = self._block(file, starts[number], sizes[number], shape, first, last)
                    place = out[block_top + first - top : block_top + last - top, left:right]
                    place[..., plane : plane + 1 if planes > 1 else None] = values[:, : right - left]
        return out

    def _block(
        self, file: BinaryIO, start: int, size: int, shape: tuple[int, int, int], first: int, last: int
    ) -> np.ndarray:
        """Return rows first..last - 1 of the block of `shape` that has `size` bytes at `start`."""
        row_bytes = shape[1] * shape[2] * self.dtype.itemsize
        if self[COMPRESSION] == NONE:
            start, size, shape = start + first * row_bytes, (last - first) * row_bytes, (last - first, *shape[1:])
            first, last = 0, last - first
        file.seek(start)
        data = file.read(size)
        if len(data) < size:
            raise ValueError("the file is truncated")
        if self[COMPRESSION] in DEFLATE:
            data = zlib.decompress(data)
        elif self[COMPRESSION] != NONE:
            data = _by_pillow(data, self[COMPRESSION], row_bytes, shape[0]).tobytes()
        values = np.frombuffer(data, np.uint8, shape[0] * row_bytes)
        return _undo(values, self[PREDICTOR], self.dtype, shape)[first:last]


def _by_pillow(data: bytes, compression: int, row_bytes: int, rows: int) -> np.ndarray:
    """Return decompressed bytes: Pillow decodes them as an 8-bit grey TIFF of one strip, whose pixels are the bytes."""
    head = struct.pack("<2sHI", b"II", 42, 8)
    fields = {WIDTH: row_bytes, HEIGHT: rows, BITS: 8, COMPRESSION: compression, PHOTOMETRIC: 1, STRIP_STARTS: 0}
    fields |= {SAMPLES: 1, STRIP_ROWS: rows, STRIP_SIZES: len(data)}
    fields[STRIP_STARTS] = len(head) + 2 + 12 * len(fields) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(fields.items()))
    picture = head + struct.pack("<H", len(fields)) + entries + bytes(4) + data
    with Image.open(io.BytesIO(picture)) as image:
        return np.array(image).ravel()


def _undo(values: np.ndarray, predictor: int, dtype: np.dtype, shape: tuple[int, int, int]) -> np.ndarray:
    """Return a block's values, of `shape` and in the machine's byte order, from its bytes after decompression."""
    if predictor == 3:  # differences of bytes, the most significant bytes of a row first
        rows, size = shape[0], dtype.itemsize
        summed = values.reshape(rows, -1, shape[2]).cumsum(axis=1, dtype=np.uint8)
        values = np.ascontiguousarray(summed.reshape(rows, size, -1).transpose(0, 2, 1))
        return values.view(np.dtype(f">f{size}")).reshape(shape).astype(np.dtype(f"=f{size}"))
    native = dtype.newbyteorder("=")
    values = values.view(dtype).reshape(shape).astype(native, copy=False)
    if predictor == 2:  # differences to the left neighbour, modulo 2^bits
        bits = np.dtype(f"=u{dtype.itemsize}")
        values = values.view(bits).cumsum(axis=1, dtype=bits).view(native)
    return values


def read_pages(path: Path) -> list[Page]:
    """Return the pages of a TIFF file without thumbnails, overviews and masks. Raises ValueError if it is damaged."""
    with path.open("rb") as file:
        head = file.read(16)
        order = {b"II": "<", b"MM": ">"}.get(head[:2])
        if order is None or len(head) < 8:
            raise ValueError("not a TIFF file")
        is_big = struct.unpack_from(order + "H", head, 2)[0] == 43
        (position,) = struct.unpack_from(order + ("Q" if is_big else "I"), head, 8 if is_big else 4)
        pages: list[Page] = []
        while position and len(pages) < MAX_PAGES:
            fields, position = _directory(file, position, order, is_big)
            page = Page(path, order, fields)
            if not page[SUBFILE] & (REDUCED | MASK):
                pages.append(page)
    if not pages:
        raise ValueError("it has no image")
    return pages


def _directory(file: BinaryIO, position: int, order: str, is_big: bool) -> tuple[dict[int, tuple[int, ...]], int]:
    """Return the integer fields of the directory at `position`, and the next directory's position (0: none)."""
    file.seek(position)
    count_format, entry, offset = ("Q", "HHQ", "Q") if is_big else ("H", "HHI", "I")
    (count,) = struct.unpack(order + count_format, file.read(struct.calcsize(count_format)))
    width = struct.calcsize(order + entry) + struct.calcsize(offset)
    if count > 4096:
        raise ValueError(f"a directory of {count} fields")
    data = file.read(count * width + struct.calcsize(offset))
    fields = {}
    for start in range(0, count * width, width):
        tag, kind, number = struct.unpack_from(order + entry, data, start)
        place = start + width - struct.calcsize(offset)
        if kind not in INTEGERS or tag not in TAGS:
            continue
        layout = f"{order}{number}{INTEGERS[kind]}"
        if struct.calcsize(layout) <= struct.calcsize(offset):
            fields[tag] = struct.unpack_from(layout, data, place)
        else:
            file.seek(struct.unpack_from(order + offset, data, place)[0])
            fields[tag] = struct.unpack(layout, file.read(struct.calcsize(layout)))
    return fields, struct.unpack_from(order + offset, data, count * width)[0]


TAGS = {SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, ORIENTATION, STRIP_STARTS, SAMPLES, STRIP_ROWS}
TAGS |= {STRIP_SIZES, PLANAR, PREDICTOR, TILE_WIDTH, TILE_HEIGHT, TILE_STARTS, TILE_SIZES, SAMPLE_FORMAT, EXTRA_SAMPLES}
