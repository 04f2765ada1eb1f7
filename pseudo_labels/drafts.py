"""Drafts: what a model and the spread strokes say about an image, before the thresholds."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from data.dataset import SegmentationDataset
from evaluation.predictor import Predictor
from pseudo_labels import confidence, walker
from pseudo_labels.walker import NO_WALK, Grid, Walk
from support.labels import IGNORE


class Draft(NamedTuple):
    """Three maps of an image, (H, W) uint8 each.

    label: the most probable class, 255 = unknown. levels: its confidence, confidence.levels(). model: the most probable
    class by the model alone, 255 without a model.
    """

    label: np.ndarray
    levels: np.ndarray
    model: np.ndarray


class Prediction(NamedTuple):
    """What a model predicts for an image.

    label: the most probable class, (H, W) uint8. levels: its confidence, (H, W) uint8. classes: those that may occur,
    (K,) uint8. prior: their probabilities, on the grid of a walk, (K, h, w) float32; None if there is no grid.
    """

    label: np.ndarray
    levels: np.ndarray
    classes: np.ndarray
    prior: np.ndarray | None


@dataclass(frozen=True)
class Stroked:
    """An image with its strokes.

    index: its position in dataset.names. image: (H, W, 3) uint8 RGB. scribble: (H, W) uint8, 255 = no stroke.
    grid: for a walk with a model, else None. walk: of the strokes without a model, else NO_WALK.
    """

    index: int
    image: np.ndarray
    scribble: np.ndarray
    grid: Grid | None
    walk: Walk


class StrokedImages(Dataset):
    """Data set of Stroked images.

    dataset: images with their scribbles as "label". spread: whether strokes are spread over the image. with_model: a
    model's predictions come later, so only the grid is made.
    """

    def __init__(self, dataset: SegmentationDataset, *, spread: bool, with_model: bool):
        self.dataset, self.spread, self.with_model = dataset, spread, with_model

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Stroked:
        maps = self.dataset.read(index)
        image, scribble = maps["image"], maps["label"]
        grid, walk = None, NO_WALK
        if self.spread and self.with_model:
            grid = walker.grid(image, scribble)
        elif self.spread:
            walk = walker.walk(image, scribble)
        return Stroked(index, image, scribble, grid, walk)


def predict(
    batch: list[Stroked], allowed: list[list[int]], predictor: Predictor, num_classes: int, device: torch.device
) -> list[Prediction]:
    """Return what a model predicts for a batch of images of one size. allowed: of each image, as for restrict()."""
    height = batch[0].scribble.shape[0]
    grid = batch[0].grid.seeds.shape if batch[0].grid else None
    sums = torch.zeros(len(batch), num_classes, *(grid or (0, 0)), device=device)
    parts: list[list[Tensor]] = [[] for _ in batch]
    for rows, probs in predictor.probs(torch.from_numpy(np.stack([item.image for item in batch])).to(device)):
        for values, classes, total, part in zip(probs, allowed, sums, parts, strict=True):
            values = confidence.restrict(values, classes)
            label, best = confidence.best_class(values)
            part.append(torch.stack([label, confidence.levels(best)]))
            if grid:
                total += _cell_sums(values, rows, height, grid)
    results = []
    for classes, total, part in zip(allowed, sums, parts, strict=True):
        label, levels = torch.cat(part, dim=1).cpu().numpy()
        numbers = np.array(classes or range(num_classes), np.uint8)
        prior = (total / total.sum(0))[numbers.tolist()].cpu().numpy() if grid else None
        results.append(Prediction(label, levels, numbers, prior))
    return results


def _cell_sums(probs: Tensor, rows: slice, height: int, grid: tuple[int, ...]) -> Tensor:
    """Average probabilities over the columns of each cell and sum them over its rows; return (C, h, w).

    probs: (C, number of rows, W), those of `rows` of an image of this height. A row of pixels is in one row of cells.
    """
    means = F.adaptive_avg_pool2d(probs, (probs.shape[1], grid[1]))
    cells = torch.arange(height, device=probs.device)[rows] * grid[0] // height
    belongs = cells == torch.arange(grid[0], device=probs.device).unsqueeze(1)
    return belongs.to(probs.dtype) @ means


def make_draft(item: Stroked, prediction: Prediction | None) -> Draft:
    """Return the draft of an image. prediction: None without a model; the draft is then that of item.walk."""
    size = item.scribble.shape
    if prediction is None:
        walked, model = item.walk, np.full(size, IGNORE, np.uint8)
    elif item.grid is None or prediction.prior is None:
        return Draft(prediction.label, prediction.levels, prediction.label)
    else:
        walked, model = walker.walk_from(item.grid, prediction.classes, prediction.prior), prediction.label
    label, probs = walked.best(size)
    return Draft(label, confidence.levels(torch.from_numpy(probs)).numpy(), model)
