"""Huge images: read files a few rows at a time, and write outputs by bands of rows."""

import contextlib
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from data.images import decoding
from data.images.rasters import NpyRaster, Raster, TiffRaster, open_raster, type_of
from evaluation.predictor import Predictor
from evaluation.streaming import Band, stream
from support.errors import UserError
from support.files import writing
from support.image_stats import RGB, ImageType

LARGE_PIXELS = 2**24  # a smaller image is decoded whole, by the loader's processes
MOST_BYTES = 2**28  # of the rows that a file stores together, such as a strip; above, the image is decoded whole
OVERLAY_SIDE = 2048  # pixels, longer side of a huge image's overlay


def open_large(path: Path, kind: ImageType) -> Raster | None:
    """Return a reader of a huge image that can be read a few rows at a time; None for any other image.

    kind: what the model takes. A TIFF file of RGB with an alpha channel is RGB, too.
    """
    if path.suffix.lower() not in (".tif", ".tiff", ".npy"):
        return None
    with contextlib.suppress(UserError), decoding(path):
        raster = open_raster(path)
        height, width, channels = raster.shape
        is_rgb = kind == RGB and isinstance(raster, TiffRaster) and raster.is_rgb
        fits = raster.unit * width * channels * raster.dtype.itemsize <= MOST_BYTES
        is_parted = isinstance(raster, NpyRaster | TiffRaster)
        if is_parted and fits and height * width >= LARGE_PIXELS and (is_rgb or type_of(raster) == kind):
            return raster
    return None


def stream_file(
    model: object, path: Path, kind: ImageType, device: torch.device, advance: Callable[[int], object]
) -> Iterator[Band]:
    """Yield the bands of a huge image (evaluation.streaming). Raises UserError if the file is damaged.

    model: one that can_stream(). advance: called with the number of rows that were read.
    """
    raster = open_large(path, kind)
    assert raster is not None
    assert isinstance(model, Predictor)

    def read(top: int, bottom: int) -> np.ndarray:
        with decoding(path):
            rows = raster.rows(top, bottom)[..., : kind.channels]
        advance(bottom - top)
        return rows

    return stream(model, read, raster.shape[:2], device)


class PngWriter:
    """Writes a palette PNG (ISO/IEC 15948) row by row. colours: palette (256, 3) uint8."""

    def __init__(self, path: Path, size: tuple[int, int], colours: np.ndarray):
        self._file = path.open("wb")
        self._packer = zlib.compressobj()
        self._file.write(b"\x89PNG\r\n\x1a\n")
        self._chunk(b"IHDR", struct.pack(">IIBBBBB", size[1], size[0], 8, 3, 0, 0, 0))
        self._chunk(b"PLTE", colours.astype(np.uint8).tobytes())

    def write(self, label: np.ndarray) -> None:
        """Append rows of class numbers, (rows, W) uint8."""
        rows = np.concatenate([np.zeros((len(label), 1), np.uint8), label], axis=1)  # 0: no filter
        self._chunk(b"IDAT", self._packer.compress(rows.tobytes()))

    def close(self) -> None:
        self._chunk(b"IDAT", self._packer.flush())
        self._chunk(b"IEND", b"")
        self._file.close()

    def _chunk(self, name: bytes, content: bytes) -> None:
        if content or name == b"IEND":
            self._file.write(struct.pack(">I", len(content)) + name + content)
            self._file.write(struct.pack(">I", zlib.crc32(name + content)))


@contextlib.contextmanager
def png_writer(path: Path, size: tuple[int, int], colours: np.ndarray) -> Iterator[PngWriter]:
    """Yield a PngWriter of a file that appears, whole, when the body succeeds."""
    with writing(path, parents=True) as scratch:
        writer = PngWriter(scratch, size, colours)
        try:
            yield writer
            writer.close()
        finally:
            writer._file.close()


class Miniature:
    """Every n-th row and column of an image and its label, at most OVERLAY_SIDE pixels on the longer side."""

    def __init__(self, size: tuple[int, int]):
        self.step = -(-max(size) // OVERLAY_SIDE)
        self.images: list[np.ndarray] = []
        self.labels: list[np.ndarray] = []

    def add(self, top: int, image: np.ndarray, label: np.ndarray) -> None:
        """Add a band that begins at row `top`: image (rows, W, 3) uint8 and label (rows, W) uint8."""
        first = -top % self.step
        self.images.append(image[first :: self.step, :: self.step])
        self.labels.append(label[first :: self.step, :: self.step])

    @property
    def maps(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (image, label), of what was added."""
        return np.concatenate(self.images), np.concatenate(self.labels)
