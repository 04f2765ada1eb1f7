"""Read images, label maps and distance maps. A UserError names a file that cannot be used."""

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageOps

from data.images.jpeg import decode_plain
from data.images.rasters import DAMAGED, TIFF_SUFFIXES, Raster, num_samples, open_raster, orientation, type_of, upright
from data.images.resize import scaled_size
from data.label_map import LabelMap
from support.errors import UserError
from support.image_stats import RGB, ImageType
from support.labels import IGNORE

# In order of preference; letter case does not matter.
IMAGE_SUFFIXES = (".jpg", ".png", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".npy")
LABEL_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", ".webp")
LABEL_MODES = ("P", "L", "1", "I", "I;16")  # PIL's modes with one channel of integers
MORE_CHANNELS = "all images must have the same channels and type (docs/more_channels.md)"
NO_JPEG = "JPEG compression changes label values: save the mask as PNG"


def pictures(files: list[Path]) -> list[Path]:
    """Drop .npy files beside pictures of the same name: they hold other data, such as depth."""
    return [file for file in files if file.suffix.lower() != ".npy"] or files


@contextlib.contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Turn an exception that PIL raises inside the `with` block into a UserError that names the file `path`."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except DAMAGED as error:
        raise UserError(f"{path}: not a whole, readable image ({' '.join(str(error).split())}): replace it") from None


def decode(path: Path, convert: Callable[[Image.Image], Image.Image] = lambda image: image) -> np.ndarray:
    """Return the pixels of an image file after convert(PIL image): (H, W) or (H, W, channels), dtype by PIL mode.

    PIL, unlike OpenCV, refuses truncated files and keeps palette indices. Raises UserError if the file cannot be
    decoded.
    """
    with decoding(path), Image.open(path) as image:
        return np.array(convert(image))


def read_image(path: Path, kind: ImageType = RGB, remedy: str = "") -> np.ndarray:
    """Read an image: shape (H, W, C) and type as `kind` says, channels in the file's order.

    RGB is read from any picture of 8 bits a channel, and turned as its EXIF orientation says. Raises UserError if the
    file cannot be decoded, or has other channels or another type. remedy: what to do in the latter case.
    """

    def to_rgb(image: Image.Image) -> Image.Image:
        _check_picture(path, image, remedy)
        image = upright(image)
        return image if image.mode == "RGB" else image.convert("RGB")

    path = Path(path)
    if kind == RGB and path.suffix.lower() != ".npy":
        with decoding(path):
            plain = decode_plain(path.read_bytes())
        if plain is not None:
            return plain
        with _explained(path, remedy):
            return decode(path, to_rgb)
    raster = _open(path, kind, remedy)
    with decoding(path):
        return raster.rows(0, raster.shape[0])


def read_reduced(path: Path, long_side: int) -> tuple[np.ndarray, tuple[int, int]] | None:
    """Return a JPEG photo, resized to the longer side `long_side` in pixels, and its own (height, width).

    The photo is decoded at a half, a quarter or an eighth of its size, which takes half of the time, and then averaged
    as in data.images.resize. Returns None for other files, and for photos that are not so large. Raises UserError as
    read_image() does.
    """
    if path.suffix.lower() in (".jpg", ".jpeg"):
        with decoding(path), Image.open(path) as image:
            width, height = image.size
            is_turned = orientation(image) in range(5, 9)
            down, across = scaled_size((height, width), long_side)
            # The box is the photo's edge among the decoded pixels: the last ones may lie in part beyond it.
            _, box = image.draft(None, (min(across, width), min(down, height))) or (None, None)
            if image.size != (width, height):
                rgb = image.convert("RGB").resize((across, down), Image.Resampling.BILINEAR, box=box)
                pixels = np.array(ImageOps.exif_transpose(rgb))
                return pixels, (width, height) if is_turned else (height, width)
    return None


def image_size(path: Path, kind: ImageType = RGB, remedy: str = "") -> tuple[int, int]:
    """Return the (height, width) in pixels of an image file, after EXIF rotation. The arguments are read_image()'s.

    Reads only the header, unless EXIF rotates or mirrors the image. Raises UserError if the file cannot be read or is
    of another kind.
    """
    if kind != RGB or path.suffix.lower() == ".npy":
        return _open(path, kind, remedy).shape[:2]
    with _explained(path, remedy), decoding(path), Image.open(path) as image:
        _check_picture(path, image, remedy)
        if orientation(image) == 1:
            return image.height, image.width
    return read_image(path).shape[:2]


def kind_of(path: Path) -> ImageType:
    """Return the channels and type of an image file; RGB for each picture that read_image() reads as such.

    Raises UserError if the file cannot be read.
    """
    suffix = path.suffix.lower()
    with decoding(path):
        if suffix not in (*TIFF_SUFFIXES, ".npy"):
            with Image.open(path) as image:
                return type_of(open_raster(path)) if _is_deep(image) else RGB
        kind = type_of(open_raster(path))
    is_picture = suffix != ".npy" and kind.dtype == RGB.dtype and kind.channels in (1, 3, 4)  # grey, colour, alpha
    return RGB if is_picture else kind


def _open(path: Path, kind: ImageType, remedy: str) -> Raster:
    with decoding(path):
        raster = open_raster(path)
    check_type(path, type_of(raster), kind, remedy)
    return raster


@contextlib.contextmanager
def _explained(path: Path, remedy: str) -> Iterator[None]:
    """For a TIFF file that Pillow cannot read, raise a UserError that says what the file holds."""
    try:
        yield
    except UserError:
        if path.suffix.lower() in TIFF_SUFFIXES:
            _open(path, RGB, remedy)
        raise


def _check_picture(path: Path, image: Image.Image, remedy: str) -> None:
    """Raise UserError if an image that Pillow has opened has more than 8 bits a channel, or more than four channels."""
    if (channels := num_samples(image)) > 4:  # Pillow leaves out all but three
        check_type(path, ImageType(channels), RGB, remedy)
    if _is_deep(image):
        check_type(path, f"more than 8 bits a channel (mode {image.mode})", RGB, remedy)


def _is_deep(image: Image.Image) -> bool:
    """Return True if an image that Pillow has opened has more than 8 bits a channel.

    Pillow has no mode for 16 bits in colour, and drops the lower 8.
    """
    tiles = getattr(image, "tile", [])[:1]  # how the file's values become the mode's
    return image.mode.startswith(("I", "F")) or (image.mode in ("RGB", "RGBA", "LA") and ";16" in str(tiles))


def check_type(path: Path, found: ImageType | str, kind: ImageType, remedy: str = "") -> None:
    """Raise UserError if the image at `path` is of another kind, `found`. remedy: what to do about it."""
    if found != kind:
        expected = "8-bit RGB" if kind == RGB else str(kind)
        raise UserError(f"{path}: {found}, but {expected} expected: {remedy or MORE_CHANNELS}")


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
                f"{path}: a {image.mode} image: labels must be class numbers in one channel (grey or palette PNG); to "
                "convert colours: python -m tools.convert colours"
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


def label_png(label: np.ndarray, colours: np.ndarray | None = None) -> bytes:
    """Return a label map (H, W) uint8 as the bytes of a PNG whose pixel values are class numbers.

    colours: palette (256, 3) uint8; None writes a grey PNG.
    """
    picture = Image.fromarray(label)
    if colours is not None:
        picture.putpalette(colours.tobytes())
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
