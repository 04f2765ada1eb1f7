"""Open images of any number of channels and read their rows: TIFF, NPY, PNG and what else Pillow reads.

Each reader has `shape` (H, W, C), `dtype` and rows(top, bottom). `unit` is the number of rows that it decodes together:
only with a small one can a huge image be read by parts. Channels are in the file's order.
"""

import contextlib
import struct
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
from PIL import Image, ImageOps

from data import tiff
from errors import UserError
from image_stats import DTYPES, MAX_CHANNELS, ImageType

TIFF_SUFFIXES = (".tif", ".tiff")
CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}  # of Pillow's modes; other modes become RGB


class Raster(Protocol):
    """An open image file."""

    shape: tuple[int, int, int]
    dtype: np.dtype
    unit: int

    def rows(self, top: int, bottom: int) -> np.ndarray: ...


def open_raster(path: Path) -> Raster:
    """Return a reader of an image file. Raises UserError or ValueError if the file cannot be used.

    Only headers are read, unless the file is neither TIFF nor NPY.
    """
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return NpyRaster(path)
    if suffix not in TIFF_SUFFIXES:
        return PictureRaster(path)
    try:
        return TiffRaster(path)
    except UserError:
        # Pillow turns pictures of 8 bits, and reads palettes and JPEG.
        with contextlib.suppress(OSError), Image.open(path) as image:
            if image.mode in ("P", *CHANNELS) and ";16" not in str(image.tile):
                return PictureRaster(path)
        raise


def type_of(raster: Raster) -> ImageType:
    return ImageType(raster.shape[2], raster.dtype.name)


def _check(path: Path, raster: Raster) -> None:
    """Raise UserError if the values or the number of channels are not supported."""
    if raster.dtype.name not in DTYPES:
        raise UserError(f"{path}: values of {raster.dtype}: convert them to {', '.join(DTYPES[:-1])} or {DTYPES[-1]}")
    if not 1 <= raster.shape[2] <= MAX_CHANNELS:
        raise UserError(f"{path}: has {raster.shape[2]} channels: 1 to {MAX_CHANNELS} are supported")
    if 0 in raster.shape:
        raise ValueError("it has no pixels")


class TiffRaster:
    """A TIFF file. If each of its pages has one channel, and all are of one size and type, the pages are channels."""

    def __init__(self, path: Path):
        first, *others = tiff.read_pages(path)
        alike = [page for page in others if page.shape == first.shape and page.dtype == first.dtype]
        self.path = path
        self.pages = [first, *alike] if first.shape[2] == 1 else [first]
        for page in self.pages:
            page.check()
        self.shape = (*first.shape[:2], first.shape[2] * len(self.pages))
        self.dtype = first.dtype.newbyteorder("=")
        in_rows = first[tiff.COMPRESSION] == tiff.NONE and tiff.TILE_STARTS not in first.fields
        self.unit = 1 if in_rows else first.block[0]
        self.is_rgb = first[tiff.PHOTOMETRIC] == 2 and self.dtype == np.uint8 and first.shape[2] in (3, 4)
        _check(path, self)

    def rows(self, top: int, bottom: int) -> np.ndarray:
        with self.path.open("rb") as file:
            parts = [page.rows(file, top, bottom) for page in self.pages]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)


class NpyRaster:
    """A NumPy file of an array (H, W), (H, W, C) or (C, H, W); C is the last axis if that has at most 16 elements."""

    unit = 1

    def __init__(self, path: Path):
        self.path = path
        array = self._open()
        self.shape = (*array.shape[:2], array.shape[2])
        self.dtype = array.dtype.newbyteorder("=")
        _check(path, self)

    def _open(self) -> np.ndarray:
        array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        if array.ndim == 2:
            return array[..., None]
        if array.ndim != 3:
            raise UserError(f"{self.path}: an array of {array.ndim} axes: expected (H, W), (H, W, C) or (C, H, W)")
        is_first = array.shape[2] > MAX_CHANNELS and array.shape[0] <= MAX_CHANNELS
        return array.transpose(1, 2, 0) if is_first else array

    def rows(self, top: int, bottom: int) -> np.ndarray:
        # Mapped anew for each call: pages that were read would stay in this process's memory.
        return np.ascontiguousarray(self._open()[top:bottom], self.dtype)


class PictureRaster:
    """Any other image file, decoded whole by Pillow; a PNG of 16 bits, whose colours Pillow cuts to 8, by OpenCV."""

    def __init__(self, path: Path):
        header = path.open("rb").read(26)
        is_png = header.startswith(b"\x89PNG\r\n\x1a\n")
        self.pixels = _deep_png(path, header) if is_png and header[24] == 16 else _picture(path)
        self.shape, self.dtype = self.pixels.shape, self.pixels.dtype
        self.unit = self.shape[0]
        _check(path, self)

    def rows(self, top: int, bottom: int) -> np.ndarray:
        return self.pixels[top:bottom]


def _picture(path: Path) -> np.ndarray:
    """Return the pixels (H, W, C) of a file that Pillow reads, turned as EXIF says. Palettes and CMYK become RGB."""
    with Image.open(path) as image:
        if image.mode.startswith(("I", "F")):
            raise UserError(f"{path}: more than 8 bits a channel in {image.format}: save it as TIFF, PNG or NPY")
        ImageOps.exif_transpose(image, in_place=True)
        pixels = np.array(image if image.mode in CHANNELS else image.convert("RGB"))
    return pixels.reshape(*pixels.shape[:2], -1)


def _deep_png(path: Path, header: bytes) -> np.ndarray:
    """Return the pixels (H, W, C) uint16 of a PNG file with 16 bits a channel, as its header describes them."""
    width, height, _, colour = struct.unpack_from(">IIBB", header, 16)
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]  # ISO/IEC 15948, table 11.1
    with Image.open(path) as image:
        image.load()  # OpenCV fills a truncated file with zeros, Pillow refuses it
    pixels = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None or pixels.shape[:2] != (height, width) or pixels.dtype != np.uint16:
        raise ValueError("OpenCV cannot read it")
    pixels = pixels.reshape(height, width, -1)
    order = {1: [0], 2: [0, 3], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[channels]  # of OpenCV's BGR or BGRA
    return np.ascontiguousarray(pixels[..., order])
