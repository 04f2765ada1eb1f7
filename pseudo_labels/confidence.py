"""Choose the pixels that become pseudo-labels: the most confident ones of each class."""

import math

import numpy as np
import torch
from torch import Tensor

from support.labels import IGNORE

NUM_LEVELS = 256
KEEP = 0.7  # share of each class's pixels that is labelled at least
STEPS_PER_HALVING = 10  # one level is 7 % of 1 - p; float32 ends at 24 halvings


def levels(probs: Tensor) -> Tensor:
    """Return probabilities as confidence levels, uint8, same shape: 10 * -log2(1 - p), rounded down.

    A trained network is above 0.99 in most pixels, which levels in proportion to p could not tell apart.
    probs: float32.
    """
    halvings = -torch.log2((1 - probs).clamp(min=0))  # inf for 1
    return (halvings * STEPS_PER_HALVING).clamp(0, NUM_LEVELS - 1).to(torch.uint8)


def histogram(classes: np.ndarray, levels: np.ndarray, scribble: np.ndarray, num_classes: int) -> np.ndarray:
    """Count the pixels without a stroke by class and confidence level, (num_classes, NUM_LEVELS) int64.

    classes, levels, scribble: (H, W) uint8; 255 in scribble = no stroke.
    """
    free = scribble == IGNORE
    pairs = classes[free].astype(np.int64) * NUM_LEVELS + levels[free]
    return np.bincount(pairs, minlength=num_classes * NUM_LEVELS).reshape(num_classes, NUM_LEVELS)


def floors(counts: np.ndarray, threshold: float, keep: float = KEEP) -> np.ndarray:
    """Return the lowest confidence level at which each class is labelled, (C,) int64.

    It is the level of the probability `threshold`, or a lower one if less than the share `keep` of the class's pixels
    reach it: then the highest level that at least this share reaches. A threshold alone would leave the hard classes
    without labels (class-balanced self-training, arXiv:1810.07911).
    counts: sum of histogram() over all images, (C, NUM_LEVELS). threshold, keep: 0..1.
    """
    above = counts[:, ::-1].cumsum(1)[:, ::-1]  # pixels of this level or a higher one
    needed = [[math.ceil(keep * total)] for total in above[:, 0].tolist()]
    reached = (above >= needed).sum(1) - 1  # `above` falls, so this is the last level that suffices
    return np.minimum(reached, levels(torch.tensor(threshold)).item())


def merge(scribble: np.ndarray, classes: np.ndarray, levels: np.ndarray, floors: np.ndarray) -> np.ndarray:
    """Return the pseudo-label of an image, (H, W) uint8: a class, or 255 where unsure.

    A pixel of a stroke keeps the stroke's class; elsewhere a class is kept if its level reaches the class's floor.
    scribble: (H, W) uint8, 255 = no stroke. classes, levels: (H, W) uint8. floors: (C,).
    """
    of_value = np.full(256, NUM_LEVELS)
    of_value[: len(floors)] = floors
    sure = np.where(levels >= of_value[classes], classes, np.uint8(IGNORE))
    return np.where(scribble != IGNORE, scribble, sure)
