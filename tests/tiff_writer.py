"""Write TIFF files by hand, so that the reader meets files that it did not write (TIFF 6.0, BigTIFF)."""

import struct
import zlib
from pathlib import Path

import numpy as np

LZW, DEFLATE = 5, 8
FORMATS = {"u": 1, "i": 2, "f": 3}  # SampleFormat by NumPy's kind


def write_tiff(path: Path, *pages: np.ndarray, order: str = "<", big: bool = False, **options) -> Path:
    """Write arrays (H, W, C) as the pages of a TIFF file. order: "<" or ">", of bytes. options: of add_pixels()."""
    number, count = ("Q", "Q") if big else ("I", "H")
    data = bytearray((b"II" if order == "<" else b"MM") + struct.pack(order + "H", 43 if big else 42))
    data += struct.pack(order + "HH", 8, 0) if big else b""
    link = len(data)  # the place of the next directory's offset
    data += bytes(struct.calcsize(number))
    for page in pages:
        fields = add_pixels(data, page, order, **options)
        entries = b""
        for tag, values in sorted(fields.items()):
            value = struct.pack(f"{order}{len(values)}{number}", *values)
            if len(values) > 1:
                value, data = struct.pack(order + number, len(data)), data + value
            entries += struct.pack(f"{order}HH{number}", tag, 16 if big else 4, len(values)) + value
        struct.pack_into(order + number, data, link, len(data))
        data += struct.pack(order + count, len(fields)) + entries
        link = len(data)
        data += bytes(struct.calcsize(number))
    path.write_bytes(data)
    return path


def add_pixels(
    data: bytearray,
    page: np.ndarray,
    order: str,
    *,
    planar: bool = False,
    tile: int = 0,
    rows: int = 5,
    compression: int = 1,
    predictor: int = 1,
    tags: dict[int, int] | None = None,
) -> dict[int, list[int]]:
    """Append a page's strips of `rows` rows, or square tiles, to `data`; return its fields {tag: values}."""
    height, width, channels = page.shape
    down, across = (tile, tile) if tile else (rows, width)
    starts, sizes = [], []
    for plane in np.split(page, channels, axis=2) if planar else [page]:
        for top in range(0, height, down):
            for left in range(0, width, across):
                part = plane[top : top + down, left : left + across]
                if tile:
                    part = np.pad(part, (*((0, tile - size) for size in part.shape[:2]), (0, 0)), mode="edge")
                starts.append(len(data))
                data += pack(part, order, compression, predictor)
                sizes.append(len(data) - starts[-1])
    fields = {256: [width], 257: [height], 258: [8 * page.itemsize] * channels, 259: [compression]}
    fields |= {
        262: [2 if channels > 2 else 1],
        277: [channels],
        284: [2 if planar else 1],
        317: [predictor],
        339: [FORMATS[page.dtype.kind]] * channels,
    }
    fields |= {322: [tile], 323: [tile], 324: starts, 325: sizes} if tile else {273: starts, 278: [rows], 279: sizes}
    return fields | {tag: [value] for tag, value in (tags or {}).items()}


def pack(part: np.ndarray, order: str, compression: int, predictor: int) -> bytes:
    """Return the bytes of a strip or tile (rows, columns, samples)."""
    if predictor == 2:  # differences to the left neighbour, modulo 2^bits
        part = np.concatenate([part[:, :1], part[:, 1:] - part[:, :-1]], axis=1)
    raw = part.astype(part.dtype.newbyteorder(order)).tobytes()
    if predictor == 3:  # bytes of one significance together, the highest first; then differences of bytes
        rows, _, samples = part.shape
        numbers = part.astype(">f4").view(np.uint8).reshape(rows, -1, 4)
        planes = numbers.transpose(0, 2, 1).reshape(rows, -1)
        raw = np.concatenate([planes[:, :samples], planes[:, samples:] - planes[:, :-samples]], axis=1).tobytes()
    if compression == DEFLATE:
        return zlib.compress(raw)
    return lzw(raw) if compression == LZW else raw


def lzw(raw: bytes) -> bytes:
    """Return bytes as TIFF's LZW (section 13) without matches: codes of 9 bits, with 256 to clear the table in time."""
    codes = [code for first in range(0, len(raw), 200) for code in (256, *raw[first : first + 200])]
    bits = "".join(f"{code:09b}" for code in [*codes, 257])
    return int(bits + "0" * (-len(bits) % 8), 2).to_bytes(-(-len(bits) // 8), "big")
