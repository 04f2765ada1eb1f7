"""Predict every image of a split once, over all ranks, and count."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from distributed.group import Group
from evaluation import metrics
from evaluation.metrics import (
    bootstrap,
    boundary_counts,
    class_counts,
    class_iou,
    confusion_matrix,
    interval,
    mean_iou,
    mean_of_present,
    ratios,
)  # fmt: skip
from evaluation.predictor import Predictor


@dataclass
class Result:
    """What was counted, the same on every rank; C classes, N images in the order of the list.

    confusion: (C, C) int64, evaluation.metrics.confusion_matrix(). boundary: (3, C) int64, boundary_counts(). counts:
    (N, 3, C) int64, class_counts() of each image.
    """

    confusion: Tensor
    boundary: Tensor
    counts: np.ndarray

    @functools.cached_property
    def scores(self) -> dict:
        """Every score, 0..1, by its name in the files that evaluate.py writes: means, intervals, lists by class."""
        values = metrics.scores(self.confusion)
        both, labelled, predicted = self.boundary
        boundary_iou = ratios(both, labelled + predicted - both)
        share = (self.confusion.sum(1).double() / max(1, values["pixels"])).tolist()
        return {
            "images": len(self.counts), **values, "boundary_iou": boundary_iou, "share": share,
            "boundary_miou": mean_of_present(boundary_iou, values), "miou_ci": interval(mean_iou(bootstrap(self.counts))),
        }  # fmt: skip

    @property
    def image_miou(self) -> np.ndarray:
        """mIoU of each image over the classes that its label has, (N,); nan where nothing is labelled."""
        return np.where(self.counts[:, 1].sum(1) > 0, mean_iou(self.counts), np.nan)

    @property
    def image_iou(self) -> np.ndarray:
        """IoU of each class in each image, (N, C); nan where the class is neither in the label nor predicted."""
        return class_iou(self.counts)


def compare(first: Result, second: Result) -> dict:
    """How the second result differs from the first in mIoU: "difference", and "interval", its 95 % interval.

    "higher" is the share of bootstrap samples in which the second mIoU is higher. "iou" has the second's IoU of each
    class, "iou_difference" and "iou_interval" the difference to the first's; None where either has no IoU of a class.
    """
    samples = bootstrap(first.counts), bootstrap(second.counts)
    differences = mean_iou(samples[1]) - mean_iou(samples[0])
    pairs = list(zip(first.scores["iou"], second.scores["iou"], strict=True))
    of_class = (class_iou(samples[1]) - class_iou(samples[0])).T
    return {
        "difference": second.scores["miou"] - first.scores["miou"], "interval": interval(differences),
        "higher": float((differences > 0).mean()), "miou": second.scores["miou"], "iou": second.scores["iou"],
        "iou_difference": [None if None in pair else pair[1] - pair[0] for pair in pairs],
        "iou_interval": [None if None in pair else interval(values)
                         for pair, values in zip(pairs, of_class, strict=True)],
    }  # fmt: skip


def score(
    predictor: Predictor,
    batches: Iterable[dict[str, Tensor]],
    *,
    num_images: int,
    num_classes: int,
    group: Group,
    keep: Callable[[int, np.ndarray], None] | None = None,
) -> Result | None:
    """Predict this rank's batches of {"image", "label", "index"}, and count over all ranks.

    num_images: of all ranks. keep: called with the index and the predicted label map (H, W) uint8 of each image of this
    rank. None when a signal broke it off on any rank.
    """
    confusion = torch.zeros(num_classes, num_classes, dtype=torch.int64, device=group.device)
    boundary = torch.zeros(3, num_classes, dtype=torch.int64, device=group.device)
    counts = torch.zeros(num_images, 3, num_classes, dtype=torch.int64, device=group.device)
    for batch in batches:
        if group.stop:
            break
        images, labels = (batch[name].to(group.device, non_blocking=True) for name in ("image", "label"))
        predictions = predictor.labels(images)
        for index, label, predicted in zip(batch["index"].tolist(), labels, predictions, strict=True):
            of_image = confusion_matrix(predicted, label, num_classes)
            confusion += of_image
            counts[index] = class_counts(of_image)
            boundary += boundary_counts(predicted, label, num_classes)
            if keep:
                keep(index, predicted.cpu().numpy())
    if any(group.gather(bool(group.stop))):
        return None
    confusion, boundary, counts = (group.sum(values).cpu() for values in (confusion, boundary, counts))
    return Result(confusion, boundary, counts.numpy())
