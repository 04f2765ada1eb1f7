"""Drafts: what a model and the spread strokes say about an image, before the thresholds."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evaluation.predictor import Predictor
from pseudo_labels import confidence
from pseudo_labels.images import Stroked
from pseudo_labels.walker import walk_from
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


def predict(
    batch: list[Stroked],
    predictor: Predictor,
    num_classes: int,
    device: torch.device,
    *,
    only_stroked: bool,
    background: int | None,
) -> list[Prediction]:
    """Return what a model predicts for a batch of images of one size.

    only_stroked: the model chooses among confidence.stroked_classes(), which takes `background`.
    """
    height = batch[0].scribble.shape[0]
    grid = batch[0].grid.seeds.shape if batch[0].grid else None
    allowed = [confidence.stroked_classes(item.scribble, background) if only_stroked else [] for item in batch]
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
        walked, model = walk_from(item.grid, prediction.classes, prediction.prior), prediction.label
    label, probs = walked.best(size)
    return Draft(label, confidence.levels(torch.from_numpy(probs)).numpy(), model)
