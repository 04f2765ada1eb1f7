"""The images to label, with their strokes, loaded by the processes of a DataLoader."""

from dataclasses import dataclass

import numpy as np
from torch.utils.data import Dataset

from data.dataset import SegmentationDataset
from image_stats import Display
from pseudo_labels import walker
from pseudo_labels.walker import NO_WALK, Grid, Walk


@dataclass(frozen=True)
class Stroked:
    """An image with its strokes.

    index: its position in dataset.names. image: (H, W, C), as the model takes. scribble: (H, W) uint8, 255 = no stroke.
    grid: for a walk with a model, else None. walk: of the strokes without a model, else NO_WALK.
    """

    index: int
    image: np.ndarray
    scribble: np.ndarray
    grid: Grid | None
    walk: Walk


class StrokedImages(Dataset):
    """Data set of Stroked images.

    dataset: images with their scribbles as "label". display: makes the RGB picture that strokes are spread on; None:
    they are not spread. with_model: a model's predictions come later, so only the grid is made.
    """

    def __init__(self, dataset: SegmentationDataset, display: Display | None, *, with_model: bool):
        self.dataset, self.display, self.with_model = dataset, display, with_model

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Stroked:
        maps = self.dataset.read(index)
        image, scribble = maps["image"], maps["label"]
        grid, walk = None, NO_WALK
        if self.display and self.with_model:
            grid = walker.grid(self.display(image), scribble)
        elif self.display:
            walk = walker.walk(self.display(image), scribble)
        return Stroked(index, image, scribble, grid, walk)
