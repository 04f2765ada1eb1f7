"""Predict every image of a split once, over all ranks, and count pixels."""

import functools
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from data.dataset import SegmentationDataset
from data.images import label_png
from distributed.group import Group
from evaluation import metrics
from evaluation.metrics import Scores, bootstrap, class_iou, confusion_matrix, image_miou, interval, mean_iou
from evaluation.predictor import ImagePredictor

NUM_WORST, NUM_BEST, NUM_DIFFERENT = 12, 6, 6  # images in a report, besides the worst one of each class


@dataclass
class Example:
    """An image with its label and prediction, to show in a report.

    image: (H, W, 3) uint8 RGB. label, predicted: (H, W) uint8 class numbers, 255 in label = ignored. other: prediction
    of a second model, like predicted.
    """

    name: str
    image: np.ndarray
    label: np.ndarray
    predicted: np.ndarray
    other: np.ndarray | None = None


@dataclass
class Result:
    """Pixel counts of a split, summed over all ranks. C is the number of classes, N the number of images.

    names: of all N images. confusion: metrics.confusion_matrix(), (C, C) int64. counts: metrics.class_counts() of each
    image, (N, 3, C) int64. These three are equal on every rank.
    examples: the first images of rank 0, empty on other ranks. pngs: predictions that this rank keeps, {image index:
    bytes of a PNG}.
    """

    names: list[str]
    confusion: Tensor
    counts: np.ndarray
    examples: list[Example] = field(default_factory=list)
    pngs: dict[int, bytes] = field(default_factory=dict)

    @functools.cached_property
    def scores(self) -> Scores:
        """Return all scores but the mIoU's interval, which takes a second with thousands of images."""
        share = (self.confusion.sum(1).double() / max(1, int(self.confusion.sum()))).tolist()
        return {"images": len(self.names), **metrics.scores(self.confusion), "share": share}

    @functools.cached_property
    def scores_with_interval(self) -> Scores:
        """Return all scores, with the mIoU's 95 % interval."""
        return {**self.scores, "miou_ci": interval(mean_iou(bootstrap(self.counts)))}


def score(
    predictor: ImagePredictor,
    batches: Iterable[dict[str, Tensor]],
    names: list[str],
    num_classes: int,
    group: Group,
    *,
    num_examples: int = 0,
    keep: Literal["none", "shown", "all"] = "none",
    save: Callable[[str, np.ndarray], None] | None = None,
) -> Result:
    """Predict this rank's batches and return a Result with the counts summed over ranks. Collective.

    batches: dicts with "image" (B, H, W, 3) uint8, "label" (B, H, W) uint8 and "index" (B,). names: of the images of
    all ranks, by index. num_examples: how many examples rank 0 keeps. keep: the predictions to keep in Result.pngs; of
    "shown", those that images_to_show() may choose. save: called with the name and label map (H, W) uint8 of each image
    that this rank predicts. Raises Stopped on all ranks if one of them got a signal.
    """
    confusion, counts = (
        torch.zeros(*size, num_classes, dtype=torch.int64, device=group.device)
        for size in ((num_classes,), (len(names), 3))
    )
    examples: list[Example] = []
    pngs: dict[int, bytes] = {}
    for batch in batches:
        if group.stop:
            break
        images, labels = (batch[name].to(group.device, non_blocking=True) for name in ("image", "label"))
        predictions = predictor.labels(images)
        indices = batch["index"].tolist()
        for index, image, label, predicted in zip(indices, images, labels, predictions, strict=True):
            own = confusion_matrix(predicted, label, num_classes)
            confusion += own
            counts[index] = metrics.class_counts(own)
            if group.is_main and len(examples) < num_examples:
                maps = (values.cpu().numpy() for values in (image, label, predicted))
                examples.append(Example(names[index], *maps))
            if save:
                save(names[index], predicted.cpu().numpy())
        if keep != "none":
            kept = sorted([*pngs, *indices])
            if keep == "shown":  # an image not chosen among these is not chosen among all
                kept = [kept[number] for number in images_to_show(counts[kept].cpu().numpy())]
            new = {index: predicted for index, predicted in zip(indices, predictions, strict=True) if index in kept}
            pngs |= {index: label_png(predicted.cpu().numpy()) for index, predicted in new.items()}
            pngs = {index: pngs[index] for index in kept}
    group.raise_if_stopped()
    return Result(names, group.sum(confusion).cpu(), group.sum(counts).cpu().numpy(), examples, pngs)


def compare(first: Result, second: Result) -> dict:
    """Compare the mIoU of two results on the same images by a paired bootstrap, first minus second; return a dict.

    "difference": of the mIoU. "interval": (low, high), 95 % interval of the difference. "higher": share of bootstrap
    samples in which the first mIoU is higher. "miou" and "iou": those of the second result. "iou_difference" and
    "iou_interval": by class, None if either result has no IoU.
    """
    samples = bootstrap(first.counts), bootstrap(second.counts)
    differences = mean_iou(samples[0]) - mean_iou(samples[1])
    class_differences = (class_iou(samples[0]) - class_iou(samples[1])).T
    pairs = list(zip(first.scores["iou"], second.scores["iou"], strict=True))
    return {
        "difference": first.scores["miou"] - second.scores["miou"],
        "interval": interval(differences),
        "higher": float((differences > 0).mean()),
        "miou": second.scores["miou"],
        "iou": second.scores["iou"],
        "iou_difference": [None if a is None or b is None else a - b for a, b in pairs],
        "iou_interval": [
            None if None in pair else interval(values) for pair, values in zip(pairs, class_differences, strict=True)
        ],
    }


def images_to_show(counts: np.ndarray, other: np.ndarray | None = None) -> list[int]:
    """Return the indices of images for a report, ordered by rising mIoU.

    The images are the worst and best, the worst image of each class, and those where two models differ most. counts:
    Result.counts of the first model. other: of the second one, or None.
    """
    miou = image_miou(counts)
    order = [index for index in np.argsort(miou, kind="stable").tolist() if np.isfinite(miou[index])]
    chosen = set(order[:NUM_WORST] + order[-NUM_BEST:])
    for class_ious in np.where(counts[:, 1] > 0, class_iou(counts), np.inf).T:
        if np.isfinite(class_ious).any():
            chosen.add(int(class_ious.argmin()))
    if other is not None:
        difference = np.abs(image_miou(other) - miou)
        chosen.update(sorted(order, key=lambda index: -difference[index])[:NUM_DIFFERENT])
    return [index for index in order if index in chosen]


def gather_predictions(results: list[Result], group: Group) -> dict[int, list[bytes]]:
    """Return {index: PNG of each model's prediction} of the images to show, by rising mIoU, on every rank. Collective.

    results: of one model from score(keep="shown"), or of two from score(keep="all").
    """
    chosen = images_to_show(*(result.counts for result in results))
    shares = group.gather([[result.pngs.get(index) for result in results] for index in chosen])
    return {index: next(filter(all, pngs)) for index, *pngs in zip(chosen, *shares, strict=True)}


def read_examples(predictions: dict[int, list[bytes]], dataset: SegmentationDataset) -> Iterator[Example]:
    """Yield the Examples for a report, one image in memory at a time.

    predictions: from gather_predictions(), on `dataset`.
    """
    for index, pngs in predictions.items():
        sample, maps = dataset[index], [np.array(Image.open(io.BytesIO(png))) for png in pngs]
        yield Example(dataset.names[index], sample["image"], sample["label"], *maps)
