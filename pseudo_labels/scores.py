"""Compare pseudo-labels with dense masks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from evaluation import metrics

FINAL = "pseudo-labels"  # the labels that are written; other ways are "model", "strokes" and "joined"


def count(label: np.ndarray, mask: np.ndarray, num_classes: int) -> np.ndarray:
    """Count pixels by class in the mask (row) and in the pseudo-label (column), (C, C + 1) int64.

    The last column counts unsure pixels. Pixels that the mask ignores are not counted. label, mask: (H, W) uint8,
    0..C-1 and 255.
    """
    columns = torch.from_numpy(np.minimum(label, num_classes))
    return metrics.confusion_matrix(columns, torch.from_numpy(mask), num_classes + 1)[:-1].numpy()


def of_counts(counts: np.ndarray) -> dict[str, Any]:
    """Return the scores of the sum of count() over images: metrics.scores() over labelled pixels, and what is labelled.

    "labelled": share of the mask's pixels that have a pseudo-label, 0..1. "labelled_by_class": that of each class, None
    if the masks lack it. The IoU of a class that no labelled pixel has in mask or label is None.
    """
    labelled, total = counts[:, :-1].sum(1), counts.sum(1)
    return {
        **metrics.scores(torch.from_numpy(counts[:, :-1])),
        "labelled": float(labelled.sum() / max(1, total.sum())),
        "labelled_by_class": metrics.ratios(torch.from_numpy(labelled), torch.from_numpy(total)),
    }


def table(ways: Mapping[str, Mapping[str, Any]], class_names: list[str]) -> str:
    """Return a text table, in per cent: the IoU of each class, mIoU, pixel accuracy and share labelled, by way.

    ways: {way of making: scores of of_counts()}. The last column is the share of each class that FINAL labels.
    """
    ious = [[scores["iou"][number] for scores in ways.values()] for number in range(len(class_names))]
    rows = [[*values, labelled] for values, labelled in zip(ious, ways[FINAL]["labelled_by_class"], strict=True)]
    means = {"mIoU": "miou", "pixel accuracy": "pixel_acc", "labelled": "labelled"}
    summary = [(title, [scores[name] for scores in ways.values()]) for title, name in means.items()]
    return metrics.text_table([*ways, "labelled"], [*zip(class_names, rows, strict=True)], summary)
