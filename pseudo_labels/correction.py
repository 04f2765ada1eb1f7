"""Correct a model that was trained on strokes for the strokes' shares of the classes."""

import numpy as np
from torch import Tensor

from data.histogram import value_histogram
from support.labels import IGNORE


def predicted_sums(probs: Tensor, seeds: np.ndarray) -> np.ndarray:
    """Return an image's sums, (3, C) float64: of probabilities in all cells, in cells with a stroke, and of such cells.

    probs: (C, h, w) float32, in CPU memory. seeds: walker.Grid.seeds of the image, (h, w) uint8.
    """
    values = probs.double().clamp(min=1e-12).numpy()  # prevents 0 / 0
    strokes = value_histogram(seeds)[: len(values)]
    return np.stack([values.sum((1, 2)), values[:, seeds != IGNORE].sum(1), strokes])


def factors(sums: np.ndarray) -> np.ndarray:
    """Return factors for the probabilities of a model, (C,) float64: their mean in all cells / their mean at strokes.

    People draw about equally long strokes on small and large objects, so a model that was trained on strokes predicts
    small classes too often. By Bayes' rule, the ratio of a class's shares in all pixels and in the strokes corrects
    this (Saerens et al. 2002, eq. 2.4; arXiv:2007.07314). Both shares are the model's mean probability, so a class that
    it predicts too often in both places keeps its factor. A class without a stroke has factor 1: the model did not
    learn it.
    sums: those of predicted_sums(), added up over images, (3, C).
    """
    everywhere, at_strokes, strokes = sums / sums.sum(1, keepdims=True)
    return np.where(strokes > 0, everywhere / at_strokes, 1.0)
