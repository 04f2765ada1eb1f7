"""Drafts: what a model and the spread strokes say about an image, before the thresholds."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evaluation.predictor import Predictor
from pseudo_labels import confidence
from pseudo_labels.images import Stroked
from pseudo_labels.walker import Walk


class Draft(NamedTuple):
    """Four maps of an image, (H, W) uint8 each, 255 = unknown in all but `levels`.

    joined: the most probable class. levels: its confidence, confidence.levels(). model, strokes: the most probable
    class by the model alone, and by the spread strokes alone.
    """

    joined: np.ndarray
    levels: np.ndarray
    model: np.ndarray
    strokes: np.ndarray


def make_drafts(
    batch: list[Stroked],
    predictor: Predictor | None,
    num_classes: int,
    device: torch.device,
    *,
    only_stroked: bool,
    background: int | None,
) -> list[Draft]:
    """Return the drafts of a batch of images of one size.

    The probability of a class is the mean of the model's and the random walk's, or the only one if one is missing.
    predictor: None without a model. only_stroked: the model chooses among stroked_classes(). background: for these.
    """
    size = batch[0].scribble.shape
    walks = [_at_size(item.walk, size, device) for item in batch]
    allowed = [confidence.stroked_classes(item.scribble, background) if only_stroked else [] for item in batch]
    parts: list[list[Tensor]] = [[] for _ in batch]
    for rows, probs in _bands(batch, predictor, num_classes, device):
        for item, walk, classes, model, part in zip(batch, walks, allowed, probs, parts, strict=True):
            strokes = torch.zeros_like(model)
            strokes[item.walk.classes.tolist()] = walk[:, rows]
            if predictor:
                model = confidence.restrict(model, classes)
            num_known = (predictor is not None) + (len(item.walk.classes) > 0)
            joined, values = confidence.best_class((model + strokes) / max(1, num_known))
            ways = (confidence.best_class(way)[0] for way in (model, strokes))
            part.append(torch.stack([joined, confidence.levels(values), *ways]))
    return [Draft(*torch.cat(part, dim=1).cpu().numpy()) for part in parts]


def _at_size(walk: Walk, size: tuple[int, ...], device: torch.device) -> Tensor:
    """Return a walk's probabilities at an image's (height, width), (K, H, W) float32."""
    if not len(walk.classes):
        return torch.zeros(0, *size, device=device)
    return F.interpolate(torch.from_numpy(walk.probs)[None].to(device), size=size, mode="bilinear")[0]


def _bands(batch: list[Stroked], predictor: Predictor | None, num_classes: int, device: torch.device):
    """Yield (slice of rows, the model's probabilities (B, C, rows, W) float32); without a model, zeros."""
    if predictor:
        return predictor.probs(torch.from_numpy(np.stack([item.image for item in batch])).to(device))
    return [(slice(None), torch.zeros(len(batch), num_classes, *batch[0].scribble.shape, device=device))]
