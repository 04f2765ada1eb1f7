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
from pseudo_labels.correction import Correction
from pseudo_labels.walker import Grid, Walk
from support.labels import IGNORE

LEAST_SHARE = 0.001  # of an image: less of a class without a stroke is left out, since each class takes time to walk


class Draft(NamedTuple):
    """The most probable class of each pixel, (H, W) uint8, and its confidence.levels(), (H, W) uint8."""

    label: np.ndarray
    levels: np.ndarray


class Stroked(NamedTuple):
    """An image with its strokes.

    position: in dataset.names. image: (H, W, 3) uint8 RGB. scribble: (H, W) uint8, 255 = no stroke.
    """

    position: int
    image: np.ndarray
    scribble: np.ndarray
    grid: Grid

    def stroked(self, num_classes: int, background: int | None = None) -> np.ndarray:
        """Return which classes have a stroke, (C,) bool. background: a class that counts as stroked if any class is."""
        has_stroke = np.bincount(self.scribble.ravel(), minlength=IGNORE + 1)[:num_classes] > 0
        if background is not None and has_stroke.any():
            has_stroke[background] = True
        return has_stroke


class StrokedImages(Dataset):
    """Data set of Stroked images. dataset: images with their scribbles as "label"."""

    def __init__(self, dataset: SegmentationDataset):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Stroked:
        maps = self.dataset.read(index)
        return Stroked(index, maps["image"], maps["label"], walker.grid(maps["image"], maps["label"]))


def predict(batch: list[Stroked], predictor: Predictor, num_classes: int, device: torch.device) -> Tensor:
    """Return a model's probabilities, averaged over each cell of the grid, (B, C, h, w) float32, on the device.

    batch: images of one size.
    """
    size, height = batch[0].grid.seeds.shape, batch[0].scribble.shape[0]
    sums = torch.zeros(len(batch), num_classes, *size, device=device)
    for rows, probs in predictor.probs(torch.from_numpy(np.stack([item.image for item in batch])).to(device)):
        for values, total in zip(probs, sums, strict=True):
            total += _cell_sums(values, rows, height, size)
    return sums / sums.sum(1, keepdim=True)


def _cell_sums(probs: Tensor, rows: slice, height: int, grid: tuple[int, ...]) -> Tensor:
    """Average probabilities over the columns of each cell and sum them over its rows; return (C, h, w).

    probs: (C, number of rows, W), those of `rows` of an image of this height. A row of pixels is in one row of cells.
    """
    means = F.adaptive_avg_pool2d(probs, (probs.shape[1], grid[1]))
    cells = torch.arange(height, device=probs.device)[rows] * grid[0] // height
    belongs = cells == torch.arange(grid[0], device=probs.device).unsqueeze(1)
    return belongs.to(probs.dtype) @ means


def corrected_walk(item: Stroked, probs: Tensor, correction: Correction, background: int | None) -> Walk:
    """Return a walk from the strokes of an image and a model's corrected prediction.

    probs: result of predict() for the image, (C, h, w).
    """
    stroked = item.stroked(len(probs), background)
    weights = torch.from_numpy(correction.weights(stroked)).float()
    # The lower limit keeps a class with a stroke ahead of the others where softmax gives exactly 0.
    weighted = probs.cpu().float().clamp(min=1e-12) * weights[:, None, None]
    weighted /= weighted.sum(0)
    classes = np.flatnonzero(stroked | (weighted.mean((1, 2)) >= LEAST_SHARE).numpy())
    prior = weighted[classes.tolist()]
    return walker.walk(item.grid, classes.astype(np.uint8), (prior / prior.sum(0)).numpy())


def make_draft(item: Stroked, probs: Tensor, correction: Correction, background: int | None) -> Draft:
    """Return the draft of an image. The arguments are those of corrected_walk()."""
    size = (item.scribble.shape[0], item.scribble.shape[1])
    label, best = corrected_walk(item, probs, correction, background).best(size)
    return Draft(label, confidence.levels(torch.from_numpy(best)).numpy())
