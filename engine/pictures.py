"""Label maps as pictures."""

import io
import math

import numpy as np
from PIL import Image

PANEL_SIZE = 512  # pixels, the longer side of each picture in a panel


def to_hex(colours: np.ndarray) -> list[str]:
    """#rrggbb of each of the colours (N, 3) uint8."""
    return ["#" + bytes(colour).hex() for colour in colours]


def overlay(image: np.ndarray, label: np.ndarray, colours: np.ndarray, opacity: float = 0.5) -> np.ndarray:
    """The classes' colours over the image, (H, W, 3) uint8.

    image (H, W, 3) uint8 RGB; label (H, W) class numbers, 255 = ignore; colours (256, 3) uint8. opacity: of the
    colours, 0..1.
    """
    return (image * (1 - opacity) + colours[label] * opacity).astype(np.uint8)


def panel(image: np.ndarray, label: np.ndarray, predicted: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """Input and label, below them prediction and prediction over input: (2*H, 2*W, 3) uint8.

    Arguments as of overlay(). Images larger than PANEL_SIZE are thinned out to it.
    """
    step = math.ceil(max(label.shape) / PANEL_SIZE)
    image, label, predicted = (values[::step, ::step] for values in (image, label, predicted))
    above = np.concatenate([image, colours[label]], axis=1)
    return np.concatenate([above, np.concatenate([colours[predicted], overlay(image, predicted, colours)], axis=1)])


def label_png(label: np.ndarray, colours: np.ndarray) -> bytes:
    """A label map (H, W) uint8 as a palette PNG, whose pixels are class numbers."""
    picture = Image.fromarray(label)
    picture.putpalette(colours.tobytes())
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
