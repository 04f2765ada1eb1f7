"""Scores of a segmentation, from one confusion matrix."""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from labels import IGNORE

BOUNDARY = 0.02  # width of a boundary, as part of the image's diagonal


class Scores(TypedDict):
    """Scores in 0..1, and how many labelled pixels they are over. Means are over the classes that the labels have."""

    pixels: int
    miou: float
    fwiou: float  # IoU of each class times its share of the labelled pixels
    pixel_acc: float  # correct pixels over labelled ones
    mean_acc: float
    # Per class; None where it has no value: there is nothing to divide by.
    iou: list[float | None]  # None for a class that is neither in the labels nor predicted
    acc: list[float | None]  # correct pixels over those of the class, its recall
    precision: list[float | None]  # correct pixels over those predicted as the class


def confusion_matrix(predicted: Tensor, label: Tensor, num_classes: int) -> Tensor:
    """Pixel counts (num_classes, num_classes) int64: row = label, column = prediction; label 255 is left out.

    predicted and label: integer maps of one shape, values 0..num_classes-1, and 255 in label.
    """
    # Ignored pixels get a number past the last; to pick the others out, a GPU would have to be waited for.
    pairs = torch.where(label == IGNORE, num_classes**2, label.long() * num_classes + predicted)
    return torch.bincount(pairs.flatten(), minlength=num_classes**2 + 1)[:-1].view(num_classes, num_classes)


def scores(confusion: Tensor) -> Scores:
    """Scores from a confusion matrix summed over all ranks; all 0 where nothing is labelled."""
    confusion = confusion.double().cpu()
    correct, labelled, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    union = labelled + predicted - correct
    present = labelled > 0
    iou = correct / union.clamp(min=1)
    num_present, num_pixels = max(1, int(present.sum())), max(1.0, float(labelled.sum()))
    return {
        "pixels": int(labelled.sum()),
        "miou": float(iou[present].sum()) / num_present,
        "fwiou": float((iou * labelled).sum()) / num_pixels,
        "pixel_acc": float(correct.sum()) / num_pixels,
        "mean_acc": float((correct[present] / labelled[present]).sum()) / num_present,
        "iou": ratios(correct, union),
        "acc": ratios(correct, labelled),
        "precision": ratios(correct, predicted),
    }


def ratios(part: Tensor, whole: Tensor) -> list[float | None]:
    """part / whole, entry by entry; None where whole is 0."""
    return [float(value) if pixels else None for value, pixels in zip(part / whole.clamp(min=1), whole, strict=True)]


def mean_iou(counts: np.ndarray) -> np.ndarray:
    """mIoU from counts (..., 3, C): correct, labelled and predicted pixels of each class; 0 where nothing is labelled."""
    correct, labelled, predicted = np.moveaxis(counts.astype(np.float64), -2, 0)
    iou = correct / np.maximum(labelled + predicted - correct, 1)
    present = labelled > 0
    return (iou * present).sum(-1) / np.maximum(present.sum(-1), 1)


def class_iou(counts: np.ndarray) -> np.ndarray:
    """IoU of each class, (..., C), from counts as of mean_iou(); nan for a class that is neither labelled nor predicted."""
    correct, labelled, predicted = np.moveaxis(counts.astype(np.float64), -2, 0)
    union = labelled + predicted - correct
    return np.where(union > 0, correct / np.maximum(union, 1), np.nan)


def class_counts(confusion: Tensor) -> Tensor:
    """Correct, labelled and predicted pixels of each class, (3, C), from a confusion matrix (C, C)."""
    return torch.stack([confusion.diagonal(), confusion.sum(1), confusion.sum(0)])


def bootstrap(counts: np.ndarray, num_samples: int = 2000, seed: int = 0) -> np.ndarray:
    """Counts (num_samples, 3, C) of data sets drawn from the images with replacement.

    counts (images, 3, C): class_counts() of each image. The same seed draws the same images, so that of two models on
    the same images the differences, entry by entry, are those of a paired bootstrap.
    """
    num_images = len(counts)
    rng = np.random.default_rng(seed)
    samples = rng.multinomial(num_images, np.full(num_images, 1 / num_images), size=num_samples)
    # In float64, which NumPy multiplies by BLAS; exact, as the sums are integers below 2**53.
    sums = samples.astype(np.float64) @ counts.reshape(num_images, -1).astype(np.float64)
    return sums.reshape(num_samples, *counts.shape[1:])


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 per cent interval of bootstrapped values, without those that are nan."""
    low, high = np.nanquantile(values, [0.025, 0.975])
    return float(low), float(high)


def boundary_counts(predicted: Tensor, label: Tensor, num_classes: int) -> Tensor:
    """For boundary IoU: pixels (3, C) int64 in both boundaries, in the label's, and in the predicted one, of each class.

    A class's boundary is what of it lies within d pixels (square neighbourhood) of another class or of the image's
    border, d being 2 per cent of the image's diagonal (arXiv:2103.16562). Ignored pixels are a class of their own in
    both maps, and not counted. predicted and label: (H, W), as in confusion_matrix().
    """
    predicted = torch.where(label == IGNORE, IGNORE, predicted.to(label.dtype))
    distance = max(1, round(BOUNDARY * math.hypot(*label.shape)))
    near = [_near_another_class(values, distance) for values in (label, predicted)]
    both = near[0] & near[1] & (label == predicted)
    chosen = ((both, label), (near[0], label), (near[1], predicted))
    return torch.stack(
        [torch.bincount(torch.where(*pair, IGNORE).flatten(), minlength=256)[:num_classes] for pair in chosen]
    )


def _near_another_class(label: Tensor, distance: int) -> Tensor:
    """Where a square of side 2 * distance + 1 reaches another class or beyond the image: (H, W) bool."""
    values = F.pad(label.to(torch.int16), [distance] * 4, value=-1)
    lowest, highest = (
        _running(extreme, _running(extreme, values, 2 * distance + 1, dim=0), 2 * distance + 1, dim=1)
        for extreme in (torch.minimum, torch.maximum)
    )
    return lowest != highest


def _running(extreme: Callable[[Tensor, Tensor], Tensor], values: Tensor, length: int, dim: int) -> Tensor:
    """The extreme of each `length` neighbours along a dimension, which gets length - 1 shorter: by doubling."""
    reach = 1
    while reach < length:
        step = min(reach, length - reach)
        size = values.shape[dim] - step
        values = extreme(values.narrow(dim, 0, size), values.narrow(dim, step, size))
        reach += step
    return values


def table(scores: Mapping[str, Any], class_names: list[str], boundary_iou: list[float | None] | None = None) -> str:
    """The scores of each class and their means, in per cent, as text."""
    columns = {"IoU": scores["iou"], "acc": scores["acc"], "precision": scores["precision"]}
    summary = {"mIoU": scores["miou"], "frequency-weighted IoU": scores["fwiou"], "pixel accuracy": scores["pixel_acc"],
               "mean accuracy": scores["mean_acc"]}  # fmt: skip
    if boundary_iou is not None:
        columns["boundary IoU"] = boundary_iou
        summary["mean boundary IoU"] = mean_of_present(boundary_iou, scores)
    width = max(len(name) for name in [*class_names, *summary])
    rule = "  " + "-" * (width + sum(max(8, len(name) + 2) for name in columns))
    rows = [f"  {'class':<{width}}" + "".join(f"{name:>{max(8, len(name) + 2)}}" for name in columns), rule]
    absent = [name for name, acc in zip(class_names, scores["acc"], strict=True) if acc is None]
    for name, *values in zip(class_names, *columns.values(), strict=True):
        cells = ["-" if value is None else f"{100 * value:.2f}" for value in values]
        if name in absent and values[0] is None:
            cells = ["absent"]
        rows.append(
            f"  {name:<{width}}"
            + "".join(f"{cell:>{max(8, len(head) + 2)}}" for head, cell in zip(columns, cells, strict=False))
        )
    rows += [rule, *(f"  {name:<{width}}{100 * value:8.2f}" for name, value in summary.items())]
    if absent:
        rows.append(f"  not in the labels, and so not in the means: {', '.join(absent)}")
    return "\n".join(rows)


def mean_of_present(values: list[float | None], scores: Mapping[str, Any]) -> float:
    """The mean of a score over the classes that the labels have."""
    present = [value or 0.0 for value, acc in zip(values, scores["acc"], strict=True) if acc is not None]
    return sum(present) / max(1, len(present))
