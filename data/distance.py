"""Compute distance maps, which weight the entropy losses (CDSP, "Scribble Hides Class", AAAI 2024).

Training computes them on the fly, from each label at its own size; `tools/distance.py` saves them.
"""

import math
import sys

import cv2
import numpy as np

from support import program
from support.errors import UserError
from support.labels import IGNORE, is_foreground
from support.shell import python_command

LAMBDA_S = math.e
LAMBDA_C = math.e**6


def scribble_distance(label: np.ndarray, background: int | None = 0, scale: float = 1.0) -> np.ndarray:
    """Return the closeness of each pixel to the nearest stroke, (H, W) uint8: 255 on a stroke, falling to 0.

    The value is 255 - trunc(clip(sqrt(LAMBDA_S) * d, 0, 255)). d is the exact Euclidean distance in pixels, * `scale`.
    label: scribbles (H, W) uint8, 255 = no stroke. background: class whose strokes do not count; None counts all. If no
    stroke counts, the map is 0 everywhere.
    """
    return 255 - _scaled_distance(is_foreground(label, background), LAMBDA_S * scale**2)


def pseudo_distance(label: np.ndarray, background: int | None = 0, scale: float = 1.0) -> np.ndarray:
    """Return the distance of each pixel to a pseudo-label's contours, (H, W) uint8: 0 on a contour, rising to 255.

    The value is trunc(clip(sqrt(LAMBDA_C) * d, 0, 255)). d is the exact Euclidean distance in pixels times `scale`.
    label: pseudo-label (H, W) uint8, 255 = unlabelled. background: contours outline all other classes together; None
    outlines each class by itself. Contours are 1 pixel wide, also around holes. Without any, the map is 255 everywhere.
    """
    if background is None:
        regions = [label == number for number in np.unique(label) if number != IGNORE]
    else:
        regions = [is_foreground(label, background)]
    drawn = np.zeros(label.shape, np.uint8)
    for region in regions:
        contours, _ = cv2.findContours(region.astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(drawn, contours, -1, color=1, thickness=1)
    return _scaled_distance(drawn > 0, LAMBDA_C * scale**2)


def _scaled_distance(target: np.ndarray, scale_squared: float) -> np.ndarray:
    """Return trunc(clip(sqrt(scale_squared) * d, 0, 255)), (H, W) uint8; all 255 if no pixel of `target` is True.

    d is the Euclidean distance in pixels to the nearest True pixel of `target`, (H, W) bool.
    """
    if not target.any():
        return np.full(target.shape, 255, np.uint8)
    distance = cv2.distanceTransform((~target).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    np.multiply(distance, math.sqrt(scale_squared), out=distance)
    return np.minimum(distance, 255, out=distance).astype(np.uint8)


def main() -> None:
    raise UserError(f"data.distance is now tools.distance: {python_command('-m', 'tools.distance', *sys.argv[1:])}")


if __name__ == "__main__":
    program.run_and_exit(main)
