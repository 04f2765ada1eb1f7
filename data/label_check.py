"""A check of the labels before training, by a sample of them."""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np

from data.histogram import value_histogram
from data.images import read_label
from data.label_map import LabelMap
from support.errors import UserError
from support.labels import IGNORE

log = logging.getLogger("segtrain")

SAMPLE = 64  # images of each split whose labels are read before training

Files = list[dict[str, Path]]  # of each image, as in SegmentationDataset.files


def check_sample(
    train: Files,
    val: Files,
    num_classes: int,
    command: str,
    map_: Callable[..., Iterable] = map,
    label_map: LabelMap | None = None,
) -> None:
    """Read a sample of the labels, or all if the sample lacks classes; log a warning if they seem to be missing.

    train, val: {map: path} of each image. num_classes: the value of --numclasses. command: the command of the data
    check, quoted in messages.
    map_: like map(); may share the work between processes. label_map: applied to the files' values. Raises UserError if
    a label is invalid, if no training or no validation label has a class, or if num_classes is 2 and all training
    labels are only 0 and 255.
    """

    def values(images: Files) -> set[int]:
        paths = [files[kind] for files in images for kind in ("label", "pseudo") if kind in files]
        read = partial(read_label, num_classes=num_classes, label_map=label_map)
        return set().union(*map_(lambda path: np.flatnonzero(value_histogram(read(path))).tolist(), paths))

    if values(_spread(val)) == {IGNORE} and values(val) == {IGNORE}:
        raise UserError(f"all validation masks are {IGNORE} (ignored), so there is nothing to score: label some pixels")
    found = values(_spread(train))
    if 2 * (max(found - {IGNORE}, default=0) + 1) <= num_classes:  # the sample may miss a rare class
        found = values(train)
    if found == {IGNORE}:
        raise UserError(f"all training labels are {IGNORE} (ignored), so there is nothing to learn: label some pixels")
    highest = max(found - {IGNORE}, default=0)
    if found == {0, IGNORE}:
        problem = "the training labels hold only 0 and 255; 255 is ignored, so the model can learn class 0 only"
        if num_classes == 2:
            raise UserError(f"{problem}: use --label_map binary, then check the labels: {command}")
        log.warning(
            f"{problem}; if 255 is a class, map it to a class number with --label_map, then check the labels: {command}"
        )
    elif 2 * (highest + 1) < num_classes:
        problem = f"the training labels have no class above {highest}, but --numclasses is {num_classes}"
        log.warning(f"{problem}: to count the classes, before you set it: {command}")


def _spread(images: Files) -> Files:
    """Return at most SAMPLE images, evenly spaced over the list."""
    num_images = min(SAMPLE, len(images))
    return [images[number * len(images) // num_images] for number in range(num_images)]
