"""Find the places of an image where a stroke would teach a model most, and choose among those of all images.

A pixel of predicted class l is of another class c with probability p_c. Then class c misses one of its A_c pixels, and
class l has one that is not its own. So the pixel costs their IoU about p_c (1 / A_c + 1 / A_l). A place is worth the
sum over a window, inside the part of the image with the same predicted class: a stroke there settles it.
benchmarks/RESULTS.md compares other criteria.
"""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from torch import Tensor

from inference.pseudo.labelling import Stroked
from support.labels import IGNORE

REACH = 0.04  # half the side of a window, as a share of the grid's longer side
MISTAKE = 0.1  # probability that a pixel is of another class, however sure the model is
PER_CLASS = 4  # places of an image in parts of one class, at most
SIGMA_COLOUR = 10.0  # in CIELAB: places of colours that differ more teach different things


class Place(NamedTuple):
    """A place to draw a stroke at. row, column: of the image, in pixels.

    label: its class by the model. chances: (C,) sum of the probabilities of all other classes over the window, in
    images. size: of the window's part, in images. colour: (3,) the window's mean, in CIELAB.
    """

    row: int
    column: int
    label: int
    chances: np.ndarray
    size: float
    colour: np.ndarray

    @property
    def other(self) -> int:
        """Return the next likely class."""
        return int(self.chances.argmax())

    def value(self, areas: np.ndarray) -> float:
        """Return what the pixels in the window cost the IoU of their classes. areas: (C,), in images."""
        areas = areas.clip(1e-12)  # a class may have none
        chances = (1 - MISTAKE) * self.chances + MISTAKE * self.size * areas / areas.sum()
        return float((chances * (1 / areas + 1 / areas[self.label])).sum())


def find_places(item: Stroked, probs: Tensor) -> tuple[list[Place], np.ndarray]:
    """Return places of an image, away from its strokes, and the area of each class in images: (C,).

    probs: result of inference.pseudo.labelling.predict() for the image, (C, h, w), in CPU memory.
    """
    values = probs.float().numpy()
    label = values.argmax(0).astype(np.uint8)
    (height, width), reach = label.shape, max(1, round(REACH * max(label.shape)))
    cells = values.sum((1, 2)) / label.size
    unsure = 1 - (1 - MISTAKE) * values.max(0)
    stroke_distance = cv2.distanceTransform((item.grid.seeds == IGNORE).view(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_5)
    unsure[stroke_distance <= reach / 2] = 0  # settled already
    colours = cv2.cvtColor(cv2.resize(item.image, (width, height), interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2LAB)
    places: list[Place] = []
    for number in np.flatnonzero(np.bincount(label.ravel())).tolist():
        inside = label == number
        mass = cv2.boxFilter(unsure * inside, -1, [2 * reach + 1] * 2, normalize=False, borderType=cv2.BORDER_CONSTANT)
        mass[~inside | (unsure == 0)] = 0
        depth = cv2.distanceTransform(np.pad(inside, 1).view(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_5)[1:-1, 1:-1]
        for _ in range(PER_CLASS):
            row, column = divmod(int(mass.argmax()), width)
            if mass[row, column] <= 0:
                break
            box = _box(row, column, reach)
            within = unsure[box] * inside[box]
            # Inside the part rather than at its border, where the stroke would have little room.
            down, across = divmod(int((depth[box] * within).argmax()), within.shape[1])
            chances = (values[:, box[0], box[1]] * (within > 0)).sum((1, 2)) / label.size
            chances[number] = 0
            shape = item.scribble.shape
            at_row = int((box[0].start + down + 0.5) * shape[0] / height)
            at_column = int((box[1].start + across + 0.5) * shape[1] / width)
            colour = colours[box][within > 0].mean(0).astype(np.float32)
            places.append(Place(at_row, at_column, number, chances, (within > 0).sum() / label.size, colour))
            mass[_box(row, column, 2 * reach)] = 0
    # Places of two classes may come together at the border of their parts.
    apart: list[Place] = []
    least = reach * item.scribble.shape[0] / height
    for place in sorted(places, key=lambda place: -place.chances.sum()):
        if all(max(abs(place.row - one.row), abs(place.column - one.column)) > least for one in apart):
            apart.append(place)
    return apart, cells


def _box(row: int, column: int, reach: int) -> tuple[slice, slice]:
    return slice(max(0, row - reach), row + reach + 1), slice(max(0, column - reach), column + reach + 1)


def choose(
    images: Sequence[list[Place]], areas: np.ndarray, budget: int, *, whole: bool = False
) -> list[tuple[int, Place | None]]:
    """Return what to draw, the best first: (number of the image, place), or (number, None) to draw its whole mask.

    A stroke also settles places that look alike, so their values fall with each choice. areas: of each class, as
    find_places() returns them, (C,).
    """
    every = [(number, place) for number, places in enumerate(images) for place in places]
    if not every:
        return []
    numbers, places = np.array([number for number, _ in every]), [place for _, place in every]
    # A choice is a place, or an image with all of its places.
    starts = np.unique(numbers, return_index=True)[1] if whole else np.arange(len(every))
    stops = np.append(starts[1:], len(every))
    left = np.array([place.value(areas) for place in places])
    others, colours = _looks(places)
    labels, chosen = np.array([place.label for place in places]), list[int]()
    settled, worth = np.zeros(len(every)), left.copy()
    for _ in range(min(budget, len(starts))):
        gains = np.add.reduceat(left, starts)
        gains[chosen] = -1
        chosen.append(int(gains.argmax()))
        for number in range(starts[chosen[-1]], stops[chosen[-1]]):
            near = np.exp(-((colours - colours[number]) ** 2).sum(1) / (2 * SIGMA_COLOUR**2))
            alike = (labels == labels[number]) * near * (others @ others[number]) ** 2
            settled = np.maximum(settled, alike)
        left = worth * (1 - settled)
    return [(every[starts[index]][0], None if whole else every[starts[index]][1]) for index in chosen]


def _looks(places: list[Place]) -> tuple[np.ndarray, np.ndarray]:
    """Return what places are compared by: square roots of the chances of other classes (N, C), and colours (N, 3)."""
    chances = np.stack([place.chances for place in places])
    return np.sqrt(chances / chances.sum(1, keepdims=True).clip(1e-12)), np.stack([place.colour for place in places])
