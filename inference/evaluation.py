"""Evaluate a split: predict every image once, over all ranks, and count pixels."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from data.classes import Classes
from data.images import label_png
from data.loader import Loader
from data.overlays import panel
from distributed.group import Group
from inference.predictor import ImagePredictor, Step, each_batch
from support.batch import EvalBatch
from training import scores as counting
from training.scores import Scores, class_counts, confusion_matrix, miou_interval

NUM_EXAMPLES = 4  # pictures of each validation on the boards


@dataclass
class Evaluation:
    """A split's pixel counts, summed over all ranks. C is the number of classes, N the number of images.

    names: the names of all N images. confusion: confusion_matrix(), (C, C) int64. counts: each image's
    class_counts(), (N, 3, C) int64. These three are equal on every rank. pngs: predictions that this rank
    keeps, {image index: bytes of a PNG}. examples: image (H, W, 3), label and prediction (H, W) uint8 of this rank's
    first images.
    """

    names: list[str]
    confusion: Tensor
    counts: np.ndarray
    pngs: dict[int, bytes] = field(default_factory=dict)
    examples: list[tuple[np.ndarray, ...]] = field(default_factory=list)

    @functools.cached_property
    def scores(self) -> Scores:
        """Return all scores but the mIoU's interval, which takes a second with thousands of images."""
        return {"images": len(self.names), **counting.scores(self.confusion)}

    @functools.cached_property
    def scores_with_interval(self) -> Scores:
        """Return all scores, with the mIoU's 95 % interval."""
        return {**self.scores, "miou_ci": miou_interval(self.counts)}

    def panels(self, classes: Classes, background: int | None) -> list[np.ndarray]:
        """Return a picture of each example: its image, label and prediction, (H, W, 3) uint8."""
        return [panel(image, label, predicted, classes, background) for image, label, predicted in self.examples]


def evaluate_split(
    predictor: ImagePredictor,
    loader: Loader,
    group: Group,
    title: str,
    keep: Callable[[np.ndarray], list[int]] | None = None,
) -> Evaluation:
    """Predict each image of a split once, over all ranks, and return their Evaluation. Collective.

    title: names the progress bar. keep: chooses the images whose predictions are kept, as report.choose_images() does:
    it takes the counts of some images and returns indices into them. An image that it leaves out of a set must also be
    left out of every larger set. With `keep`, this rank's first NUM_EXAMPLES images are kept as well. Raises Stopped on
    all ranks if one of them got a signal.
    """
    dataset = loader.dataset
    confusion, counts = (
        torch.zeros(*size, dataset.num_classes, dtype=torch.int64, device=group.device)
        for size in ((dataset.num_classes,), (len(dataset.names), 3))
    )
    pngs: dict[int, bytes] = {}
    examples: list[tuple[np.ndarray, ...]] = []

    def score(batch: EvalBatch, step: Step) -> None:
        nonlocal pngs
        images, labels = (values.to(group.device, non_blocking=True) for values in (batch.image, batch.label))
        predictions = predictor.labels(images, step)
        for index, image, label, predicted in zip(batch.indices, images, labels, predictions, strict=True):
            of_image = confusion_matrix(predicted, label, dataset.num_classes)
            confusion.add_(of_image)
            counts[index] = class_counts(of_image)
            if keep and len(examples) < NUM_EXAMPLES:
                examples.append((image.cpu().numpy(), label.cpu().numpy(), predicted.cpu().numpy()))
        if keep:
            kept = sorted([*pngs, *batch.indices])
            kept = [kept[number] for number in keep(counts[kept].cpu().numpy())]
            new = dict(zip(batch.indices, predictions, strict=True))
            pngs = {index: pngs.get(index) or label_png(new[index].cpu().numpy()) for index in kept}

    each_batch(predictor, loader, group, score, title)
    return Evaluation(dataset.names, group.sum(confusion).cpu(), group.sum(counts).cpu().numpy(), pngs, examples)
