"""Label an image from a model's probabilities and the strokes."""

from typing import NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.dataset import SegmentationDataset
from data.histogram import value_histogram
from inference import random_walk
from inference.predictor import Predictor, Step, no_step
from inference.random_walk import Grid
from support.labels import IGNORE

MIN_PROBABILITY = 0.6  # a pixel of no higher probability stays unlabelled (benchmarks/RESULTS.md)


class Stroked(NamedTuple):
    """An image with its strokes.

    position: its index in the data set. image: (H, W, 3) uint8 RGB. scribble: (H, W) uint8, 255 = no stroke.
    """

    position: int
    image: np.ndarray
    scribble: np.ndarray
    grid: Grid


def read_stroked(dataset: SegmentationDataset, indices: list[int]) -> list[Stroked]:
    """Read images of a data set whose "label", if there is one, is the scribble."""
    batch = []
    for index in indices:
        maps = dataset.read(index)
        image = maps["image"]
        scribble = maps.get("label", np.full(image.shape[:2], IGNORE, np.uint8))
        batch.append(Stroked(index, image, scribble, random_walk.grid(image, scribble)))
    return batch


def predict(
    batch: list[Stroked], predictor: Predictor, num_classes: int, device: torch.device, step: Step = no_step
) -> Tensor:
    """Return a model's probabilities, averaged over each cell of the grid, (B, C, h, w) float32, on the device.

    batch: images of one size. step: see inference.predictor.
    """
    size, height = batch[0].grid.seeds.shape, batch[0].scribble.shape[0]
    sums = torch.zeros(len(batch), num_classes, *size, device=device)
    images = torch.from_numpy(np.stack([item.image for item in batch])).to(device)
    for rows, probs in predictor.probs(images, step):
        for values, total in zip(probs, sums, strict=True):
            total += _cell_sums(values, rows, height, size)
    return sums / sums.sum(1, keepdim=True)


def _cell_sums(probs: Tensor, rows: slice, height: int, grid: tuple[int, ...]) -> Tensor:
    """Average probabilities over the columns of each cell and sum them over its rows; return (C, h, w).

    probs: (C, number of rows, W), those of `rows` of an image of this height. A cell has the rows and columns that it
    overlaps, as adaptive_avg_pool2d() has it: the result for a mirrored or transposed image is the same one, mirrored.
    """
    means = F.adaptive_avg_pool2d(probs, (probs.shape[1], grid[1]))
    pixels = torch.arange(height, device=probs.device)[rows]
    cells = torch.arange(grid[0], device=probs.device).unsqueeze(1)
    overlaps = (cells * height < (pixels + 1) * grid[0]) & (pixels * grid[0] < (cells + 1) * height)
    return overlaps.to(probs.dtype) @ means


def make_label(item: Stroked, probs: Tensor, background: int | None) -> np.ndarray:
    """Return the pseudo-label of an image, (H, W) uint8, by a walk from its strokes and a model's prediction.

    The walk ends at classes with a stroke and at the background, or, without any stroke, at all classes. An object may
    lack a stroke, so the walk's probabilities are multiplied by 1 - p, where p is the model's probability of the most
    probable class that the walk leaves out. (The sum over these classes would be high where a model is unsure among
    many.) A pixel without a product above MIN_PROBABILITY is 255. A pixel on a stroke gets its class.
    probs: result of predict() for the image, (C, h, w), in CPU memory.
    """
    # The lower limit prevents 0 / 0 where all classes with a stroke have probability 0.
    probs = probs.float().clamp(min=1e-12)
    occurs = torch.from_numpy(value_histogram(item.scribble)[: len(probs)] > 0)
    if not occurs.any():  # nothing is known: all classes may occur
        occurs[:] = True
    elif background is not None:
        occurs[background] = True
    classes, prior = occurs.nonzero().flatten().to(torch.uint8).numpy(), probs[occurs]
    walked = random_walk.walk(item.grid, classes, (prior / prior.sum(0)).numpy())
    left_out = (probs * ~occurs[:, None, None]).amax(0).numpy()
    label = best_class(classes, walked * (1 - left_out), item.scribble.shape)
    return np.where(item.scribble != IGNORE, item.scribble, label)


def best_class(classes: np.ndarray, probs: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Return the most probable class of each pixel, (H, W) uint8, 255 where none is above MIN_PROBABILITY.

    classes: (K,) uint8. probs: probability of each class on a grid over the image, (K, h, w) float32. size: (H, W).
    """
    label, best = np.full(size, IGNORE, np.uint8), np.full(size, MIN_PROBABILITY, np.float32)
    for number, values in zip(classes, probs, strict=True):
        full = cv2.resize(values, size[::-1], interpolation=cv2.INTER_LINEAR)
        label[full > best] = number
        np.maximum(best, full, out=best)
    return label
