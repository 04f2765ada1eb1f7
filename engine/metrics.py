"""Scores of a segmentation, from one confusion matrix."""

from typing import TypedDict

import torch
from torch import Tensor

IGNORE = 255


class Scores(TypedDict):
    """Scores in 0..1, and how many labelled pixels they are over."""

    pixels: int
    miou: float  # mean IoU over the classes that the labels have
    pixel_acc: float  # correct pixels over labelled ones
    mean_acc: float  # mean recall over the classes that the labels have
    iou: list[float | None]  # per class; None for one that is neither in the labels nor predicted


def confusion_matrix(predicted: Tensor, label: Tensor, num_classes: int) -> Tensor:
    """Pixel counts (num_classes, num_classes) int64: row = label, column = prediction; label 255 is left out.

    predicted and label: integer maps of one shape, values 0..num_classes-1, and 255 in label.
    """
    labelled = label != IGNORE
    pairs = label[labelled].long() * num_classes + predicted[labelled].long()
    return torch.bincount(pairs, minlength=num_classes**2).view(num_classes, num_classes)


def scores(confusion: Tensor) -> Scores:
    """Scores from a confusion matrix summed over all ranks; all 0 where nothing is labelled."""
    confusion = confusion.double().cpu()
    correct, labelled, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    union = labelled + predicted - correct
    present = labelled > 0
    iou = correct / union.clamp(min=1)
    num_present = max(1, int(present.sum()))
    return {
        "pixels": int(labelled.sum()),
        "miou": float(iou[present].sum()) / num_present,
        "pixel_acc": float(correct.sum() / labelled.sum().clamp(min=1)),
        "mean_acc": float((correct[present] / labelled[present]).sum()) / num_present,
        "iou": [float(value) if pixels else None for value, pixels in zip(iou, union, strict=True)],
    }


def table(scores: Scores, class_names: list[str]) -> str:
    """Per-class IoU and the summary scores, in per cent."""
    width = max(len(name) for name in [*class_names, "pixel accuracy"])
    rule = "  " + "-" * (width + 7)
    summary = {"mIoU": scores["miou"], "pixel accuracy": scores["pixel_acc"], "mean accuracy": scores["mean_acc"]}
    rows = [f"  {'class':<{width}}    IoU", rule]
    for name, value in zip(class_names, scores["iou"], strict=True):
        rows.append(f"  {name:<{width}} " + ("absent" if value is None else f"{100 * value:6.2f}"))
    return "\n".join([*rows, rule, *(f"  {name:<{width}} {100 * value:6.2f}" for name, value in summary.items())])
