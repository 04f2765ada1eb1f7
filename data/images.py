"""Read images, label maps and distance maps. A UserError names a file that cannot be used."""

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
from PIL import ExifTags, Image, ImageOps

from data.jpeg import decode_plain
from data.label_map import LabelMap
from errors import UserError
from labels import IGNORE

# In order of preference; letter case does not matter.
IMAGE_SUFFIXES = (".jpg", ".png", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
LABEL_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", ".webp")
LABEL_MODES = ("P", "L", "1", "I", "I;16")  # PIL's modes with one channel of integers
NO_JPEG = "JPEG compression changes label values: save the mask as PNG"


@contextlib.contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Turn an exception that PIL raises inside the `with` block into a UserError that names the file `path`."""
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
    """Return the pixels of an image file after convert(PIL image): (H, W) or (H, W, channels), dtype by PIL mode.

    PIL, unlike OpenCV, refuses truncated files and keeps palette indices. Raises UserError if the file cannot be
    decoded.
    """
    with decoding(path), Image.open(path) as image:
        return np.array(convert(image))


def read_image(path: Path) -> np.ndarray:
    """Read an image as RGB, shape (H, W, 3), uint8, rotated as its EXIF orientation says.

    Raises UserError if the file cannot be decoded or has more than 8 bits a channel.
    """

    def to_rgb(image: Image.Image) -> Image.Image:
        if image.mode.startswith(("I", "F")):
            raise UserError(f"{path}: more than 8 bits a channel (mode {image.mode}): convert it to 8 bits")
        ImageOps.exif_transpose(image, in_place=True)  # a copy, and convert() of RGB, would take time
        return image if image.mode == "RGB" else image.convert("RGB")

    with decoding(path):
        plain = decode_plain(Path(path).read_bytes())
    return decode(path, to_rgb) if plain is None else plain


def read_reduced(path: Path, long_side: int) -> tuple[np.ndarray, tuple[int, int]] | None:
    """Return a JPEG photo, decoded at a half, a quarter or an eighth of its size, and its own (height, width).

    The result is read_image()'s, but smaller; its longer side has at least `long_side` pixels. It takes half of the
    time. Returns None for other files, and for photos that are not so large. Raises UserError as read_image() does.
    """
    if path.suffix.lower() in (".jpg", ".jpeg"):
        with decoding(path), Image.open(path) as image:
            width, height = image.size
            orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
            scaled = (max(1, long_side * side // max(image.size)) for side in image.size)
            image.draft(None, tuple(scaled))  # each side of the result has at least as many pixels
            if image.size != (width, height):
                pixels = np.array(ImageOps.exif_transpose(image).convert("RGB"))
                return pixels, (width, height) if 5 <= orientation <= 8 else (height, width)
    return None


def image_size(path: Path) -> tuple[int, int]:
    """Return the (height, width) in pixels of an image file, after EXIF rotation.

    Reads only the header, unless EXIF rotates or mirrors the image. Raises UserError if the file cannot be read.
    """
    with decoding(path), Image.open(path) as image:
        # Of a PNG, PIL would decode all pixels to look for Exif behind them.
        has_exif = image.format != "PNG" or _png_has_exif(path)
        if not has_exif or image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
            return image.height, image.width
    return read_image(path).shape[:2]


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


def read_label(path: Path, num_classes: int, label_map: LabelMap | None = None) -> np.ndarray:
    """Read a label map, shape (H, W), uint8: 0..num_classes-1, and 255 = ignore. A palette PNG gives its indices.

    label_map: applied to the file's values. Raises UserError if the file cannot be decoded, is a JPEG, has colours
    instead of one channel, or has another value.
    """

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
    if label_map is not None:
        label = label_map.apply(label, path)
    if label.dtype == np.uint8 and not cv2.countNonZero(cv2.inRange(label, num_classes, IGNORE - 1)):
        return label
    bad = label[(label != IGNORE) & ((label < 0) | (label >= num_classes))]
    if bad.size:
        raise UserError(
            f"{path}: label {bad.flat[0]} in {bad.size} pixel(s): with --numclasses {num_classes} labels are "
            f"0..{num_classes - 1}, and 255 = ignore"
        )
    return label.astype(np.uint8)


def read_distance(path: Path) -> np.ndarray:
    """Read a distance map, shape (H, W), uint8; of a file with several channels, the first one.

    Raises UserError if the file cannot be decoded or does not have 8 bits a channel.
    """
    values = decode(path, lambda image: image.getchannel(0) if len(image.getbands()) > 1 else image)
    if values.dtype != np.uint8:
        raise UserError(f"{path}: a distance map must be an 8-bit image, but this one is {values.dtype}")
    return values
