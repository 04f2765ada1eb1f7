"""Open images of any number of channels and read their rows: TIFF, NPY, PNG and all other formats that Pillow reads.

Each reader has `shape` (H, W, C), `dtype` and rows(top, bottom). `unit` is the number of rows that it decodes together:
a huge image can be read by parts only if that is small. Channels are in the file's order.
"""

import contextlib
import struct
import zlib
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
from PIL import ExifTags, Image, ImageOps

from data.images.tiff import TiffRaster
from support.errors import UserError
from support.image_stats import DTYPES, MAX_CHANNELS, ImageType

TIFF_SUFFIXES = (".tif", ".tiff")
PNG_START = b"\x89PNG\r\n\x1a\n"
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # by colour type (ISO/IEC 15948, table 11.1)
BGR_ORDER = {1: [0], 2: [0, 3], 3: [2, 1, 0], 4: [2, 1, 0, 3]}  # channels of a PNG in OpenCV's grey, BGR or BGRA
# What Pillow, NumPy, zlib, tifffile and imagecodecs raise on damaged files.
DAMAGED = (
    *(ArithmeticError, OSError, EOFError, LookupError, RuntimeError, SyntaxError, TypeError, ValueError),
    *(struct.error, zlib.error, Image.DecompressionBombError),
)
CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}  # of Pillow's modes; other modes become RGB


class Raster(Protocol):
    """An open image file."""

    shape: tuple[int, int, int]
    dtype: np.dtype
    unit: int

    def rows(self, top: int, bottom: int) -> np.ndarray: ...


def open_raster(path: Path) -> Raster:
    """Return a reader of an image file. Raises UserError or ValueError if the file cannot be used.

    Only headers are read.
    """
    suffix = path.suffix.lower()
    if suffix not in TIFF_SUFFIXES:
        return _checked(path, NpyRaster(path) if suffix == ".npy" else PictureRaster(path))
    try:
        return _checked(path, TiffRaster(path))
    except UserError:
        # Pillow turns pictures of 8 bits, and reads palettes, YCbCr and JPEG.
        with contextlib.suppress(OSError), Image.open(path) as image:
            is_picture = image.mode in ("P", "YCbCr", *CHANNELS) and ";16" not in str(image.tile)
            if is_picture and num_samples(image) <= 4:
                return PictureRaster(path)
        raise


def num_samples(image: Image.Image) -> int:
    """Return the number of channels in the file of a TIFF image that Pillow has opened; 1 for other images."""
    return getattr(image, "tag_v2", {}).get(277, 1)


def type_of(raster: Raster) -> ImageType:
    return ImageType(raster.shape[2], raster.dtype.name)


def left_out(path: Path) -> str:
    """Return which channels reading as 8-bit RGB leaves out of a TIFF file, as text; "" if none, or only alpha."""
    with contextlib.suppress(*DAMAGED):
        if TiffRaster(path).has_unknown:
            return f"{path}: 3 of 4 channels are read, as RGB; the fourth is of unspecified kind, such as near infrared"
    return ""


def _checked(path: Path, raster: Raster) -> Raster:
    """Return `raster`. Raises UserError if its values or its number of channels are not supported."""
    if raster.dtype.name not in DTYPES:
        raise UserError(f"{path}: values of {raster.dtype}: convert them to {', '.join(DTYPES[:-1])} or {DTYPES[-1]}")
    if not 1 <= raster.shape[2] <= MAX_CHANNELS:
        raise UserError(f"{path}: has {raster.shape[2]} channels: 1 to {MAX_CHANNELS} are supported")
    if 0 in raster.shape:
        raise ValueError("it has no pixels")
    return raster


class NpyRaster:
    """A NumPy file of an array (H, W), (H, W, C) or (C, H, W); C is the last axis if that has at most 16 elements."""

    unit = 1

    def __init__(self, path: Path):
        self.path = path
        array = self._open()
        self.shape = (*array.shape[:2], array.shape[2])
        self.dtype = array.dtype.newbyteorder("=")

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
    """Any other image file, decoded whole by Pillow; 16-bit PNGs by OpenCV, since Pillow cuts colours to 8 bits."""

    def __init__(self, path: Path):
        self.path = path
        with path.open("rb") as file:
            header = file.read(26)
        self.is_deep = header.startswith(PNG_START) and header[24] == 16
        with Image.open(path) as image:
            if image.mode.startswith(("I", "F")) and not self.is_deep:
                raise UserError(f"{path}: more than 8 bits a channel in {image.format}: save it as TIFF, PNG or NPY")
            size = image.height, image.width
            if not self.is_deep and orientation(image) in range(5, 9):  # turned by 90 degrees
                size = image.width, image.height
            channels = PNG_CHANNELS[header[25]] if self.is_deep else CHANNELS.get(image.mode, 3)
        self.shape, self.dtype = (*size, channels), np.dtype(np.uint16 if self.is_deep else np.uint8)
        self.unit = size[0]

    def rows(self, top: int, bottom: int) -> np.ndarray:
        pixels = _deep_png(self.path) if self.is_deep else _picture(self.path)
        if pixels.shape[:2] != self.shape[:2]:
            raise ValueError("its header and its pixels differ in size")
        order = BGR_ORDER[self.shape[2]] if self.is_deep else slice(None)
        return np.ascontiguousarray(pixels[top:bottom, :, order])


def _picture(path: Path) -> np.ndarray:
    """Return the pixels (H, W, C) of a file that Pillow reads, turned as EXIF says. Palettes and CMYK become RGB."""
    with Image.open(path) as image:
        upright(image)
        pixels = np.array(image if image.mode in CHANNELS else image.convert("RGB"))
    return pixels.reshape(*pixels.shape[:2], -1)


def _deep_png(path: Path) -> np.ndarray:
    """Return the pixels of a PNG file with 16 bits a channel as OpenCV does: grey, BGR or BGRA, (H, W, C) uint16."""
    with Image.open(path) as image:
        image.load()  # OpenCV fills a truncated file with zeros, Pillow refuses it
    pixels = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None or pixels.dtype != np.uint16:
        raise ValueError("OpenCV cannot read it")
    return pixels.reshape(*pixels.shape[:2], -1)


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of an image that Pillow has opened by its path; 1: upright."""
    if image.format == "PNG" and not _png_has_exif(Path(image.filename)):  # type: ignore[attr-defined]
        return 1  # Pillow would decode all pixels to look for Exif behind them
    return image.getexif().get(ExifTags.Base.Orientation, 1)


def _png_has_exif(path: Path) -> bool:
    """Return True if a PNG file has a chunk in which PIL looks for the orientation: Exif or XMP.

    The file is a signature of 8 bytes and chunks: length, type, data, CRC of 4 bytes (ISO/IEC 15948, section 5.3).
    """
    with path.open("rb") as file:
        position = 8
        while file.seek(position) and len(header := file.read(40)) >= 8:
            length, kind = struct.unpack_from(">I4s", header)
            if kind == b"eXIf" or header[8:].startswith((b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")):
                return True
            position += 12 + length
    return False


def upright(image: Image.Image) -> Image.Image:
    """Turn an image that Pillow has opened as its EXIF orientation says, in place, and return it."""
    if orientation(image) != 1:
        ImageOps.exif_transpose(image, in_place=True)
    return image
