"""How often each class occurs, and what it should weigh in a loss for that."""

import numpy as np


def label_histogram(label: np.ndarray, num_classes: int) -> np.ndarray:
    """The number of pixels of each class in a label map of any shape: (num_classes,) int64; other values do not count."""
    inside = label[(label >= 0) & (label < num_classes)]
    return np.bincount(inside.ravel(), minlength=num_classes)


def class_weights(histogram: np.ndarray) -> np.ndarray:
    """The weight of each class, (num_classes,) float64, from its number of pixels: 1 / ln(1.02 + share).

    The rule of ENet (arXiv:1606.02147): from 1.4 for a class that is everywhere to 50.5 for one that never occurs.
    """
    share = histogram / max(int(histogram.sum()), 1)
    return 1 / np.log(1.02 + share)
