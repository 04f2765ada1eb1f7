"""Predict every image of a split once, over all ranks, and count pixels."""

import functools
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from data.dataset import SegmentationDataset
from data.images import label_png
from distributed.group import Group
from evaluation import metrics
from evaluation.metrics import Scores, bootstrap, class_iou, confusion_matrix, interval, mean_iou
from evaluation.predictor import ImagePredictor
from image_stats import Display

SHOW_RGB = Display()
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

    names: of all N images. confusion: metrics.confusion_matrix(), (C, C) int64. boundary: metrics.boundary_counts(),
    (3, C) int64. counts: metrics.class_counts() of each image, (N, 3, C) int64. boundary and counts are set only if
    score() got per_image. These four are equal on every rank.
    examples: the first images of rank 0, empty on other ranks. pngs: this rank's predictions, {image index: bytes of a
    PNG}.
    """

    names: list[str]
    confusion: Tensor
    boundary: Tensor | None = None
    counts: np.ndarray = field(default_factory=lambda: np.zeros((0, 3, 0), np.int64))
    examples: list[Example] = field(default_factory=list)
    pngs: dict[int, bytes] = field(default_factory=dict)

    @functools.cached_property
    def scores(self) -> Scores:
        """Return all scores, a Scores dict. Boundary IoU, shares and the mIoU's interval need score(per_image=True)."""
        values = metrics.scores(self.confusion)
        if self.boundary is None:
            return values
        both, labelled, predicted = self.boundary
        boundary_iou = metrics.ratios(both, labelled + predicted - both)
        return {
            "images": len(self.names),
            **values,
            "boundary_iou": boundary_iou,
            "share": self.share,
            "boundary_miou": metrics.mean_of_present(boundary_iou, values),
            "miou_ci": interval(mean_iou(bootstrap(self.counts))),
        }

    @property
    def share(self) -> list[float]:
        """Return each class's share of the labelled pixels, 0..1, as a list."""
        return (self.confusion.sum(1).double() / max(1, int(self.confusion.sum()))).tolist()

    @property
    def image_miou(self) -> np.ndarray:
        """Return the mIoU of each image over the classes in its label, (N,) float64; nan if nothing is labelled."""
        return np.where(self.counts[:, 1].sum(1) > 0, mean_iou(self.counts), np.nan)

    @property
    def image_iou(self) -> np.ndarray:
        """Return the IoU of each class in each image, (N, C) float64; nan if neither labelled nor predicted."""
        return class_iou(self.counts)


def score(
    predictor: ImagePredictor,
    batches: Iterable[dict[str, Tensor]],
    names: list[str],
    num_classes: int,
    group: Group,
    *,
    per_image: bool = False,
    num_examples: int = 0,
    keep_predictions: bool = False,
    save: Callable[[str, np.ndarray], None] | None = None,
    show: Callable[[np.ndarray], np.ndarray] = SHOW_RGB,
) -> Result:
    """Predict this rank's batches and return a Result with the counts summed over ranks. Collective.

    batches: dicts with "image" (B, H, W, C), "label" (B, H, W) uint8 and "index" (B,). names: of the images of
    all ranks, by index. per_image: also count each image by itself, and its boundaries. num_examples: how many examples
    rank 0 keeps. keep_predictions: keep all predictions in Result.pngs. save: called with the name and label map (H, W)
    uint8 of each image that this rank predicts. show: makes the picture of an example's image. Raises Stopped on all
    ranks if one of them got a signal.
    """
    result = Result(names, torch.zeros(num_classes, num_classes, dtype=torch.int64, device=group.device))
    boundary = torch.zeros(3, num_classes, dtype=torch.int64, device=group.device)
    counts = torch.zeros(len(names) if per_image else 0, 3, num_classes, dtype=torch.int64, device=group.device)
    for batch in batches:
        if group.stop:
            break
        images, labels = (batch[name].to(group.device, non_blocking=True) for name in ("image", "label"))
        predictions = predictor.labels(images)
        for index, image, label, predicted in zip(batch["index"].tolist(), images, labels, predictions, strict=True):
            confusion = confusion_matrix(predicted, label, num_classes)
            result.confusion += confusion
            if per_image:
                counts[index] = metrics.class_counts(confusion)
                boundary += metrics.boundary_counts(predicted, label, num_classes)
            if group.is_main and len(result.examples) < num_examples:
                picture, *maps = (values.cpu().numpy() for values in (image, label, predicted))
                result.examples.append(Example(names[index], show(picture), *maps))
            if keep_predictions:
                result.pngs[index] = label_png(predicted.cpu().numpy())
            if save:
                save(names[index], predicted.cpu().numpy())
    group.raise_if_stopped()
    result.confusion = group.sum(result.confusion).cpu()
    if per_image:
        result.boundary, result.counts = group.sum(boundary).cpu(), group.sum(counts).cpu().numpy()
    return result


def compare(first: Result, second: Result) -> dict:
    """Compare the mIoU of two results on the same images by a paired bootstrap, first minus second; return a dict.

    "difference": of the mIoU. "interval": (low, high), 95 % interval of the difference. "higher": share of bootstrap
    samples in which the first mIoU is higher. "miou" and "iou": those of the second result. "iou_difference" and
    "iou_interval": by class, None if either result has no IoU. Both results need score(per_image=True).
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


def images_to_show(results: list[Result]) -> list[int]:
    """Return the indices of images for a report, ordered by rising mIoU in the first result.

    The images are the first result's worst and best, the worst image of each class, and those where two results differ
    most. results: one or two.
    """
    result = results[0]
    miou = result.image_miou
    order = [index for index in np.argsort(miou, kind="stable").tolist() if np.isfinite(miou[index])]
    chosen = set(order[:NUM_WORST] + order[-NUM_BEST:])
    for class_ious in np.where(result.counts[:, 1] > 0, result.image_iou, np.inf).T:
        if np.isfinite(class_ious.min()):
            chosen.add(int(class_ious.argmin()))
    if len(results) == 2:
        difference = np.abs(results[1].image_miou - miou)
        chosen.update(sorted(order, key=lambda index: -difference[index])[:NUM_DIFFERENT])
    return [index for index in order if index in chosen]


def gather_examples(
    results: list[Result],
    dataset: SegmentationDataset,
    group: Group,
    show: Callable[[np.ndarray], np.ndarray] = SHOW_RGB,
) -> list[Example]:
    """Return the Examples for a report on rank 0, and [] on the other ranks. Collective.

    results: of one or two models, from score(per_image=True, keep_predictions=True) on `dataset`. show: as in score().
    """
    chosen, label_maps = images_to_show(results), []
    for result in results:
        shares = group.gather({index: result.pngs[index] for index in chosen if index in result.pngs})
        pngs = {index: png for share in shares for index, png in share.items()}
        label_maps.append({index: np.array(Image.open(io.BytesIO(png))) for index, png in pngs.items()})
    return [
        Example(
            dataset.names[index],
            show(dataset[index]["image"]),
            dataset[index]["label"],
            *(maps[index] for maps in label_maps),
        )
        for index in (chosen if group.is_main else [])
    ]
