"""The connected regions of each class in a dense mask, and how deep inside them each pixel is."""

from dataclasses import dataclass

import cv2
import numpy as np

from support.labels import IGNORE

Box = tuple[slice, slice]


@dataclass(frozen=True)
class Regions:
    """The regions of a mask that get a stroke, numbered from 1.

    number: (H, W) int32, 0 outside of all regions. classes, boxes: class number and bounding box of each region; entry
    0 belongs to region 1.
    """

    number: np.ndarray
    classes: list[int]
    boxes: list[Box]


def find_regions(label: np.ndarray, min_area: int) -> Regions:
    """Return the regions of at least `min_area` pixels, and the largest one of each class whatever its size.

    label: (H, W) uint8; 255 belongs to no region. Pixels that touch at a corner are connected.
    """
    number = np.zeros(label.shape, np.int32)
    classes: list[int] = []
    boxes: list[Box] = []
    for value in np.flatnonzero(np.bincount(label.ravel(), minlength=256)[:IGNORE]).tolist():
        _, found, stats, _ = cv2.connectedComponentsWithStats((label == value).view(np.uint8), connectivity=8)
        areas = stats[1:, cv2.CC_STAT_AREA]
        kept = areas >= min_area
        kept[np.argmax(areas)] = True
        renumbered = np.zeros(len(stats), np.int32)
        renumbered[1:][kept] = np.arange(len(classes) + 1, len(classes) + 1 + int(kept.sum()))
        number += renumbered[found]
        for left, top, width, height, _ in stats[1:][kept].tolist():
            classes.append(value)
            boxes.append((slice(top, top + height), slice(left, left + width)))
    return Regions(number, classes, boxes)


def depth_inside(number: np.ndarray) -> np.ndarray:
    """Return the distance in pixels to the nearest border pixel of the own region, (H, W) float32; 0 on the border.

    number: as in Regions. A border pixel has a neighbour to the left, right, top or bottom that belongs to another
    region or lies outside the image. All pixels closer than the depth belong to the same region.
    """
    padded = np.pad(number, 1)
    inside = number > 0
    for neighbour in (padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]):
        inside &= neighbour == number
    return cv2.distanceTransform(inside.view(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
