"""Read images, label maps and distance maps. A UserError names a file that cannot be used."""

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps

from errors import UserError
from labels import IGNORE

# In order of preference; letter case does not matter.
IMAGE_SUFFIXES = (".jpg", ".png", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
LABEL_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", ".webp")
LABEL_MODES = ("P", "L", "1", "I", "I;16")  # PIL's modes with one channel of integers
NO_JPEG = "JPEG compression changes label values: save the mask as PNG"


@contextlib.contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Turn what PIL raises for a file into a UserError that names it."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Image.DecompressionBombError:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0) // 1_000_000
        raise UserError(
            f"{path}: has more than {limit} million pixels, too many for Pillow: cut it into tiles"
        ) from None
    except (OSError, EOFError, LookupError, SyntaxError, TypeError, ValueError, struct.error) as error:
        raise UserError(f"{path}: not a whole, readable image ({' '.join(str(error).split())}): replace it") from None


def decode(path: Path, convert: Callable[[Image.Image], Image.Image] = lambda image: image) -> np.ndarray:
    """Decode an image file and convert it. PIL, unlike OpenCV, refuses truncated files and keeps palette indices."""
    with decoding(path), Image.open(path) as image:
        return np.array(convert(image))


def read_image(path: Path) -> np.ndarray:
    """Read an image as RGB, shape (H, W, 3), uint8, in its EXIF orientation."""

    def to_rgb(image: Image.Image) -> Image.Image:
        if image.mode.startswith(("I", "F")):
            raise UserError(f"{path}: more than 8 bits a channel (mode {image.mode}): convert it to 8 bits")
        return ImageOps.exif_transpose(image).convert("RGB")

    return decode(path, to_rgb)


def image_size(path: Path) -> tuple[int, int]:
    """Height and width of the image that read_image returns, from the header alone if EXIF does not turn it."""
    with decoding(path), Image.open(path) as image:
        if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
            return image.height, image.width
    return read_image(path).shape[:2]


def read_label(path: Path, num_classes: int) -> np.ndarray:
    """Read a label map, shape (H, W), uint8: 0..num_classes-1, and 255 = ignore. A palette PNG gives its indices."""

    def one_channel(image: Image.Image) -> Image.Image:
        if image.format in ("JPEG", "MPO"):  # whatever the suffix
            raise UserError(f"{path}: {NO_JPEG}")
        if image.mode == "RGB":  # lossless WebP and some BMP files have no grey mode
            red, green, blue = image.split()
            if red.tobytes() == green.tobytes() == blue.tobytes():
                return red
        if image.mode not in LABEL_MODES:
            raise UserError(
                f"{path}: a {image.mode} image: labels must be class numbers in one channel (grey or palette PNG)"
            )
        return image

    label = decode(path, one_channel)
    bad = label[(label != IGNORE) & ((label < 0) | (label >= num_classes))]
    if bad.size:
        raise UserError(
            f"{path}: label {bad.flat[0]} in {bad.size} pixel(s): with --numclasses {num_classes} labels are "
            f"0..{num_classes - 1}, and 255 = ignore"
        )
    return label.astype(np.uint8)


def read_distance(path: Path) -> np.ndarray:
    """Read a distance map, shape (H, W), uint8: the first of several equal channels."""
    values = decode(path)
    values = values[..., 0] if values.ndim == 3 else values
    if values.dtype != np.uint8:
        raise UserError(f"{path}: a distance map must be an 8-bit image, but this one is {values.dtype}")
    return values
