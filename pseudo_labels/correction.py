"""Correct a model that was trained on strokes for the strokes' shares of the classes."""

from collections.abc import Callable

import numpy as np

ROUNDS = 3  # the factors hardly change after the third round


def estimate(label: Callable[[np.ndarray], np.ndarray], strokes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return factors for a model's probabilities, sqrt(pixels / strokes), and the shares of the pixels; (C,) float64.

    People draw about equally long strokes on small and large objects, so a model that was trained on strokes predicts
    small classes too often. By Bayes' rule, the ratio itself would give it the shares of the pixels (Saerens et al.
    2002, eq. 2.4; arXiv:2007.07314). But for strokes of equal length, the ratio made worse labels than its square root
    does (benchmarks/RESULTS.md).
    Each round labels images with the last factors, and takes the shares of the classes in these labels as those of the
    pixels, similar to expectation maximization. The factor of a class of less than 1 / C of the pixels is at most 1:
    strokes rarely label too little of a small class, and a larger factor would amplify its confusion with a large one.
    A class without strokes has factor 1, because the model did not learn it, and a class that is in no label keeps its
    factor: 0 would remove it from images that were not among the labelled ones.
    label: returns the share of each class, (C,), in labels that are made with factors, (C,). strokes: share of each
    class in the pixels of all strokes, (C,).
    """
    factors, pixels = np.ones(len(strokes)), strokes
    for _ in range(ROUNDS):
        pixels = label(factors)
        known = (strokes > 0) & (pixels > 0)
        factors = np.where(known, np.sqrt(pixels / np.where(known, strokes, 1.0)), factors)
        factors = np.where(pixels < 1 / len(pixels), np.minimum(factors, 1.0), factors)
    return factors, pixels
