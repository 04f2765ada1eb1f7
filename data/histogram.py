"""Class frequencies in the labels, and class weights from them."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from data.images import read_label


def label_histogram(label: np.ndarray, num_classes: int) -> np.ndarray:
    """Count the pixels of each class in a label map (uint8, any shape): (num_classes,) int64."""
    return np.bincount(label.ravel(), minlength=256)[:num_classes]


def class_weights(histogram: np.ndarray) -> np.ndarray:
    """Weights by ENet's bounded rule (arXiv:1606.02147): 1 / ln(1.02 + p), p the class's share of labelled pixels.

    histogram: (num_classes,). Returns (num_classes,) float64, from 1.42 for p = 1 to 50.5 for p = 0.
    """
    share = histogram / max(histogram.sum(), 1)
    return 1 / np.log(1.02 + share)


def count_labels(paths: list[Path], num_classes: int, bar: Callable[[Iterable], Iterable] = iter) -> np.ndarray:
    """Sum label_histogram() over files, read in threads. bar: wraps an iterable to show progress.

    A UserError names a file that cannot be used.
    """
    with ThreadPoolExecutor() as pool:
        histograms = pool.map(lambda path: label_histogram(read_label(path, num_classes), num_classes), paths)
        return sum(bar(histograms), np.zeros(num_classes, np.int64))
