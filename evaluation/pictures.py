"""Draw label maps as pictures."""

import io
import math

import cv2
import numpy as np
from PIL import Image

from labels import IGNORE

PANEL_SIZE = 512  # pixels, longer side of each picture in a panel


def to_hex(colours: np.ndarray) -> list[str]:
    """Format colours (N, 3) uint8 as #rrggbb."""
    return ["#" + bytes(colour).hex() for colour in colours]


def overlay(
    image: np.ndarray, label: np.ndarray, colours: np.ndarray, background: int | None, opacity: float = 0.5
) -> np.ndarray:
    """Blend the classes' colours over the image, with opaque contours: (H, W, 3) uint8.

    image (H, W, 3) uint8 RGB; label (H, W) uint8 class numbers, 255 = ignored; colours (256, 3) uint8. background: the
    class that stays clear, like ignored pixels; None: all classes are painted. opacity: 0..1, inside the contours.
    """
    painted = colours[label]
    mixed = cv2.addWeighted(image, 1 - opacity, painted, opacity, 0)
    mixed = np.where(_clear(label, background)[..., None], image, mixed)
    return np.where(contours(label, background)[..., None], painted, mixed)


def _clear(label: np.ndarray, background: int | None) -> np.ndarray:
    """Mark pixels where an overlay shows only the image, (H, W) bool. Arguments as in overlay()."""
    ignored = label == IGNORE
    return ignored if background is None else ignored | (label == background)


def contours(label: np.ndarray, background: int | None) -> np.ndarray:
    """Mark pixels along the borders of classes, except in clear parts: (H, W) bool. Arguments as in overlay().

    Lines grow by 1 pixel for every 500 pixels of the longer side, because large pictures are viewed scaled down.
    """
    label = label.astype(np.uint8, copy=False)  # OpenCV does not take int64
    width = 1 + max(label.shape) // 500
    square = np.ones((2 * width + 1, 2 * width + 1), np.uint8)
    return (cv2.erode(label, square) != cv2.dilate(label, square)) & ~_clear(label, background)


def panel(
    image: np.ndarray, label: np.ndarray, predicted: np.ndarray, colours: np.ndarray, background: int | None
) -> np.ndarray:
    """Put input and label above prediction and overlay: (2*H, 2*W, 3) uint8.

    Arguments as in overlay(). Images larger than PANEL_SIZE are subsampled.
    """
    step = math.ceil(max(label.shape) / PANEL_SIZE)
    image, label, predicted = (np.ascontiguousarray(values[::step, ::step]) for values in (image, label, predicted))
    above = np.concatenate([image, colours[label]], axis=1)
    below = np.concatenate([colours[predicted], overlay(image, predicted, colours, background)], axis=1)
    return np.concatenate([above, below])


def label_png(label: np.ndarray, colours: np.ndarray | None = None) -> bytes:
    """Encode a label map (H, W) uint8 as a PNG whose pixels are class numbers; colours (256, 3) uint8: its palette."""
    picture = Image.fromarray(label)
    if colours is not None:
        picture.putpalette(colours.tobytes())
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
