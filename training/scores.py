"""Scores of a segmentation, all computed from pixel counts."""

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from support.labels import IGNORE

# Scores of a segmentation by name, as scores() returns them; Result adds "images", "share" and "miou_ci".
Scores: TypeAlias = dict[str, Any]


def confusion_matrix(predicted: Tensor, label: Tensor, num_classes: int) -> Tensor:
    """Return pixel counts, (num_classes, num_classes) int64, row = label, column = prediction. Label 255 is ignored.

    predicted and label: integer maps of one shape with values 0..num_classes-1; label may also hold 255.
    """
    # Ignored pixels get an extra bin: selecting the others would make the CPU wait for the GPU.
    pairs = torch.where(label == IGNORE, num_classes**2, label.long() * num_classes + predicted)
    return torch.bincount(pairs.flatten(), minlength=num_classes**2 + 1)[:-1].view(num_classes, num_classes)


def scores(confusion: Tensor) -> Scores:
    """Return the scores of a confusion matrix (C, C), row = label. The means are 0 if no pixel is labelled.

    "pixels" is the number of labelled ones; all others are 0..1. "miou" and "mean_acc" are means over the classes that
    occur in the labels; "fwiou" weights the IoU by each class's share of the labelled pixels; "pixel_acc" is the share
    of labelled pixels that are correct. "iou", "acc" (recall) and "precision" have a value for each class, None if its
    denominator is 0.
    """
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
    """Return part / whole, element by element, as a list of floats; None where whole is 0. part, whole: (C,)."""
    return [float(value) if pixels else None for value, pixels in zip(part / whole.clamp(min=1), whole, strict=True)]


def class_counts(confusion: Tensor) -> Tensor:
    """Return correct, labelled and predicted pixels by class, (3, C), from a confusion matrix (C, C), row = label."""
    return torch.stack([confusion.diagonal(), confusion.sum(1), confusion.sum(0)])


def mean_iou(counts: np.ndarray) -> np.ndarray:
    """Return the mIoU over the labelled classes, (...) float64, from counts (..., 3, C); nan if nothing is labelled.

    counts: correct, labelled and predicted pixels of each class, as class_counts() returns.
    """
    present = counts[..., 1, :] > 0
    num_present = present.sum(-1)
    sums = (np.nan_to_num(class_iou(counts)) * present).sum(-1)
    return np.where(num_present > 0, sums / np.maximum(num_present, 1), np.nan)


def class_iou(counts: np.ndarray) -> np.ndarray:
    """Return the IoU of each class, (..., C) float64; nan for a class that is neither labelled nor predicted.

    counts: correct, labelled and predicted pixels of each class, (..., 3, C), as class_counts() returns.
    """
    correct, labelled, predicted = np.moveaxis(counts.astype(np.float64), -2, 0)
    union = labelled + predicted - correct
    return np.where(union > 0, correct / np.maximum(union, 1), np.nan)


def image_scores(counts: np.ndarray) -> list[dict]:
    """Return {"miou": float, "iou": [one value per class]} for each image; None for a value that is undefined.

    counts: correct, labelled and predicted pixels of each class in each image, (N, 3, C), as class_counts() returns.
    """
    columns = np.concatenate([mean_iou(counts)[:, None], class_iou(counts)], axis=1).tolist()
    rows = [[None if math.isnan(value) else value for value in row] for row in columns]
    return [{"miou": miou, "iou": ious} for miou, *ious in rows]


def miou_interval(counts: np.ndarray, num_samples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of the mIoU as (low, high), from a bootstrap: all images drawn with replacement.

    counts: class_counts() of each image, (images, 3, C).
    """
    num_images = len(counts)
    rng = np.random.default_rng(seed)
    samples = rng.multinomial(num_images, np.full(num_images, 1 / num_images), size=num_samples)
    # NumPy multiplies float64 by BLAS; sums of integers below 2**53 stay exact.
    sums = samples.astype(np.float64) @ counts.reshape(num_images, -1).astype(np.float64)
    mious = np.nan_to_num(mean_iou(sums.reshape(num_samples, *counts.shape[1:])))
    low, high = np.quantile(mious, [0.025, 0.975])
    return float(low), float(high)


def table(scores: Scores, class_names: list[str]) -> str:
    """Return a text table of the scores of each class and of the means, in per cent.

    scores: a Scores dict. The interval of the mIoU is included if `scores` has it.
    """
    means = {"mIoU": "miou", "frequency-weighted IoU": "fwiou", "pixel accuracy": "pixel_acc"}
    means |= {"mean accuracy": "mean_acc"}
    first = max(map(len, (*class_names, *means)))

    def line(name: str, *values: float | str | None) -> str:
        texts = ["-" if v is None else v if isinstance(v, str) else f"{100 * v:.2f}" for v in values]
        return f"  {name:<{first}}" + "".join(f"{text:>{w}}" for text, w in zip(texts, (8, 8, 11), strict=False))

    rule = "  " + "-" * (first + 27)
    lines = [line("class", "IoU", "acc", "precision"), rule]
    columns = (scores["iou"], scores["acc"], scores["precision"])
    for name, iou, *others in zip(class_names, *columns, strict=True):
        lines.append(line(name, "absent") if iou is None else line(name, iou, *others))
    lines += [rule, *(line(title, scores[name]) for title, name in means.items())]
    if absent := [name for name, acc in zip(class_names, scores["acc"], strict=True) if acc is None]:
        lines.append(f"  not in the labels, so not in the means: {', '.join(absent)}")
    if "miou_ci" in scores:
        miou, low, high = (100 * value for value in (scores["miou"], *scores["miou_ci"]))
        lines.append(f"  mIoU {miou:.2f}, 95 % interval over images {low:.2f} to {high:.2f}")
    return "\n".join(lines)
