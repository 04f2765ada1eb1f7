"""Correct a model that was trained on strokes for the strokes' shares of the classes."""

import numpy as np
from torch import Tensor

from support.labels import IGNORE


def predicted_shares(probs: Tensor, seeds: np.ndarray) -> np.ndarray:
    """Return sums of an image's probabilities over all cells, and over those with a stroke, (2, C) float64.

    probs: (C, h, w) float32, in CPU memory. seeds: walker.Grid.seeds of the image, (h, w) uint8.
    """
    values = probs.double().clamp(min=1e-12).numpy()  # prevents 0 / 0
    return np.stack([values.sum((1, 2)), values[:, seeds != IGNORE].sum(1)])


def factors(shares: np.ndarray) -> np.ndarray:
    """Return factors for the probabilities of a model, (C,) float64: its shares of all cells / those at the strokes.

    People draw about equally long strokes on small and large objects, so a model that was trained on strokes predicts
    small classes too often. By Bayes' rule, the ratio of a class's shares in all pixels and in the strokes corrects
    this (Saerens et al. 2002, eq. 2.4; arXiv:2007.07314). Both shares are the model's mean probability, so that a class
    which it predicts too often everywhere is not raised.
    shares: sum of predicted_shares() over images, (2, C).
    """
    everywhere, at_strokes = shares / shares.sum(1, keepdims=True)
    return everywhere / at_strokes
