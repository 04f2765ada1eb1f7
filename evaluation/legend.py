"""A strip below a picture that names the colours of its classes."""

import contextlib
import functools

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from data.classes import Classes
from support.labels import IGNORE

LEAST_SIZE = 12  # pixels of the letters; on a picture of more than 720 pixels, 1/60 of its longer side
FILM_ROWS = 3  # at most, on the frames of a video, whose legends have one size
# Pillow's own font has ASCII only. These come with Linux, Windows and macOS.
FONTS = ("DejaVuSans.ttf", "NotoSansCJK-Regular.ttc", "wqy-microhei.ttc", "arial.ttf", "msyh.ttc", "PingFang.ttc")
_PAPER, _INK, _EDGE = "#ffffff", "#1b2026", "#808080"


def with_legend(
    picture: np.ndarray, label: np.ndarray, classes: Classes, hidden: int | None = None, *, same_size: bool = False
) -> np.ndarray:
    """Return the picture above a legend of the classes in `label`, (H + more, W or more, 3) uint8.

    picture: (H, W, 3) uint8 RGB. label: class numbers, of any shape; 255 and `hidden` get no name. same_size: give
    all frames of a video a legend of the same size, which names the largest classes if not all fit.
    """
    areas = np.bincount(label.ravel(), minlength=256)
    areas[[IGNORE] if hidden is None else [IGNORE, hidden]] = 0
    candidates = range(len(classes.names)) if same_size else np.flatnonzero(areas).tolist()
    if not candidates:
        return picture
    height, width = picture.shape[:2]
    size = max(LEAST_SIZE, round(max(height, width) / 60))
    texts = {number: _drawable(classes.names[number], number, size) for number in candidates}
    column = round(max(font.getlength(text) for text, font in texts.values())) + 3 * size
    num_columns, row = max(1, width // column), round(1.5 * size)
    num_rows = -(-len(candidates) // num_columns)
    if same_size:
        num_rows = min(num_rows, FILM_ROWS)
    largest = np.argsort(-areas, kind="stable")[: num_rows * num_columns]
    strip = Image.new("RGB", (max(width, column), num_rows * row + size // 2), _PAPER)
    draw = ImageDraw.Draw(strip)
    for place, number in enumerate(sorted(number for number in largest.tolist() if areas[number])):
        x, y = place % num_columns * column + size // 2, place // num_columns * row + size // 2
        draw.rectangle((x, y, x + size, y + size), tuple(classes.colours[number].tolist()), _EDGE)
        text, font = texts[number]
        draw.text((x + round(1.5 * size), y + size // 2), text, _INK, font, anchor="lm")
    wide = np.pad(picture, ((0, 0), (0, strip.width - width), (0, 0)), constant_values=255)
    return np.concatenate([wide, np.asarray(strip)])


@functools.lru_cache(maxsize=1024)
def _drawable(name: str, number: int, size: int) -> tuple[str, ImageFont.FreeTypeFont]:
    """Return the name and a font that has all of its letters; without such a font, "class 3" in Pillow's own font."""
    own = ImageFont.load_default(size)
    assert isinstance(own, ImageFont.FreeTypeFont)  # as in every wheel of Pillow
    for candidate in (own, *_system_fonts(size)):
        missing = bytes(candidate.getmask("\uffff"))
        if all(letter.isspace() or bytes(candidate.getmask(letter)) != missing for letter in name):
            return name, candidate
    return f"class {number}", own


@functools.lru_cache
def _system_fonts(size: int) -> list[ImageFont.FreeTypeFont]:
    fonts = []
    for name in FONTS:
        with contextlib.suppress(OSError):  # it is not installed
            fonts.append(ImageFont.truetype(name, size))
    return fonts
