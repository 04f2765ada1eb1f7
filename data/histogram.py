"""Class frequencies in the labels, and class weights from them."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from data.images import read_label


def label_histogram(label: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the number of pixels of each class in a label map (uint8, any shape), (num_classes,) int64.

    Values from num_classes on, such as 255, are not counted.
    """
    return np.bincount(label.ravel(), minlength=256)[:num_classes]


def class_weights(histogram: np.ndarray) -> np.ndarray:
    """Return class weights by ENet's bounded rule (arXiv:1606.02147): 1 / ln(1.02 + p), (num_classes,) float64.

    p is the class's share of the labelled pixels. histogram: pixels of each class, (num_classes,). Weights range from
    1.42 for p = 1 to 50.5 for p = 0.
    """
    share = histogram / max(histogram.sum(), 1)
    return 1 / np.log(1.02 + share)


def count_labels(paths: list[Path], num_classes: int, bar: Callable[[Iterable], Iterable] = iter) -> np.ndarray:
    """Return the number of pixels of each class over all label files, (num_classes,) int64.

    bar: wraps an iterable to show progress. Files are read in threads. Raises UserError, with the file's path, for a
    file that is not a valid label map.
    """
    with ThreadPoolExecutor() as pool:
        histograms = pool.map(lambda path: label_histogram(read_label(path, num_classes), num_classes), paths)
        return sum(bar(histograms), np.zeros(num_classes, np.int64))
