"""Spread strokes over an image without training, by a random walker."""

import math
from typing import NamedTuple

import cv2
import numpy as np

from labels import IGNORE

MOST_CELLS = 2**18  # of the grid; at least 2 x 2 pixels a cell
COARSEST = 24  # cells, the shorter side of the coarsest grid
CONTRAST = 10.0  # an edge of the image's mean contrast conducts 1 / (1 + CONTRAST)**2 of one without contrast
ITERATIONS = 100  # on each grid


class Walk(NamedTuple):
    """Where random walks end. K is the number of classes that have a stroke; 0 if fewer than two have.

    classes: (K,) uint8. probs: probability of each class, on a grid of (h, w) cells over the image, (K, h, w) float32.
    """

    classes: np.ndarray
    probs: np.ndarray


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
    step = max(2, math.ceil(math.sqrt(scribble.size / MOST_CELLS)))
    sizes = [tuple(math.ceil(side / step) for side in scribble.shape)]
    while min(sizes[-1]) > COARSEST:
        sizes.append(tuple(math.ceil(side / 2) for side in sizes[-1]))
    probs = np.full((len(classes), *sizes[-1]), 1 / len(classes), np.float32)
    for size in reversed(sizes):  # the result of a coarse grid is a good start on the next finer one
        probs = np.stack([cv2.resize(values, size[::-1], interpolation=cv2.INTER_LINEAR) for values in probs])
        seeds = _seeds(scribble, size)
        is_seed = (seeds == classes[:, None, None]).astype(np.float32)
        free = (seeds == IGNORE).astype(np.float32)
        probs = _solve(*_conductances(image, size), np.where(free > 0, probs, is_seed), free)
    probs = probs.clip(1e-6, 1)
    return Walk(classes, probs / probs.sum(0))


def _seeds(scribble: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Return the scribble on a grid of this (height, width): a stroke of any pixel of a cell is the cell's."""
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


def _solve(down: np.ndarray, right: np.ndarray, probs: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Return the probabilities after ITERATIONS of conjugate gradients from `probs`, (K, h, w) float32.

    Each free cell's probability becomes the mean of its neighbours', weighted by conductance. free: (h, w) float32, 1
    where no stroke is; elsewhere `probs` stays. The K systems are solved at once, preconditioned by their diagonal.
    """
    degree = np.full(free.shape, 1e-12, np.float32)
    degree[:-1] += down
    degree[1:] += down
    degree[:, :-1] += right
    degree[:, 1:] += right
    part = np.empty_like(probs)

    def laplacian(values: np.ndarray) -> np.ndarray:
        result = degree * values
        for weights, one, other in (
            (down, np.s_[:, :-1], np.s_[:, 1:]),
            (right, np.s_[:, :, :-1], np.s_[:, :, 1:]),
        ):
            result[one] -= np.multiply(weights, values[other], out=part[one])
            result[other] -= np.multiply(weights, values[one], out=part[other])
        return result

    def dot(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.multiply(first, second, out=part).sum((1, 2), keepdims=True) + np.float32(1e-20)

    residual = -laplacian(probs) * free
    direction = residual / degree
    size = dot(residual, direction)
    for _ in range(ITERATIONS):
        flow = laplacian(direction) * free
        rate = size / dot(direction, flow)
        probs = probs + rate * direction
        residual -= rate * flow
        scaled = residual / degree
        size, last = dot(residual, scaled), size
        direction = scaled + size / last * direction
    return probs
