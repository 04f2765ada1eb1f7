"""Random brightness, contrast and saturation of an image."""

from dataclasses import dataclass

import cv2
import numpy as np

from image_stats import MEAN_COLOUR

LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601, as in OpenCV


@dataclass(frozen=True)
class ColourJitter:
    """Change an image's brightness, contrast and saturation at random, or make it grey.

    With probability p, three factors are drawn from 1 - strength to 1 + strength. An 8-bit RGB image is multiplied by
    the first. Its differences from `mean` are multiplied by the second, and each pixel's differences from its grey by
    the third, which is 0 with probability grey_p. The defaults are those of UniMatch's code (arXiv:2208.09910), which
    also changes the hue. Other images have no black and no grey: (first factor - 1) * std is added instead, and the
    third factor is not used.

    mean: of each channel; padding has this value and keeps it. std: of each channel; None: 8-bit RGB.
    """

    mean: tuple[float, ...] = MEAN_COLOUR
    std: tuple[float, ...] | None = None
    strength: float = 0.5
    p: float = 0.8
    grey_p: float = 0.2

    def __call__(self, image: np.ndarray, inside: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the changed image, of the image's type. image: (H, W, C). inside: (H, W), 0 outside the image."""
        changes, is_grey = rng.random() < self.p, rng.random() < self.grey_p
        brightness, contrast, saturation = rng.uniform(1 - self.strength, 1 + self.strength, 3)
        if not changes:
            return image
        mean = np.array(self.mean)
        if self.std is None:
            colours = 0.0 if is_grey else saturation
            mix = colours * np.eye(3) + (1 - colours) * LUMA  # each row: a channel's weights of red, green and blue
            changed = cv2.transform(image, np.column_stack([contrast * brightness * mix, mix @ mean * (1 - contrast)]))
        else:
            shift = (1 - contrast) * mean + (brightness - 1) * np.array(self.std)
            changed = _round(image * np.float32(contrast) + shift.astype(np.float32), image.dtype)
        changed[inside == 0] = self.mean
        return changed


def _round(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return float32 values as `dtype`: rounded and clipped to its range if it is of integers."""
    if dtype.kind == "f":
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    return np.rint(values).clip(limits.min, limits.max).astype(dtype)
