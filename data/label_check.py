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
    """Read sampled labels; log a warning if all training labels are 0 or 255, or use less than half of the classes.

    train, val: {map: path} of each image. num_classes: the value of --numclasses. command: the command of the data
    check, quoted in messages.
    map_: like map(); may share the work between processes. label_map: applied to the files' values. Raises UserError if
    a label is invalid, if no validation label has a class, or if num_classes is 2 and all training labels are only 0
    and 255.
    """

    def values(images: Files) -> set[int]:
        paths = [files[kind] for files in images for kind in ("label", "pseudo") if kind in files]
        read = partial(read_label, num_classes=num_classes, label_map=label_map)
        return set().union(*map_(lambda path: np.flatnonzero(value_histogram(read(path))).tolist(), paths))

    if values(_spread(val)) == {IGNORE} and values(val) == {IGNORE}:
        raise UserError(f"all validation masks are {IGNORE} (ignored), so there is nothing to score: label some pixels")
    sample = values(_spread(train))
    # The sample may miss a rare class, so read all labels before complaining.
    if sample != {0, IGNORE} or values(train) != {0, IGNORE}:
        highest = max(sample - {IGNORE}, default=0)
        if 2 * (highest + 1) < num_classes:
            found = f"the labels of {min(SAMPLE, len(train))} images have no class above {highest}"
            log.warning(f"{found}, but --numclasses is {num_classes}; to count the classes: {command}")
        return
    problem = "the training labels hold only 0 and 255; 255 is ignored, so the model can learn class 0 only"
    if num_classes == 2:
        raise UserError(f"{problem}: use --label_map binary, then check the labels: {command}")
    log.warning(
        f"{problem}; if 255 is a class, map it to a class number with --label_map, then check the labels: {command}"
    )


def _spread(images: Files) -> Files:
    """Return at most SAMPLE images, evenly spaced over the list."""
    num_images = min(SAMPLE, len(images))
    return [images[number * len(images) // num_images] for number in range(num_images)]
