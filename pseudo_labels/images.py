"""The images to label, with their strokes, loaded by the processes of a DataLoader."""

from dataclasses import dataclass

import numpy as np
from torch.utils.data import Dataset

from data.dataset import SegmentationDataset
from image_stats import Display
from pseudo_labels.walker import NO_WALK, Walk, walk


@dataclass(frozen=True)
class Stroked:
    """An image with its strokes.

    index: its position in dataset.names. image: (H, W, C), as the model takes. scribble: (H, W) uint8, 255 = no stroke.
    walk: the strokes spread over the image; NO_WALK if they are not.
    """

    index: int
    image: np.ndarray
    scribble: np.ndarray
    walk: Walk


class StrokedImages(Dataset):
    """Data set of Stroked images.

    dataset: images with their scribbles as "label". display: makes the RGB picture that strokes are spread on; None:
    they are not spread.
    """

    def __init__(self, dataset: SegmentationDataset, display: Display | None):
        self.dataset, self.display = dataset, display

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Stroked:
        maps = self.dataset.read(index)
        image, scribble = maps["image"], maps["label"]
        return Stroked(index, image, scribble, walk(self.display(image), scribble) if self.display else NO_WALK)
