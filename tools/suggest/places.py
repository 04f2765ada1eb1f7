"""Find the places of an image where a stroke would teach a model most, and choose among those of all images.

The model predicts class l for a pixel, and class c with probability p_c. If the pixel is of class c, it is a false
negative of c and a false positive of l, and lowers their IoUs by about 1 / A_c and 1 / A_l. So its expected cost is
the sum of p_c (1 / A_c + 1 / A_l) over the other classes c. A_c is the area of class c in all images, by the model. The
value of a place is the sum of the costs over the pixels of a window that have its predicted class: we assume that a
stroke there corrects all of them. A connected part of the prediction that already has a stroke of its class counts
less, because another object teaches more. benchmarks/RESULTS.md compares other criteria.
"""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from torch import Tensor

from inference.pseudo_labels import Stroked
from support.labels import IGNORE

REACH = 0.04  # half the side of a window, as a share of the grid's longer side
DRAWN = 0.2  # weight of a connected part that already has a stroke of its class
APART = 3  # least distance of two places of an image, in REACH
MISTAKE = 0.1  # weight of the classes' areas beside the probabilities: a sure model can be wrong, too
PER_CLASS = 4  # most places of an image for each predicted class
SIGMA_COLOUR = 10.0  # in CIELAB; scale of the similarity of two colours


class Place(NamedTuple):
    """A place to draw a stroke at. row, column: of the image, in pixels.

    label: its predicted class. chances: (C,) the probability of each class, summed over the window's pixels that have
    the class `label`, and divided by the number of pixels of the image; 0 for `label`. size: the number of these
    pixels, divided likewise. Both are times DRAWN if the place is in a part with a stroke. colour: (3,) the pixels'
    mean, in CIELAB.
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
        """Return the expected cost of the window's pixels. areas: (C,), of the classes, in images."""
        areas = areas.clip(1e-12)  # a class may have none
        chances = (1 - MISTAKE) * self.chances + MISTAKE * self.size * areas / areas.sum()
        chances[self.label] = 0
        return float((chances * (1 / areas + 1 / areas[self.label])).sum())


def find_places(item: Stroked, probs: Tensor) -> tuple[list[Place], np.ndarray]:
    """Return places of an image, away from its strokes, and the area of each class in images: (C,).

    probs: result of inference.pseudo_labels.predict() for the image, (C, h, w), in CPU memory.
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
        _, parts = cv2.connectedComponents(inside.view(np.uint8), connectivity=8)
        drawn = np.isin(parts, parts[inside & (item.grid.seeds == number)])
        weight = unsure * np.where(drawn, DRAWN, inside.astype(np.float32))
        mass = cv2.boxFilter(weight, -1, [2 * reach + 1] * 2, normalize=False, borderType=cv2.BORDER_CONSTANT)
        mass[~inside | (unsure == 0)] = 0
        depth = cv2.distanceTransform(np.pad(inside, 1).view(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_5)[1:-1, 1:-1]
        for _ in range(PER_CLASS):
            row, column = divmod(int(mass.argmax()), width)
            if mass[row, column] <= 0:
                break
            box = _box(row, column, reach)
            within = weight[box]
            # Inside the part rather than at its border, where the stroke would have little room.
            down, across = divmod(int((depth[box] * within).argmax()), within.shape[1])
            share = DRAWN if drawn[row, column] else 1.0
            chances = share * (values[:, box[0], box[1]] * (within > 0)).sum((1, 2)) / label.size
            chances[number] = 0
            shape = item.scribble.shape
            at_row = int((box[0].start + down + 0.5) * shape[0] / height)
            at_column = int((box[1].start + across + 0.5) * shape[1] / width)
            colour = colours[box][within > 0].mean(0).astype(np.float32)
            size = share * (within > 0).sum() / label.size
            places.append(Place(at_row, at_column, number, chances, size, colour))
            mass[_box(row, column, 2 * reach)] = 0
    # Places of two classes may come together at the border of their parts.
    apart: list[Place] = []
    least = APART * reach * item.scribble.shape[0] / height
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

    Each choice lowers the values of places with the same predicted class, a similar colour and similar probabilities of
    the other classes. areas: (C,), the sum of what find_places() returns.
    """
    every = [(number, place) for number, places in enumerate(images) for place in places]
    if not every:
        return []
    numbers, places = np.array([number for number, _ in every]), [place for _, place in every]
    # A choice is a place, or an image with all of its places.
    starts = np.unique(numbers, return_index=True)[1] if whole else np.arange(len(every))
    stops = np.append(starts[1:], len(every))
    left = np.array([place.value(areas) for place in places])
    chances, colours = (np.stack([getattr(place, name) for place in places]) for name in ("chances", "colour"))
    others = np.sqrt(chances / chances.sum(1, keepdims=True).clip(1e-12))  # (N, C), of the other classes
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
