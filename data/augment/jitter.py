"""Random brightness, contrast, saturation and hue of an image."""

from dataclasses import dataclass

import cv2
import numpy as np

from support.image_stats import MEAN_COLOUR

LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601, as in OpenCV


@dataclass(frozen=True)
class ColourJitter:
    """Change an image's brightness, contrast, saturation and hue at random.

    With probability p, the first three factors are drawn from 1 - strength to 1 + strength, where `brightness`,
    `contrast` and `saturation` are the strengths. An 8-bit RGB image is multiplied by the first. Its differences from
    `mean` are multiplied by the second, and each pixel's differences from its grey by the third. Then its hues are
    turned by -hue to hue of a full turn, which keeps the greys. Other images have no black and no grey:
    (first factor - 1) * std is added instead, and saturation and hue are not used.

    mean: of each channel. std: of each channel; None: 8-bit RGB.
    """

    mean: tuple[float, ...] = MEAN_COLOUR
    std: tuple[float, ...] | None = None
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    p: float = 0.8

    def __call__(self, image: np.ndarray, inside: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the changed image, of the image's type. image: (H, W, C). inside: (H, W) uint8, 0 in the padding.

        The padding is not changed.
        """
        changes = rng.random() < self.p
        rng.random()  # not used: without this draw, a seed would give other samples than it did
        strengths = np.array([self.brightness, self.contrast, self.saturation, self.hue])
        middle = np.array([1, 1, 1, 0])
        brightness, contrast, saturation, hue = rng.uniform(middle - strengths, middle + strengths)
        if not changes:
            return image
        mean = np.array(self.mean)
        if self.std is None:
            mix = saturation * np.eye(3) + (1 - saturation) * LUMA  # each row: a channel's weights of red, green, blue
            if self.hue:
                mix = _turn(hue) @ mix
            changed = cv2.transform(image, np.column_stack([contrast * brightness * mix, mix @ mean * (1 - contrast)]))
        else:
            shift = (1 - contrast) * mean + (brightness - 1) * np.array(self.std)
            changed = _round(image * np.float32(contrast) + shift.astype(np.float32), image.dtype)
        return cv2.copyTo(image, (inside == 0).view(np.uint8), changed).reshape(image.shape)


def _turn(hue: float) -> np.ndarray:
    """Return the (3, 3) matrix that turns RGB colours about the grey axis. hue: 1/3 makes red green, and green blue."""
    first = (1 + 2 * np.cos(2 * np.pi * (hue + np.arange(3) / 3))) / 3
    return np.stack([np.roll(first, row) for row in range(3)])


def _round(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return float32 values as `dtype`: rounded and clipped to its range if it is of integers."""
    if dtype.kind == "f":
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    return np.rint(values).clip(limits.min, limits.max).astype(dtype)
