"""Random brightness, contrast, saturation and hue of an image."""

from dataclasses import dataclass

import cv2
import numpy as np

MEAN_COLOUR = (124, 116, 104)  # ImageNet's mean, RGB, 0..255
LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601, as in OpenCV


@dataclass(frozen=True)
class ColourJitter:
    """Change an image's brightness, contrast, saturation and hue at random.

    With probability p, the first three factors are drawn from 1 - strength to 1 + strength, where `brightness`,
    `contrast` and `saturation` are the strengths. The image is multiplied by the first. Its differences from
    MEAN_COLOUR are multiplied by the second, and each pixel's differences from its grey by the third. Then its hues are
    turned by -hue to hue of a full turn, which keeps the greys.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    p: float = 0.8

    def __call__(self, image: np.ndarray, inside: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the changed image. image: (H, W, 3) uint8 RGB. inside: (H, W) uint8, 0 in the padding.

        The padding is not changed.
        """
        changes = rng.random() < self.p
        rng.random()  # not used: without this draw, a seed would give other samples than it did
        strengths = np.array([self.brightness, self.contrast, self.saturation, self.hue])
        middle = np.array([1, 1, 1, 0])
        brightness, contrast, saturation, hue = rng.uniform(middle - strengths, middle + strengths)
        if not changes:
            return image
        mix = saturation * np.eye(3) + (1 - saturation) * LUMA  # each row: a channel's weights of red, green, blue
        if self.hue:
            mix = _turn(hue) @ mix
        shift = mix @ np.array(MEAN_COLOUR) * (1 - contrast)
        changed = cv2.transform(image, np.column_stack([contrast * brightness * mix, shift]))
        return cv2.copyTo(image, (inside == 0).view(np.uint8), changed)


def _turn(hue: float) -> np.ndarray:
    """Return the (3, 3) matrix that turns RGB colours about the grey axis. hue: 1/3 makes red green, and green blue."""
    first = (1 + 2 * np.cos(2 * np.pi * (hue + np.arange(3) / 3))) / 3
    return np.stack([np.roll(first, row) for row in range(3)])
