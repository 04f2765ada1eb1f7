"""Spread strokes over an image with the random-walker algorithm (Grady), guided by a model's prediction."""

import itertools
import math
from typing import NamedTuple

import cv2
import numpy as np

from support.labels import IGNORE

MOST_CELLS = 2**18  # of the grid; at least 2 x 2 pixels a cell
CONTRAST = 10.0  # an edge of the image's mean contrast conducts 1 / (1 + CONTRAST)**2 of one without contrast
ITERATIONS = 30  # a stroke reaches at most 30 cells
REACH = 0.5  # times sqrt(h * w) cells: the distance after which a walk ends at a class of the model, without edges


class Grid(NamedTuple):
    """An image as a grid of (h, w) cells. seeds: class of the stroke in a cell, 255 = none, (h, w) uint8.

    down, right: how easily a walk crosses to the cell below, (h-1, w), and to the right, (h, w-1), float32.
    """

    seeds: np.ndarray
    down: np.ndarray
    right: np.ndarray


def walk(cells: Grid, classes: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return the chance that a walk from a cell ends at a class, (K, h, w) float32.

    A walk ends at a stroke, or elsewhere at a class that is sampled from a prediction. It rarely crosses between cells
    whose colours differ much (Grady, "Random Walks for Image Segmentation", PAMI 2006). A
    small area inside closed edges tends to get the class that the model predicts for most of its pixels (Grady,
    "Multilabel Random Walker Image Segmentation Using Prior Models", CVPR 2005). The solver stops after ITERATIONS:
    with more, strokes override the model far away, which lowered CamVid's mIoU (benchmarks/RESULTS.md).
    classes: (K,) uint8; they include every stroke's. prior: the model's probabilities on the grid, (K, h, w) float32.
    A cell with a stroke keeps probability 1 for its class. Others approach the weighted mean of their neighbours, by
    conductance, and of `prior`, by 1 / (REACH^2 * number of cells). Conjugate gradients solve the K systems at once.
    """
    seeds, down, right = cells
    weight = 1 / (REACH**2 * seeds.size)
    free = (seeds == IGNORE).astype(np.float32)
    probs = np.where(free > 0, prior, (seeds == classes[:, None, None]).astype(np.float32))
    degree = np.full(free.shape, weight, np.float32)
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
    for _ in range(ITERATIONS):
        np.copyto(flow, direction)
        _subtract_neighbours(flow, direction, down, right, part)
        rate = size / _dot(direction, flow)
        change += np.multiply(direction, rate, out=part)
        residual -= np.multiply(flow, rate, out=part)
        size, last = _dot(residual, residual), size
        direction *= size / last
        direction += residual
    probs = (probs + change * scale).clip(1e-6, 1)
    return probs / probs.sum(0)


def grid(image: np.ndarray, scribble: np.ndarray) -> Grid:
    """Return an image as a grid, as fine as MOST_CELLS allows.

    image: (H, W, 3) uint8 RGB. scribble: (H, W) uint8, 255 = no stroke.
    """
    height, width = scribble.shape
    step = max(2, math.ceil(math.sqrt(height * width / MOST_CELLS)))
    size = math.ceil(height / step), math.ceil(width / step)
    return Grid(_seeds(scribble, size), *_conductances(image, size))


def _seeds(scribble: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Return the scribble on a grid of this (height, width): a cell has a stroke if it has the centre of its pixel.

    Of several classes a cell has the first, and a centre between two cells is in both, so that a mirrored or transposed
    scribble has the mirrored or transposed seeds.
    """
    seeds = np.full(size, IGNORE, np.uint8)
    pixels = np.nonzero(scribble != IGNORE)
    # The centre of pixel p is at (2 p + 1) / (2 W) of the width, and w times this in cells.
    centres = [((2 * p + 1) * cells, 2 * whole) for p, cells, whole in zip(pixels, size, scribble.shape, strict=True)]
    for at in itertools.product(*(((place - 1) // unit, place // unit) for place, unit in centres)):
        np.minimum.at(seeds, at, scribble[pixels])
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
