"""Warnings about labels: of a sample at the start of a run, and of all masks after its first validation."""

from itertools import groupby
from pathlib import Path

import cv2
import numpy as np

from config import FLAGS, Config
from data.dataset import SegmentationDataset, read_label
from data.loader import batched
from distributed.group import Group
from errors import UserError
from labels import IGNORE
from runs.log import log
from shell import python_command

SAMPLE = 64  # images of each split whose labels are read at the start
CHUNK = 512  # images whose labels all ranks together read before they compare
# --numclasses is far too high where all three hold. Good data pass: suppose each of 8 classes is in 1 of 100 images.
# Then all 8 are missing from 2 * SAMPLE images with probability 0.92**128 = 2e-5.
MIN_MISSING = 8  # classes above the highest label
MIN_RATIO = 1.5  # --numclasses over the number of classes up to the highest label
MIN_IMAGES = 16  # images read; fewer may lack classes by chance

Labels = list[list[Path]]  # the label files of each image


def check_sample(cfg: Config, group: Group, train_set: SegmentationDataset, val_set: SegmentationDataset) -> None:
    """Compare a sample of the labels with --numclasses, and warn. Collective.

    Raises UserError on every rank if there are two classes, of which the labels only teach class 0.
    """
    train_labels, val_labels = _labels(train_set), _labels(val_set)
    train_sample, val_sample = _spread(train_labels), _spread(val_labels)
    train_values, val_values = _values(train_sample, cfg, group), _values(val_sample, cfg, group)
    if _is_binary(train_values) and _all_binary(train_labels, cfg, group):
        problem = "the training labels hold only 0 and 255; 255 is ignored, so the model can learn class 0 only"
        if cfg.numclasses == 2:
            raise UserError(f"{problem}: write 1 in place of 255, then check the labels: {check_command(cfg)}")
        log.warning(f"{problem}; write class numbers in place of 255, then check the labels: {check_command(cfg)}")
        return
    num_images = len(train_sample) + len(val_sample)
    num_seen = max((train_values | val_values) - {IGNORE}, default=0) + 1
    if num_images >= MIN_IMAGES and cfg.numclasses >= max(num_seen + MIN_MISSING, MIN_RATIO * num_seen):
        log.warning(
            f"--numclasses is {cfg.numclasses}, but the highest label of {num_images} images is {num_seen - 1}: use "
            f"--numclasses {num_seen} if there are no more classes; to count them all: {check_command(cfg)}"
        )


def check_validation(cfg: Config, accuracies: list[float | None]) -> None:
    """Log which classes no validation mask has. accuracies: of each class, None where no pixel has it."""
    absent = [number for number, accuracy in enumerate(accuracies) if accuracy is None]
    if not absent:
        return
    if absent == list(range(1, cfg.numclasses)):
        problem = (
            "the validation masks hold no class but 0; 255 is ignored, so an object must be written as 1 or higher"
        )
    else:
        problem = (
            f"the validation masks have no pixel of {_ranges(absent)} (--numclasses is {cfg.numclasses}), so the means leave "
            "these classes out"
        )
    log.info(f"{problem}; to see what the labels hold: {check_command(cfg)}")


def check_command(cfg: Config) -> str:
    """The command that checks this run's data set, without --numclasses, which may be what is wrong."""
    words: list[str] = [cfg.dataset_path, "--dataset", cfg.dataset]
    for name in ("classes", "list_path", "image_path", "train_path", "val_path", "pseudo_path"):
        if getattr(cfg, name) != FLAGS[name].default:
            words += [f"--{name}", getattr(cfg, name)]
    return python_command("-m", "data.check", *words)


def _labels(dataset: SegmentationDataset) -> Labels:
    return [[files[kind] for kind in ("label", "pseudo") if kind in files] for files in dataset.files]


def _spread(labels: Labels) -> Labels:
    """At most SAMPLE entries, spread evenly over the list."""
    if len(labels) <= SAMPLE:
        return labels
    return [labels[number * len(labels) // SAMPLE] for number in range(SAMPLE)]


def _values(labels: Labels, cfg: Config, group: Group) -> set[int]:
    """The values in these labels, on every rank; each reads a share. Collective."""

    def values_of(path: Path) -> set[int]:
        label = read_label(path, cfg.numclasses)
        return set(np.flatnonzero(cv2.calcHist([label], [0], None, [256], [0, 256])).tolist())

    found = group.map(values_of, [path for paths in labels for path in paths])
    return set().union(*(values for values in found if values))


def _is_binary(values: set[int]) -> bool:
    return values == {0, IGNORE}


def _all_binary(labels: Labels, cfg: Config, group: Group) -> bool:
    """Whether all labels hold only 0 and 255; a sample may miss a rare class. Collective."""
    return all(_values(chunk, cfg, group) <= {0, IGNORE} for chunk in batched(labels, CHUNK))


def _ranges(numbers: list[int]) -> str:
    """Sorted class numbers as text: "class 3" or "classes 1, 5-20"."""
    runs = [
        [number for _, number in group] for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"class{'es' if len(numbers) > 1 else ''} {shown}"
