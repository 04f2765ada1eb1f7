"""Measure a scribble: how much it covers, how deep inside its classes it is, and where it contradicts the mask."""

from dataclasses import dataclass, field

import cv2
import numpy as np

from support.labels import IGNORE

NEAR = 5  # pixels from the border of a class


@dataclass(frozen=True)
class ClassFigures:
    """What was measured of one class in one image.

    strokes: connected parts. pixels: of the strokes. The rest needs a mask. area: pixels of the class in it. inside:
    stroke pixels that have the class in the mask. depth: the mean distance of these to the class's border, over the
    largest distance in their region; None without such pixels, or if the class fills the image. near: stroke pixels at
    most NEAR pixels from the border; pixels outside the class count as near. thin: whether at least half of the class's
    pixels are at most NEAR pixels from its border.
    """

    strokes: int
    pixels: int
    area: int = 0
    inside: int = 0
    depth: float | None = None
    near: int = 0
    thin: bool = False


@dataclass(frozen=True)
class Figures:
    """What was measured of one image.

    size: number of pixels. labelled: number of pixels on a stroke. wrong, void: stroke pixels with another class
    in the mask, and with 255; None without a mask. classes: those with a stroke or in the mask.
    """

    size: int
    labelled: int
    wrong: int | None = None
    void: int | None = None
    classes: dict[int, ClassFigures] = field(default_factory=dict)


def measure(scribble: np.ndarray, mask: np.ndarray | None) -> Figures:
    """Return the figures of a scribble. scribble, mask: (H, W) uint8, 255 = not labelled; mask None: without one."""
    drawn = scribble != IGNORE
    values = set(np.unique(scribble).tolist())
    if mask is None:
        classes = {value: _measure_class(scribble == value, None) for value in sorted(values - {IGNORE})}
        return Figures(scribble.size, int(drawn.sum()), classes=classes)
    values = (values | set(np.unique(mask).tolist())) - {IGNORE}
    void = drawn & (mask == IGNORE)
    wrong = drawn & ~void & (scribble != mask)
    classes = {value: _measure_class(scribble == value, mask == value) for value in sorted(values)}
    return Figures(scribble.size, int(drawn.sum()), int(wrong.sum()), int(void.sum()), classes)


def _measure_class(stroke: np.ndarray, region: np.ndarray | None) -> ClassFigures:
    """Return the figures of one class. stroke, region: (H, W) bool, its pixels in the scribble and in the mask."""
    strokes = cv2.connectedComponents(stroke.view(np.uint8), connectivity=8)[0] - 1
    pixels = int(stroke.sum())
    if region is None:
        return ClassFigures(strokes, pixels)
    area, inside = int(region.sum()), stroke & region
    if area in (0, region.size):
        return ClassFigures(strokes, pixels, area, int(inside.sum()), near=pixels - int(inside.sum()))
    distance = cv2.distanceTransform(region.view(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    count, number = cv2.connectedComponents(region.view(np.uint8), connectivity=8)
    largest = np.zeros(count, np.float32)
    np.maximum.at(largest, number[region], distance[region])
    depth = float((distance[inside] / largest[number[inside]]).mean()) if inside.any() else None
    near = int((distance[stroke] <= NEAR).sum())
    thin = bool(np.median(distance[region]) <= NEAR)
    return ClassFigures(strokes, pixels, area, int(inside.sum()), depth, near, thin)
