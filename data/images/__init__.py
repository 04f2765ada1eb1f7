"""Read images, label maps and distance maps. An InputError names a file that cannot be used."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image, ImageOps

from data.images import files
from data.images.resize import scaled_size
from data.label_map import UNLISTED, LabelMap
from support.errors import InputError
from support.labels import IGNORE

LABEL_MODES = ("P", "L", "1", "I", "I;16", "I;16L", "I;16B", "I;16N")  # PIL's modes with one channel of integers
OTHER_LABELS = {  # {another mode: what is wrong}; the rest have colours
    "F": "a label of floats: save its class numbers as 8-bit PNG",
    "LA": "a grey label with transparency: save it without the alpha channel",
}
NO_JPEG = files.LOSSY.format("JPEG")
END_OF_JPEG = b"\xff\xd9"


class Header(NamedTuple):
    """What a file says of an image without its pixels.

    size: (height, width) after EXIF rotation. turn: EXIF orientation (1: upright). frames: number of full-size frames.
    bands, dtype: number and numpy's type of the values of a pixel. is_rgb: True if these are of read_image(), False if
    they are the file's own.
    """

    size: tuple[int, int]
    turn: int
    frames: int
    bands: int = 3
    dtype: str = "uint8"
    is_rgb: bool = True


def decode(path: Path, convert: Callable = lambda image: image, *, lossless: bool = False) -> np.ndarray:
    """Return the pixels of a mask or map after convert(PIL image): (H, W) or (H, W, channels), dtype by PIL mode.

    PIL, unlike OpenCV, refuses truncated files and keeps palette indices. Raises InputError if the file cannot be
    decoded, has several frames or, if `lossless`, a codec that can change values.
    """
    with files.opened(path, files.MASK) as image:
        files.check_mask(path, image, lossless=lossless)
        if files.is_signed_8_bit(image):
            raise InputError(f"{path}: has signed values: save it with 8 unsigned bits")
        files.turn_upright(image)
        return np.array(convert(image))


def read_image(path: Path, long_side: int = 0) -> np.ndarray:
    """Read an image of 8 bits a channel as RGB, (H, W, 3) uint8, turned as its EXIF orientation says.

    long_side: a large JPEG photo is shrunk to this longer side in pixels; 0: it is not. Raises InputError if the file
    cannot be decoded, or has more than 8 bits a channel or more than 4 channels.
    """
    path = Path(path)
    with files.opened(path) as image:
        pixels = _reduced(image, long_side) if long_side else None
        pixels = _plain_jpeg(path, image) if pixels is None else pixels
        if pixels is None:
            files.turn_upright(image)
            pixels = np.array(image if image.mode == "RGB" else image.convert("RGB"))
        return pixels


def _plain_jpeg(path: Path, image: Image.Image) -> np.ndarray | None:
    """Return the pixels of an ordinary, whole JPEG file, by OpenCV, which takes less time than PIL; else None.

    The pixels are the same as PIL's. Other JPEG files are left to PIL: OpenCV fills truncated files with grey, and
    treats EXIF and Adobe's colours in its own way.
    """
    if image.format != "JPEG" or image.mode != "RGB" or not image.info.keys().isdisjoint(("exif", "xmp", "adobe")):
        return None
    data = path.read_bytes()
    pixels = files.decode_bytes(data, cv2.IMREAD_COLOR) if data.endswith(END_OF_JPEG) else None
    return None if pixels is None else cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels)


def _reduced(image: Image.Image, long_side: int) -> np.ndarray | None:
    """Return a JPEG photo that PIL has opened, resized to the longer side `long_side` in pixels.

    The photo is decoded at a half, a quarter or an eighth of its size, which halves the time. It is then averaged as in
    data.images.resize. Returns None for other files, and for photos that are not so large.
    """
    width, height = image.size
    down, across = scaled_size((height, width), long_side)
    # The box is the photo's edge among the decoded pixels: the last ones may lie in part beyond it.
    _, box = image.draft(None, (min(across, width), min(down, height))) or (None, None)
    if image.size == (width, height):
        return None
    rgb = image.convert("RGB").resize((across, down), Image.Resampling.BILINEAR, box=box)
    return np.array(ImageOps.exif_transpose(rgb))


def read_header(path: Path) -> Header:
    """Return a file's Header. Reads no pixels unless EXIF turns a TIFF file. Raises InputError as read_image() does."""
    with files.opened(path) as image:
        turn, frames, size = files.orientation(image), files.num_frames(path, image), (image.height, image.width)
        if turn == 1 or image.format != "TIFF":  # PIL's versions swap a turned TIFF file's sides at different times
            return Header(size[::-1] if turn > 4 else size, turn, frames)
    return Header(read_image(path).shape[:2], turn, frames)


def several_frames(frames: dict[Path, int]) -> str:
    """Return a line that names the images with several frames, "" if there are none. frames: {image: its number}."""
    paths = [path for path, number in frames.items() if number > 1]
    problem = f"{len(paths)} image(s) have several frames, and only the first is read (--bands takes pages)"
    return f"{problem}: {paths[0]} ..." if paths else ""


def read_label(path: Path, num_classes: int, label_map: LabelMap | None = None) -> np.ndarray:
    """Read a label map, shape (H, W), uint8: 0..num_classes-1, and 255 = ignore. A palette PNG gives its indices.

    label_map: applied to the file's values. Raises InputError if the file cannot be decoded, is a JPEG, has colours
    instead of one channel, or has another value.
    """
    with files.opened(path, files.MASK) as image:
        files.check_mask(path, image)
        label, mode = files.label_values(image)
    if mode not in LABEL_MODES:
        colours = (
            f"an image of mode {mode}: labels must be class numbers in one channel (grey or palette PNG); to convert "
            "colours: python -m tools.convert colours"
        )
        raise InputError(f"{path}: {OTHER_LABELS.get(mode, colours)}")
    if label_map is not None:
        values, label = label, label_map.look_up(label)
        if cv2.countNonZero(cv2.inRange(label, UNLISTED, UNLISTED)):
            lacking = values[label == UNLISTED]
            raise InputError(
                f"{path}: label {lacking[0]} in {lacking.size} pixel(s) is not in --label_map {label_map.chosen}: use "
                f"a FILE with a line '{lacking[0]} CLASS', or '{lacking[0]} 255' to ignore it"
            )
    if label.dtype == np.uint8 and not cv2.countNonZero(cv2.inRange(label, num_classes, IGNORE - 1)):
        return label
    bad = label[(label != IGNORE) & ((label < 0) | (label >= num_classes))]
    if bad.size:
        raise InputError(
            f"{path}: label {bad.flat[0]} in {bad.size} pixel(s): with --numclasses {num_classes} labels are "
            f"0..{num_classes - 1}, and 255 = ignore: correct the mask, change its values with a --label_map FILE, or "
            "train a model with a higher --numclasses (and name each class in the --classes FILE)"
        )
    return label.astype(np.uint8)


def read_distance(path: Path) -> np.ndarray:
    """Read a distance map, (H, W) uint8, from the first channel. Raises InputError if it is damaged or not 8-bit."""
    values = decode(path, lambda image: image.getchannel(0) if len(image.getbands()) > 1 else image)
    if values.dtype != np.uint8:
        raise InputError(f"{path}: a distance map must be an 8-bit image, but this one is {values.dtype}")
    return values


def label_png(label: np.ndarray, colours: np.ndarray | None = None) -> bytes:
    """Return a label map (H, W) uint8 as a PNG of class numbers. colours: palette (256, 3) uint8; None: a grey PNG."""
    picture = Image.fromarray(label)
    if colours is not None:
        picture.putpalette(colours.tobytes())
    return encode(picture, "PNG")


def encode(picture: Image.Image, kind: str, **options) -> bytes:
    """Return the content of a file of PIL's format `kind`. options: for PIL."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()
