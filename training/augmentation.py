"""The augmentation of training samples, from the flags, and a picture of it."""

from itertools import islice

import numpy as np

from data.classes import Classes
from data.loader import TrainLoader
from data.pictures import overlay, sheet
from data.transforms import CentreCrop, ColourJitter, TrainTransform
from flags import Config

NUM_SHOWN = 8  # samples in the picture


def get_transform(cfg: Config) -> TrainTransform | CentreCrop:
    """Return the transform of training samples."""
    if not cfg.augment:
        return CentreCrop(cfg.crop_size, cfg.long_side)
    strengths = {name: getattr(cfg, name) for name in ("brightness", "contrast", "saturation", "hue")}
    return TrainTransform(
        cfg.crop_size,
        scale=(cfg.scale[0], cfg.scale[1]),
        rotation=cfg.rotation,
        flip_horizontal=cfg.flip_horizontal,
        flip_vertical=cfg.flip_vertical,
        quarter_turns=cfg.quarter_turns,
        blur=cfg.blur,
        jitter=ColourJitter(**strengths) if any(strengths.values()) else None,
        long_side=cfg.long_side,
    )


def draw_samples(cfg: Config, loader: TrainLoader, classes: Classes) -> np.ndarray:
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
