"""Draw label maps as pictures."""

from collections.abc import Sequence

import cv2
import numpy as np

from data.classes import Classes
from evaluation.legend import with_legend
from support.labels import IGNORE

SHEET_SIZE = 256  # pixels, longer side of each picture in a sheet
PANEL_SIZE = 512  # pixels, longer side of each picture in a panel


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
    mixed = np.where(_clear(label, background)[..., None], image, mixed)
    return np.where(contours(label, background)[..., None], painted, mixed)


def _clear(label: np.ndarray, background: int | None) -> np.ndarray:
    """Mark pixels that an overlay leaves unpainted, (H, W) bool: label 255 and class `background`, unless None."""
    ignored = label == IGNORE
    return ignored if background is None else ignored | (label == background)


def contours(label: np.ndarray, background: int | None) -> np.ndarray:
    """Mark pixels along the borders of classes, (H, W) bool, except in ignored pixels (255) and the class `background`.

    label: (H, W) class numbers. background: None leaves out no class. On each side of a border, lines grow by 1 pixel
    for every 500 pixels of the longer side. Large pictures are viewed scaled down.
    """
    label = label.astype(np.uint8, copy=False)  # OpenCV does not take int64
    width = 1 + max(label.shape) // 500
    square = np.ones((2 * width + 1, 2 * width + 1), np.uint8)
    return (cv2.erode(label, square) != cv2.dilate(label, square)) & ~_clear(label, background)


def panel(
    image: np.ndarray, label: np.ndarray, predicted: np.ndarray, classes: Classes, background: int | None
) -> np.ndarray:
    """Return four pictures in a grid, uint8 RGB: image and label above, prediction and overlay below, then a legend.

    image: (H, W, 3) uint8 RGB. label, predicted: (H, W) uint8. background: class that the overlay leaves clear, or
    None.
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
    tiles = [
        np.concatenate([_framed(cv2.resize(picture, shape, interpolation=cv2.INTER_AREA)) for picture in row], axis=1)
        for row in rows
    ]
    tiles += [np.full_like(tiles[0], 255)] * (-len(tiles) % columns)
    return np.concatenate([np.concatenate(tiles[at : at + columns], axis=1) for at in range(0, len(tiles), columns)])


def _framed(picture: np.ndarray) -> np.ndarray:
    return cv2.copyMakeBorder(picture, 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=(255, 255, 255))
