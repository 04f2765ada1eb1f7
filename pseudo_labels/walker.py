"""Spread strokes over an image with the random-walker algorithm (Grady), without a model or with its prediction."""

import math
from typing import NamedTuple

import cv2
import numpy as np

from support.labels import IGNORE

MOST_CELLS = 2**18  # of the grid; at least 2 x 2 pixels a cell
COARSEST = 24  # cells, the shorter side of the coarsest grid
CONTRAST = 10.0  # an edge of the image's mean contrast conducts 1 / (1 + CONTRAST)**2 of one without contrast
ITERATIONS = 100  # on each grid, from strokes alone
PRIOR_ITERATIONS = 30  # on the finest grid, with a model: a stroke reaches at most 30 cells
REACH = 0.5  # times sqrt(h * w) cells: the distance after which a walk ends at a class of the model, without edges


class Walk(NamedTuple):
    """Where random walks end. K is the number of classes; 0 without a model if fewer than two classes have a stroke.

    classes: (K,) uint8. probs: probability of each class, on a grid of (h, w) cells over the image, (K, h, w) float32.
    """

    classes: np.ndarray
    probs: np.ndarray

    def best(self, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Return (class uint8, its probability float32) of each pixel, (H, W). If there are no classes: 255 and 0.

        size: of the image, (H, W).
        """
        classes, best = np.full(size, IGNORE, np.uint8), np.zeros(size, np.float32)
        for number, probs in zip(self.classes, self.probs, strict=True):
            full = cv2.resize(probs, size[::-1], interpolation=cv2.INTER_LINEAR)
            classes[full > best] = number
            np.maximum(best, full, out=best)
        return classes, best


class Grid(NamedTuple):
    """An image as a grid of (h, w) cells. seeds: class of the stroke in a cell, 255 = none, (h, w) uint8.

    down, right: how easily a walk crosses to the cell below, (h-1, w), and to the right, (h, w-1), float32.
    """

    seeds: np.ndarray
    down: np.ndarray
    right: np.ndarray


NO_WALK = Walk(np.zeros(0, np.uint8), np.zeros((0, 1, 1), np.float32))


def walk(image: np.ndarray, scribble: np.ndarray) -> Walk:
    """Return how likely a random walk that starts at a cell meets each class's strokes first.

    The walk crosses an edge between two cells the more rarely, the more their colours differ (Grady, "Random Walks for
    Image Segmentation", PAMI 2006). The strokes of one class alone are not spread: nothing says where the class ends.
    image: (H, W, 3) uint8 RGB. scribble: (H, W) uint8, 255 = no stroke.
    """
    classes = np.unique(scribble[scribble != IGNORE])
    if len(classes) < 2:
        return NO_WALK
    sizes = [_finest(scribble.shape)]
    while min(sizes[-1]) > COARSEST:
        height, width = sizes[-1]
        sizes.append((math.ceil(height / 2), math.ceil(width / 2)))
    probs = np.full((len(classes), *sizes[-1]), 1 / len(classes), np.float32)
    for size in reversed(sizes):  # the result of a coarse grid is a good start on the next finer one
        probs = np.stack([cv2.resize(values, size[::-1], interpolation=cv2.INTER_LINEAR) for values in probs])
        probs = _solve(grid(image, scribble, size), classes, probs, ITERATIONS)
    return Walk(classes, _normalised(probs))


def walk_from(cells: Grid, classes: np.ndarray, prior: np.ndarray) -> Walk:
    """Return how likely a walk ends at each class: at a stroke, or elsewhere at a class drawn from a prediction.

    Small areas inside closed edges tend to get the class that the model predicts for most of them (Grady, "Multilabel
    Random Walker Image Segmentation Using Prior Models", CVPR 2005). The solver stops after PRIOR_ITERATIONS: with
    more, strokes override the model far away, which lowered CamVid's mIoU (benchmarks/RESULTS.md).
    classes: (K,) uint8; they include every stroke's. prior: the model's probabilities on the grid, (K, h, w) float32.
    """
    weight = 1 / (REACH**2 * cells.seeds.size)
    return Walk(classes, _normalised(_solve(cells, classes, prior, PRIOR_ITERATIONS, weight)))


def grid(image: np.ndarray, scribble: np.ndarray, size: tuple[int, int] | None = None) -> Grid:
    """Return an image's grid of this (h, w); None: the finest. image: (H, W, 3) uint8 RGB. scribble: (H, W) uint8."""
    size = size or _finest(scribble.shape)
    return Grid(_seeds(scribble, size), *_conductances(image, size))


def _finest(size: tuple[int, ...]) -> tuple[int, int]:
    """Return the (height, width) of the finest grid of an image of this size, in cells."""
    step = max(2, math.ceil(math.sqrt(size[0] * size[1] / MOST_CELLS)))
    return math.ceil(size[0] / step), math.ceil(size[1] / step)


def _normalised(probs: np.ndarray) -> np.ndarray:
    """Return probabilities that are positive and sum to 1 over the classes."""
    probs = probs.clip(1e-6, 1)
    return probs / probs.sum(0)


def _seeds(scribble: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Return the scribble on a grid of this (height, width): a cell has a stroke if any of its pixels has."""
    seeds = np.full(size, IGNORE, np.uint8)
    rows, columns = np.nonzero(scribble != IGNORE)
    cells = rows * size[0] // scribble.shape[0], columns * size[1] // scribble.shape[1]
    seeds[cells] = scribble[rows, columns]
    return seeds


def _conductances(image: np.ndarray, size: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return how easily a walk crosses from each cell to the one below, (h-1, w), and to the right, (h, w-1), float32.

    The squared distance of the colours in CIELAB is divided by its mean over the image, as in GrabCut. The conductance
    falls as its power, not exponentially: else all edges of a textured image would be equally closed.
    """
    small = cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA).astype(np.float32) / 255
    colours = cv2.cvtColor(small, cv2.COLOR_RGB2LAB)
    squares = [(np.diff(colours, axis=axis) ** 2).sum(2) for axis in (0, 1)]
    mean = sum(values.sum(dtype=np.float64) for values in squares) / max(1, sum(values.size for values in squares))
    down, right = (1 / (1 + values * np.float32(CONTRAST / (mean + 1e-6))) ** 2 for values in squares)
    return down, right


def _solve(cells: Grid, classes: np.ndarray, prior: np.ndarray, iterations: int, weight: float = 0) -> np.ndarray:
    """Return the probabilities of K classes after some iterations of conjugate gradients, (K, h, w) float32.

    The iterations start at `prior`, (K, h, w) float32. A cell with a stroke keeps probability 1 for its class. Any
    other cell approaches the weighted mean of its neighbours, by conductance, and of `prior`, by `weight`. The K
    systems are solved at once.
    """
    seeds, down, right = cells
    free = (seeds == IGNORE).astype(np.float32)
    probs = np.where(free > 0, prior, (seeds == classes[:, None, None]).astype(np.float32))
    degree = np.full(free.shape, weight + 1e-12, np.float32)
    degree[:-1] += down
    degree[1:] += down
    degree[:, :-1] += right
    degree[:, 1:] += right
    part, flow = np.empty_like(probs), np.empty_like(probs)
    # The change of the free cells solves a system whose diagonal is scaled to 1: a Jacobi preconditioner for free.
    scale = free / np.sqrt(degree)
    residual = -_subtract_neighbours(probs * degree - np.float32(weight) * prior, probs, down, right, part) * scale
    down, right = down * scale[:-1] * scale[1:], right * scale[:, :-1] * scale[:, 1:]
    change, direction = np.zeros_like(probs), residual.copy()
    size = _dot(residual, residual)
    for _ in range(iterations):
        np.copyto(flow, direction)
        _subtract_neighbours(flow, direction, down, right, part)
        rate = size / _dot(direction, flow)
        change += np.multiply(direction, rate, out=part)
        residual -= np.multiply(flow, rate, out=part)
        size, last = _dot(residual, residual), size
        direction *= size / last
        direction += residual
    return probs + change * scale


def _subtract_neighbours(
    out: np.ndarray, values: np.ndarray, down: np.ndarray, right: np.ndarray, part: np.ndarray
) -> np.ndarray:
    """Subtract each cell's neighbours, weighted by conductance, from `out`, and return it. part: memory to work in."""
    for weights, one, other in ((down, np.s_[:, :-1], np.s_[:, 1:]), (right, np.s_[:, :, :-1], np.s_[:, :, 1:])):
        out[one] -= np.multiply(weights, values[other], out=part[one])
        out[other] -= np.multiply(weights, values[one], out=part[other])
    return out


def _dot(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the dot product of each class's values, (K, 1, 1), never 0."""
    return np.einsum("kij,kij->k", first, second)[:, None, None] + np.float32(1e-20)
