"""Count the classes in labels and in training batches."""

from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor

from data.images import read_label
from data.label_map import LabelMap
from support.batch import Batch
from support.labels import IGNORE

MOST = 2**23  # pixels that are counted at once: cv2.calcHist returns float32, which is exact to 2**24


def value_histogram(values: np.ndarray) -> np.ndarray:
    """Return the number of pixels of each value in a map, (256,) int64. values: (H, W) uint8."""
    flat = values.reshape(1, -1)
    parts = [flat[:, start : start + MOST] for start in range(0, flat.size, MOST)] if flat.size > MOST else [values]
    counts = [cv2.calcHist([part], [0], None, [256], [0, 256]).ravel().astype(np.int64) for part in parts]
    return np.sum(counts, axis=0)


def count_batch(batch: Batch) -> dict[str, Tensor]:
    """Return {map: its counts per image, int64} for a batch in CPU memory; the losses need them.

    They are (B, 256) for a label map, the number of pixels per value, and (B,) for a distance map, those above 0.
    """
    counts = {}
    for name, maps in batch.maps.items():
        count = cv2.countNonZero if name.startswith("distance") else value_histogram
        counts[name] = torch.from_numpy(np.array([count(values) for values in maps.numpy()], np.int64))
    return counts


def count_values(path: Path, label_map: LabelMap | None = None, num_classes: int = IGNORE) -> dict[int, int]:
    """Return {value: number of pixels} of a label file. label_map: applied to its values.

    Raises InputError for a file that is not a label map of `num_classes` classes.
    """
    histogram = value_histogram(read_label(path, num_classes, label_map))
    return {value: int(histogram[value]) for value in np.flatnonzero(histogram).tolist()}
