"""Drafts: what a model and the spread strokes say about an image, before the thresholds."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from data.dataset import SegmentationDataset
from evaluation.predictor import Predictor
from pseudo_labels import confidence, walker
from pseudo_labels.walker import Grid, Walk


class Draft(NamedTuple):
    """The most probable class of each pixel, (H, W) uint8, 255 = unknown, and its confidence.levels(), (H, W) uint8."""

    label: np.ndarray
    levels: np.ndarray

    @classmethod
    def of_walk(cls, walk: Walk, scribble: np.ndarray) -> "Draft":
        """Return the draft of a walk over an image with this scribble, (H, W)."""
        label, probs = walk.best((scribble.shape[0], scribble.shape[1]))
        return cls(label, confidence.levels(torch.from_numpy(probs)).numpy())


class Prediction(NamedTuple):
    """What a model predicts for an image.

    classes: those that may occur, (K,) uint8. prior: their probabilities on the grid of a walk, (K, h, w) float32.
    """

    classes: np.ndarray
    prior: np.ndarray


class Stroked(NamedTuple):
    """An image with its strokes.

    position: in dataset.names. image: (H, W, 3) uint8 RGB. scribble: (H, W) uint8, 255 = no stroke.
    grid: for a walk with a model, or None. draft: of the strokes alone, or None with a model.
    """

    position: int
    image: np.ndarray
    scribble: np.ndarray
    grid: Grid | None
    draft: Draft | None


class StrokedImages(Dataset):
    """Data set of Stroked images.

    dataset: images with their scribbles as "label". with_model: a model's predictions come later, so only the grid is
    made.
    """

    def __init__(self, dataset: SegmentationDataset, *, with_model: bool):
        self.dataset, self.with_model = dataset, with_model

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Stroked:
        maps = self.dataset.read(index)
        image, scribble = maps["image"], maps["label"]
        if self.with_model:
            return Stroked(index, image, scribble, walker.grid(image, scribble), None)
        return Stroked(index, image, scribble, None, Draft.of_walk(walker.walk(image, scribble), scribble))


def predict(
    batch: list[Stroked], predictor: Predictor, num_classes: int, background: int | None, device: torch.device
) -> list[Prediction]:
    """Return what a model predicts for a batch of images of one size, among each image's stroked_classes()."""
    height = batch[0].scribble.shape[0]
    allowed = [confidence.stroked_classes(item.scribble, background) for item in batch]
    assert batch[0].grid is not None
    size = batch[0].grid.seeds.shape
    sums = torch.zeros(len(batch), num_classes, *size, device=device)
    for rows, probs in predictor.probs(torch.from_numpy(np.stack([item.image for item in batch])).to(device)):
        for values, classes, total in zip(probs, allowed, sums, strict=True):
            total += _cell_sums(confidence.restrict(values, classes), rows, height, size)
    results = []
    for classes, total in zip(allowed, sums, strict=True):
        numbers = np.array(classes or range(num_classes), np.uint8)
        results.append(Prediction(numbers, (total / total.sum(0))[numbers.tolist()].cpu().numpy()))
    return results


def _cell_sums(probs: Tensor, rows: slice, height: int, grid: tuple[int, ...]) -> Tensor:
    """Average probabilities over the columns of each cell and sum them over its rows; return (C, h, w).

    probs: (C, number of rows, W), those of `rows` of an image of this height. A row of pixels is in one row of cells.
    """
    means = F.adaptive_avg_pool2d(probs, (probs.shape[1], grid[1]))
    cells = torch.arange(height, device=probs.device)[rows] * grid[0] // height
    belongs = cells == torch.arange(grid[0], device=probs.device).unsqueeze(1)
    return belongs.to(probs.dtype) @ means


def make_draft(item: Stroked, prediction: Prediction) -> Draft:
    """Return the draft of an image from a walk from its strokes and a model's prediction."""
    assert item.grid is not None
    return Draft.of_walk(walker.walk_from(item.grid, *prediction), item.scribble)
