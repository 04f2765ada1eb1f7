"""A check of the labels before training, by a sample of them."""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from data.histogram import value_histogram
from data.images import read_header, read_label, several_frames
from data.label_map import LabelMap
from support.errors import UserError
from support.labels import IGNORE

log = logging.getLogger("segtrain")

SAMPLE = 64  # images of each split whose labels are read before training

# What is_smoothed() takes for interpolation. CamVid's masks: at most 3 % of the changes go on from the one before, and
# 14 % of the pixels that differ from both neighbours are between them. Resized bilinearly by 0.9: from 28 % and 50 %.
RISING, BETWEEN, LEAST_VALUES, LEAST_PIXELS, LINES = 0.15, 0.35, 2, 20, 100

Files = list[dict[str, Path]]  # of each image, as in SegmentationDataset.files


def check_sample(
    train: Files,
    val: Files,
    num_classes: int,
    command: str,
    map_: Callable[..., Iterable] = map,
    label_map: LabelMap | None = None,
) -> None:
    """Read a sample of the labels, or all if the sample lacks classes; log a warning if one seems to be missing.

    Log a warning, too, if images have several frames, if masks seem to be interpolated, or 255 to be an object in some.

    train, val: {map: path} of each image. num_classes: the value of --numclasses. command: the command of the data
    check, quoted in messages.
    map_: like map(); may share the work between processes. label_map: applied to the files' values. Raises UserError if
    a label is invalid, if no training or no validation label has a class, or if num_classes is 2 and all training
    labels are only 0 and 255.
    """

    smoothed: dict[Path, bool] = {}

    def look(path: Path) -> tuple[list[int], bool]:
        label = read_label(path, num_classes, label_map)
        values = np.flatnonzero(value_histogram(label)).tolist()
        return values, len(values) > LEAST_VALUES and is_smoothed(label)

    def each(images: Files) -> list[list[int]]:
        paths = [files[kind] for files in images for kind in ("label", "pseudo") if kind in files]
        found = [*map_(look, paths)]
        smoothed.update((path, smooth) for path, (_, smooth) in zip(paths, found, strict=True))
        return [values for values, _ in found]

    def values(images: Files) -> set[int]:
        return set().union(*each(images))

    images = [files["image"] for files in [*_spread(train), *_spread(val)] if "image" in files]
    frames = map_(lambda path: read_header(path).frames, images)
    if line := several_frames(dict(zip(images, frames, strict=True))):
        log.warning(line)
    if values(_spread(val)) == {IGNORE} and values(val) == {IGNORE}:
        raise UserError(f"all validation masks are {IGNORE} (ignored), so there is nothing to score: label some pixels")
    labels = each(_spread(train))
    found = set().union(*labels)
    few = 2 * (max(found - {IGNORE}, default=0) + 1) <= num_classes or len(found - {IGNORE}) < 2
    if few or any(objects_as_255(labels)):  # the sample may miss a rare class
        labels = each(train)
        found = set().union(*labels)
    if paths := [path for path, is_smooth in smoothed.items() if is_smooth]:
        problem = f"{len(paths)} of {len(smoothed)} labels have classes that lie between both sides of a border"
        log.warning(f"{problem}, as bilinear resizing or JPEG leaves them: {paths[0]} ...: resize masks by nearest")
    if found == {IGNORE}:
        raise UserError(f"all training labels are {IGNORE} (ignored), so there is nothing to learn: label some pixels")
    masks = [] if "pseudo" in train[0] else labels  # strokes of class 0 alone hold 0 and 255, too
    _judge(found, masks, num_classes, command)


def _judge(found: set[int], masks: list[list[int]], num_classes: int, command: str) -> None:
    """Log a warning, or raise UserError, on what the training labels hold. masks: the values of each, [] to skip it."""
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
    elif len(found - {IGNORE}) < 2:
        problem = f"the training labels hold only class {highest}{' and 255 (ignored)' if IGNORE in found else ''}"
        log.warning(f"{problem}, so there is nothing to learn: label a second class; to count the classes: {command}")
    if found != {0, IGNORE} and (number := sum(objects_as_255(masks))):
        problem = f"{number} of {len(masks)} training labels hold only 0 and 255 (ignored), the others have no 255"
        log.warning(f"{problem}: if 255 marks an object, training ignores it; check the labels: {command}")


def is_smoothed(label: np.ndarray) -> bool:
    """Return whether values at borders seem to be interpolated or lossily coded. label: (H, W) integers.

    Along a row or column, values then rise or fall from pixel to pixel. Thin objects differ from both neighbours, too,
    but their number is seldom between those of the neighbours.
    """
    rising = turning = changes = 0
    between: set[int] = set()
    for lines in (label, label.T):
        lines = lines[:: max(1, len(lines) // LINES)]
        steps = np.sign(np.diff(lines.astype(np.int64))).astype(np.int8)
        pairs = steps[:, :-1] * steps[:, 1:]
        rising, turning = rising + np.count_nonzero(pairs > 0), turning + np.count_nonzero(pairs < 0)
        changes += np.count_nonzero(steps)
        between.update(lines[:, 1:-1][pairs > 0].tolist())
    is_enough = rising >= LEAST_PIXELS and len(between) >= LEAST_VALUES
    return is_enough and rising > RISING * changes and rising > BETWEEN * (rising + turning)


def objects_as_255(masks: Sequence[Iterable[int]]) -> list[bool]:
    """Return which masks hold 255 and no class but 0, where 255 seems to be an object and not what is ignored.

    It seems so if the masks that have other classes do without 255: several programs may have written the masks. masks:
    the values of each.
    """
    values = [set(mask) for mask in masks]
    objects = [IGNORE in mask for mask in values if mask - {0, IGNORE}]
    if 10 * sum(objects) > len(objects) or not any(0 in mask for mask in values):
        return [False] * len(values)
    return [IGNORE in mask and mask <= {0, IGNORE} and (0 in mask or not objects) for mask in values]


def _spread(images: Files) -> Files:
    """Return at most SAMPLE images, evenly spaced over the list."""
    num_images = min(SAMPLE, len(images))
    return [images[number * len(images) // num_images] for number in range(num_images)]
