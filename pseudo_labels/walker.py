"""Spread strokes over an image with the random-walker algorithm, which needs no training."""

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


def _solve(down: np.ndarray, right: np.ndarray, probs: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Return the probabilities after ITERATIONS of conjugate gradients from `probs`, (K, h, w) float32.

    Each free cell's probability approaches the mean of its neighbours', weighted by conductance. free: (h, w) float32,
    1 where no stroke is; elsewhere `probs` stays. The K systems are solved at once.
    """
    degree = np.full(free.shape, 1e-12, np.float32)
    degree[:-1] += down
    degree[1:] += down
    degree[:, :-1] += right
    degree[:, 1:] += right
    part, flow = np.empty_like(probs), np.empty_like(probs)
    # The change of the free cells solves a system whose diagonal is scaled to 1: a Jacobi preconditioner for free.
    scale = free / np.sqrt(degree)
    residual = -_subtract_neighbours(probs * degree, probs, down, right, part) * scale
    down, right = down * scale[:-1] * scale[1:], right * scale[:, :-1] * scale[:, 1:]
    change, direction = np.zeros_like(probs), residual.copy()
    size = _dot(residual, residual)
    for _ in range(ITERATIONS):
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
