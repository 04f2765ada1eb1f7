"""The picture of training samples that a new run writes: augmented.jpg."""

from itertools import islice

import numpy as np

from data.classes import Classes
from data.loader import Loader
from data.overlays import overlay, sheet
from flags import Config

FILE = "augmented.jpg"
NUM_SHOWN = 8  # samples in the picture


def draw_samples(cfg: Config, loader: Loader, classes: Classes) -> np.ndarray:
    """Return a picture of the first training samples, (H, W, 3) uint8: each without and with its labels over it.

    The samples are those of the first batch, as the network gets them. They are loaded apart from the loader,
    whose batches stay the same.
    """
    rows = []
    for key in islice(loader.sampler, min(cfg.batchsize, NUM_SHOWN)):
        sample = loader.dataset[key]
        image = sample["image"]
        labels = [sample[name] for name in ("label", "pseudo") if name in sample]
        rows.append([image, *(overlay(image, label, classes.colours, cfg.background_class) for label in labels)])
    return sheet(rows)
