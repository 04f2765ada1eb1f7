"""Scores of a segmentation, all computed from pixel counts."""

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from support.best_score import class_label
from support.labels import IGNORE
from support.terminal import display_width, padded

# Scores of a segmentation by name, as scores() returns them; Evaluation adds "images" and "miou_ci".
Scores: TypeAlias = dict[str, Any]

NEARLY = 1.1  # an IoU up to so many times that of a constant answer is not learnt
MAX_NAMES = 6  # of classes in a message


def confusion_matrix(predicted: Tensor, label: Tensor, num_classes: int) -> Tensor:
    """Return pixel counts, (num_classes, num_classes) int64, row = label, column = prediction. Label 255 is ignored.

    predicted and label: integer maps of one shape with values 0..num_classes-1; label may also hold 255.
    """
    # Ignored pixels get an extra bin: selecting the others would make the CPU wait for the GPU.
    pairs = torch.where(label == IGNORE, num_classes**2, label.long() * num_classes + predicted)
    return torch.bincount(pairs.flatten(), minlength=num_classes**2 + 1)[:-1].view(num_classes, num_classes)


def scores(confusion: Tensor) -> Scores:
    """Return the scores of a confusion matrix (C, C), row = label. The means are 0 if no pixel is labelled.

    "pixels" is the number of labelled pixels; all other scores are 0 to 1. "miou", "mean_dice" and "mean_acc" are means
    over the classes that occur in the labels; "fwiou" weights the IoU by each class's share of the labelled pixels;
    "pixel_acc" is the share of labelled pixels that are correct. "share" is each class's share of the labelled pixels.
    "iou", "dice" (F1), "acc" (recall) and "precision" have a value for each class, None if its denominator is 0.
    """
    counts = class_counts(confusion).cpu().numpy()
    correct, labelled, predicted = counts
    iou, acc = class_iou(counts), ratio(correct, labelled)
    dice = ratio(2 * correct, labelled + predicted)
    num_present, num_pixels = max(1, int((labelled > 0).sum())), max(1, int(labelled.sum()))
    return {
        "pixels": int(labelled.sum()),
        "miou": float(np.nan_to_num(mean_iou(counts))),
        "mean_dice": float(np.nansum(np.where(labelled > 0, dice, 0))) / num_present,
        "fwiou": float(np.nansum(iou * labelled)) / num_pixels,
        "pixel_acc": float(correct.sum()) / num_pixels,
        "mean_acc": float(np.nansum(acc)) / num_present,
        "share": (labelled / num_pixels).tolist(),
        "iou": or_none(iou),
        "dice": or_none(dice),
        "acc": or_none(acc),
        "precision": or_none(ratio(correct, predicted)),
    }


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return part / whole, element by element, as float64; nan where whole is 0."""
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)


def or_none(values: np.ndarray) -> list[float | None]:
    """Return the values as a list, None for nan, which JSON lacks."""
    return [None if math.isnan(value) else value for value in values.tolist()]


def missed_classes(scores: Scores, class_names: list[str]) -> str:
    """Return a line of text on classes that a model has not learnt; "" if there are none.

    These are the classes that are in the labels and were never predicted, or else the rarer of two classes, if always
    predicting it is about as good. A class that is always predicted has an IoU equal to its share of the pixels, and
    all others have 0.
    """
    missed = [number for number, precision in enumerate(scores["precision"]) if precision is None]
    missed = [number for number in missed if scores["share"][number]]
    if not missed:
        number = int(np.argmin(scores["share"]))
        share, iou = scores["share"][number], scores["iou"][number]
        if len(class_names) > 2 or not share or iou > NEARLY * share:
            return ""
        name = class_label(number, class_names)
        acc, precision = scores["acc"][number], scores["precision"][number]
        places = (
            ("; it is predicted on much of the image", acc * share > 0.5 * precision),  # more than half of it
            ("; it is predicted mostly in wrong places", precision < 0.5),
            ("; it is predicted too rarely", acc < 0.5),
        )
        place = next((text for text, is_so in places if is_so), "")
        always = f"if it were predicted everywhere, {100 * share:.2f}"
        return f"{name} has an IoU of {100 * iou:.2f}; {always}{place}"
    names = ", ".join(class_label(number, class_names) for number in missed[:MAX_NAMES])
    more = f" and {len(missed) - MAX_NAMES} more" if len(missed) > MAX_NAMES else ""
    most = max(scores["share"])
    constant = f"always predicting {class_label(scores['share'].index(most), class_names)}"
    miou = 100 * most / sum(share > 0 for share in scores["share"])
    return f"never predicted: {names}{more}; {constant} has mIoU {miou:.2f}"


def class_counts(confusion: Tensor) -> Tensor:
    """Return correct, labelled and predicted pixels by class, (3, C), from a confusion matrix (C, C), row = label."""
    return torch.stack([confusion.diagonal(), confusion.sum(1), confusion.sum(0)])


def mean_iou(counts: np.ndarray) -> np.ndarray:
    """Return the mIoU over the labelled classes, (...) float64, from counts (..., 3, C); nan if nothing is labelled.

    counts: correct, labelled and predicted pixels of each class, as class_counts() returns.
    """
    present = counts[..., 1, :] > 0
    return ratio((np.nan_to_num(class_iou(counts)) * present).sum(-1), present.sum(-1))


def class_iou(counts: np.ndarray) -> np.ndarray:
    """Return the IoU of each class, (..., C) float64; nan for a class that is neither labelled nor predicted.

    counts: correct, labelled and predicted pixels of each class, (..., 3, C), as class_counts() returns.
    """
    correct, labelled, predicted = np.moveaxis(counts.astype(np.float64), -2, 0)
    return ratio(correct, labelled + predicted - correct)


def image_scores(counts: np.ndarray) -> list[dict]:
    """Return {"miou": float, "iou": [one value per class]} for each image; None for a value that is undefined.

    counts: correct, labelled and predicted pixels of each class in each image, (N, 3, C), as class_counts() returns.
    """
    pairs = zip(or_none(mean_iou(counts)), map(or_none, class_iou(counts)), strict=True)
    return [{"miou": miou, "iou": ious} for miou, ious in pairs]


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
    means = {"mIoU": "miou", "mean Dice": "mean_dice", "frequency-weighted IoU": "fwiou"}
    means |= {"pixel accuracy": "pixel_acc", "mean accuracy": "mean_acc"}
    titles = ["class", *class_names, *means]
    aligned = dict(zip(titles, padded(titles), strict=True))

    def line(name: str, *values: float | str | None) -> str:
        texts = ["-" if v is None else v if isinstance(v, str) else f"{100 * v:.2f}" for v in values]
        return f"  {aligned[name]}" + "".join(f"{text:>{w}}" for text, w in zip(texts, (8, 8, 8, 11), strict=False))

    rule = "  " + "-" * (display_width(aligned["class"]) + 35)
    lines = [line("class", "IoU", "Dice", "acc", "precision"), rule]
    unknown = [None] * len(class_names)  # of dice in metrics.jsonl of an earlier version
    columns = (scores["iou"], scores.get("dice", unknown), scores["acc"], scores["precision"])
    for name, iou, *others in zip(class_names, *columns, strict=True):
        lines.append(line(name, "absent") if iou is None else line(name, iou, *others))
    lines += [rule, *(line(title, scores.get(name)) for title, name in means.items())]
    if absent := [name for name, acc in zip(class_names, scores["acc"], strict=True) if acc is None]:
        lines.append(f"  not in the labels, so not in the means: {', '.join(absent)}")
    if missed := missed_classes(scores, class_names):
        lines.append(f"  {missed}")
    if "miou_ci" in scores:
        miou, low, high = (100 * value for value in (scores["miou"], *scores["miou_ci"]))
        lines.append(f"  mIoU {miou:.2f}, 95 % interval over images {low:.2f} to {high:.2f}")
    return "\n".join(lines)
