"""Draw label maps as pictures, with legends that name the colours of their classes."""

import contextlib
import functools
from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from data.classes import Classes
from data.histogram import value_histogram
from support.labels import IGNORE, is_foreground

JPEG_QUALITY = 90  # of overlays and augmented.jpg
SHEET_SIZE = 256  # pixels, longer side of each picture in a sheet
PANEL_SIZE = 512  # pixels, longer side of each picture in a panel
FRAME = ((1, 1), (1, 1), (0, 0))  # pixels around each picture
LEGEND_SIZE = 12  # pixels of the letters; on a picture of more than 720 pixels, 1/60 of its longer side
# Pillow's own font has ASCII only. These come with Linux, Windows and macOS.
FONTS = ("DejaVuSans.ttf", "NotoSansCJK-Regular.ttc", "wqy-microhei.ttc", "arial.ttf", "msyh.ttc", "PingFang.ttc")


def to_hex(colours: np.ndarray) -> list[str]:
    """Return colours (N, 3) uint8 as a list of "#rrggbb"."""
    return ["#" + bytes(colour).hex() for colour in colours]


def overlay(
    image: np.ndarray, label: np.ndarray, colours: np.ndarray, background: int | None, opacity: float = 0.5
) -> np.ndarray:
    """Return the image blended with the colours of its classes, with opaque contours: (H, W, 3) uint8.

    image: (H, W, 3) uint8 RGB. label: (H, W) uint8 class numbers, 255 = ignored. colours: (256, 3) uint8. background:
    class that stays clear, like ignored pixels; None paints all classes. opacity: 0..1, inside the contours.
    """
    painted = colours[label]
    mixed = cv2.addWeighted(image, 1 - opacity, painted, opacity, 0)
    np.copyto(mixed, image, where=~is_foreground(label, background)[..., None])
    np.copyto(mixed, painted, where=contours(label, background)[..., None])
    return mixed


def contours(label: np.ndarray, background: int | None) -> np.ndarray:
    """Mark pixels along the borders of classes, (H, W) bool, except in ignored pixels (255) and the class `background`.

    label: (H, W) class numbers. background: None leaves out no class. On each side of a border, lines grow by 1 pixel
    for every 500 pixels of the longer side. Large pictures are viewed scaled down.
    """
    label = label.astype(np.uint8, copy=False)  # OpenCV does not take int64
    width = 1 + max(label.shape) // 500
    square = np.ones((2 * width + 1, 2 * width + 1), np.uint8)
    return (cv2.erode(label, square) != cv2.dilate(label, square)) & is_foreground(label, background)


def panel(
    image: np.ndarray, label: np.ndarray, predicted: np.ndarray, classes: Classes, background: int | None
) -> np.ndarray:
    """Return image and label above prediction and overlay, then a legend, as one uint8 RGB picture.

    image: (H, W, 3) uint8 RGB. label, predicted: (H, W) uint8. background: as in overlay().
    """
    colours = classes.colours
    below = [colours[predicted], overlay(image, predicted, colours, background)]
    grid = sheet([[image, colours[label]], below], columns=1, size=PANEL_SIZE)
    return with_legend(grid, np.stack([label, predicted]), classes)


def sheet(rows: Sequence[Sequence[np.ndarray]], columns: int = 2, size: int = SHEET_SIZE) -> np.ndarray:
    """Join rows of pictures of one size, (H, W, 3) uint8 each, into one picture with `columns` rows side by side.

    Pictures whose longer side exceeds `size` are shrunk. White lines separate them.
    """
    shrink = min(1.0, size / max(rows[0][0].shape[:2]))
    shape = [max(1, round(shrink * side)) for side in rows[0][0].shape[1::-1]]
    small = [[cv2.resize(picture, shape, interpolation=cv2.INTER_AREA) for picture in row] for row in rows]
    tiles = [np.concatenate([np.pad(picture, FRAME, constant_values=255) for picture in row], axis=1) for row in small]
    tiles += [np.full_like(tiles[0], 255)] * (-len(tiles) % columns)
    return np.concatenate([np.concatenate(tiles[at : at + columns], axis=1) for at in range(0, len(tiles), columns)])


def with_legend(picture: np.ndarray, label: np.ndarray, classes: Classes, hidden: int | None = None) -> np.ndarray:
    """Return the picture above a legend of the classes in `label`, (H + more, W or more, 3) uint8.

    picture: (H, W, 3) uint8 RGB. label: class numbers, of any shape; 255 and `hidden` get no name.
    """
    present = np.flatnonzero(value_histogram(label.reshape(len(label), -1).astype(np.uint8, copy=False))).tolist()
    numbers = [number for number in present if number not in (IGNORE, hidden)]
    if not numbers:
        return picture
    height, width = picture.shape[:2]
    size = max(LEGEND_SIZE, round(max(height, width) / 60))
    texts = [_drawable(classes.names[number], number, size) for number in numbers]
    column = round(max(font.getlength(text) for text, font in texts)) + 3 * size
    num_columns, row = max(1, width // column), round(1.5 * size)
    num_rows = -(-len(numbers) // num_columns)
    strip = Image.new("RGB", (max(width, column), num_rows * row + size // 2), "#ffffff")
    draw = ImageDraw.Draw(strip)
    for place, (number, (text, font)) in enumerate(zip(numbers, texts, strict=True)):
        x, y = place % num_columns * column + size // 2, place // num_columns * row + size // 2
        draw.rectangle((x, y, x + size, y + size), tuple(classes.colours[number].tolist()), "#808080")
        draw.text((x + round(1.5 * size), y + size // 2), text, "#1b2026", font, anchor="lm")
    wide = np.pad(picture, ((0, 0), (0, strip.width - width), (0, 0)), constant_values=255)
    return np.concatenate([wide, np.asarray(strip)])


@functools.lru_cache(maxsize=1024)
def _drawable(name: str, number: int, size: int) -> tuple[str, ImageFont.FreeTypeFont]:
    """Return the name and a font that has all of its letters; without such a font, "class 3" in Pillow's own font."""
    default = ImageFont.load_default(size)
    assert isinstance(default, ImageFont.FreeTypeFont)  # as in every wheel of Pillow
    fonts = [default]
    for path in FONTS:
        with contextlib.suppress(OSError):  # it is not installed
            fonts.append(ImageFont.truetype(path, size))
    for font in fonts:
        missing = bytes(font.getmask("\uffff"))
        if all(letter.isspace() or bytes(font.getmask(letter)) != missing for letter in name):
            return name, font
    return f"class {number}", default
