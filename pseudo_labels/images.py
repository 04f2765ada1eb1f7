"""The images to label, with their strokes, loaded by the processes of a DataLoader."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from data.dataset import SegmentationDataset
from distributed import checks
from distributed.group import Group
from pseudo_labels import walker
from pseudo_labels.walker import NO_WALK, Grid, Walk
from runs.log import progress_bar
from support.files import sha256
from support.image_stats import Display


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


def digests(dataset: SegmentationDataset, group: Group) -> dict[str, str]:
    """Return digests of the names, the images and the scribbles: if one changes, so do the labels. Collective."""
    result = {"images": checks.digest(dataset.listing)}
    for name, kind in {"pixels": "image", "scribbles": "label"}.items():
        result[name] = contents_digest([files[kind] for files in dataset.files], name, group)
    return result


def contents_digest(paths: list[Path], name: str, group: Group) -> str:
    """Return a digest of the files' contents, the same on all ranks. Collective. name: of the files, for the bar."""
    bar = partial(progress_bar, total=math.ceil(len(paths) / group.world_size), title=f"reading {name}", unit="file",
                  enabled=group.is_main)  # fmt: skip
    return checks.digest(list(map(str, group.map(sha256, paths, bar))))
