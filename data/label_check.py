"""Check the labels before training, by a sample of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from data.histogram import value_histogram
from data.images import read_label, several_frames
from data.images.reader import ImageReader
from data.label_map import LabelMap
from support.errors import UserError
from support.labels import IGNORE
from support.log import log

MAX_LABELS_READ = 64  # images per split whose labels are read before training

# is_smoothed() needs these shares: of changes that continue the one before, and of those where no neighbour is equal.
# CamVid's masks have at most 3 % and 14 %; resized bilinearly by 0.9, they have at least 28 % and 50 %.
MIN_RISING, MIN_BETWEEN = 0.15, 0.35
MIN_VALUES, MIN_PIXELS = 2, 20  # fewer could be chance
VALUE_JUMP = 32  # a label value this far above the next lower one is not a class number
SOFT_VALUE, SOFT_SHARE = 128, 0.8  # of seems_soft(): a value between 0 and 255, and the pixels of these two
MAX_LINES = 100  # rows and columns that is_smoothed() reads

Item = TypeVar("Item")
Files = list[dict[str, Path]]  # {map: path} per image, as in SegmentationDataset.files


def check_sample(
    train: Files,
    val: Files,
    num_classes: int,
    command: str,
    mapper: Callable[..., Iterable] = map,
    label_map: LabelMap | None = None,
    reader: ImageReader = ImageReader(),  # noqa: B008
) -> None:
    """Read a sample of the labels, or all if the sample lacks classes; log a warning if one seems to be missing.

    Also log a warning if images have several frames, if masks seem to be interpolated, or if 255 seems to be an object.

    train, val: {map: path} per image. num_classes: the value of --numclasses. command: the data check's command, quoted
    in messages. mapper: works like map(), and may share the work between processes. label_map: applied to the files'
    values. reader: reads the images. Raises UserError if a label is invalid, or if no training or no validation label
    has a class. Also raises it if all training labels contain only 0 and 255, or if all validation masks do and
    training labels have other classes.
    """
    facts: dict[Path, tuple[list[int], bool]] = {}  # {label: (its values, whether it is_smoothed())}

    def read(path: Path) -> tuple[list[int], bool]:
        label = read_label(path, num_classes, label_map)
        values = np.flatnonzero(value_histogram(label)).tolist()
        return values, len(values) > MIN_VALUES and is_smoothed(label)

    def read_values(images: Files) -> list[list[int]]:
        paths = [files[kind] for files in images for kind in ("label", "pseudo") if kind in files]
        facts.update(zip(paths, mapper(read, paths), strict=True))
        return [facts[path][0] for path in paths]

    images = [files["image"] for files in [*spread(train), *spread(val)] if "image" in files]
    frames = mapper(lambda path: reader.header(path).frames, images)
    if line := several_frames(dict(zip(images, frames, strict=True))):
        log.warning(line)
    scored = set().union(*read_values(spread(val)))
    if scored == {IGNORE} and set().union(*read_values(val)) == {IGNORE}:
        raise UserError(f"all validation masks are {IGNORE} (ignored), so there is nothing to score: label some pixels")
    labels = read_values(spread(train))
    present = set().union(*labels)
    is_poor = 2 * (max(present - {IGNORE}, default=0) + 1) <= num_classes or len(present - {IGNORE}) < 2
    if is_poor or any(objects_as_255(labels)):  # the sample may miss a rare class
        labels = read_values(train)
        present = set().union(*labels)
    if paths := [path for path, (_, is_smooth) in facts.items() if is_smooth]:
        problem = f"{len(paths)} of {len(facts)} labels have interpolated class numbers at borders"
        log.warning(f"{problem}, as from bilinear resizing or JPEG: {paths[0]} ...: resize masks by nearest neighbour")
    if present == {IGNORE}:
        raise UserError(f"all training labels are {IGNORE} (ignored), so there is nothing to learn: label some pixels")
    if scored == {0, IGNORE} and present - scored and set().union(*read_values(val)) == scored:
        mask = val[0]["label"]
        problem = f"{mask}: like all validation masks, holds only 0 and 255 (ignored), so only class 0 is scored"
        remedy = "write objects as their class, or add masks that have them"
        raise UserError(f"{problem}: {remedy}; to check the labels: {command}")
    masks = [] if "pseudo" in train[0] else labels  # scribbles of class 0 alone also contain 0 and 255 only
    _judge(present, masks, num_classes, command)


def _judge(present: set[int], masks: list[list[int]], num_classes: int, command: str) -> None:
    """Log a warning, or raise UserError, about the training labels' values. masks: values per mask; []: no check."""
    highest = max(present - {IGNORE}, default=0)
    if present == {0, IGNORE}:
        problem = "the training labels hold only 0 and 255; 255 is ignored, so the model can learn class 0 only"
        remedy = "use --label_map binary" if num_classes == 2 else "if 255 is a class, map it with --label_map"
        raise UserError(f"{problem}: {remedy}, then check the labels: {command}")
    if 2 * (highest + 1) < num_classes:
        problem = f"the training labels have no class above {highest}, but --numclasses is {num_classes}"
        log.warning(f"{problem}: to count the classes, before you set it: {command}")
    elif len(present - {IGNORE}) < 2:
        problem = f"the training labels hold only class {highest}{' and 255 (ignored)' if IGNORE in present else ''}"
        log.warning(f"{problem}, so there is nothing to learn: label a second class; to count the classes: {command}")
    if number := sum(objects_as_255(masks)):
        problem = f"{number} of {len(masks)} training labels hold only 0 and 255 (ignored), but most others have no 255"
        log.warning(f"{problem}: if 255 marks an object, training ignores it; check the labels: {command}")


def infer_num_classes(values: Iterable[int]) -> int:
    """Return the number of classes, 2 to 255: the highest label value plus 1. values: of all labels, without 255.

    Ignores a value more than VALUE_JUMP above the next lower one, and all values above it.
    """
    highest = 0
    for value in sorted(values):
        if value - highest > VALUE_JUMP:
            break
        highest = max(highest, value)
    return min(max(highest + 1, 2), 255)


def is_smoothed(label: np.ndarray) -> bool:
    """Return whether values at borders seem to be interpolated or lossily coded. label: (H, W) integers.

    Interpolated values rise or fall from pixel to pixel along a row or column. Thin objects also differ from both
    neighbours, but their class number is seldom between those of the neighbours.
    """
    rising = turning = changes = 0
    between: set[int] = set()
    for lines in (label, label.T):
        lines = lines[:: max(1, len(lines) // MAX_LINES)]
        steps = np.sign(np.diff(lines.astype(np.int64))).astype(np.int8)
        pairs = steps[:, :-1] * steps[:, 1:]
        rising, turning = rising + np.count_nonzero(pairs > 0), turning + np.count_nonzero(pairs < 0)
        changes += np.count_nonzero(steps)
        between.update(lines[:, 1:-1][pairs > 0].tolist())
    is_enough = rising >= MIN_PIXELS and len(between) >= MIN_VALUES
    return is_enough and rising > MIN_RISING * changes and rising > MIN_BETWEEN * (rising + turning)


def holds_only_255(masks: Iterable[Iterable[int]]) -> bool:
    """Return whether the masks together hold 0 and 255 only, so that 255 must be the object. masks: their values."""
    return set().union(*masks) == {0, IGNORE}


def seems_soft(masks: Sequence[Mapping[int, int]]) -> bool:
    """Return whether the masks seem to show one object as 255 with soft edges. masks: {value: pixels} of each.

    Class numbers seldom reach SOFT_VALUE while 0 and 255 together fill most pixels.
    """
    values = set().union(*masks)
    between = values - {0, IGNORE}
    if not {0, IGNORE} <= values or len(between) <= MIN_VALUES or max(between) < SOFT_VALUE:
        return False
    pixels = sum(sum(mask.values()) for mask in masks)
    return sum(mask.get(0, 0) + mask.get(IGNORE, 0) for mask in masks) >= SOFT_SHARE * pixels


def objects_as_255(masks: Sequence[Iterable[int]]) -> list[bool]:
    """Return, per mask, whether it contains 255 and no class but 0, and 255 seems to be an object, not ignored pixels.

    This is likely if masks with other classes lack 255: programs differ. masks: the values of each mask.
    """
    values = [set(mask) for mask in masks]
    objects = [IGNORE in mask for mask in values if mask - {0, IGNORE}]
    if 10 * sum(objects) > len(objects) or not any(0 in mask for mask in values):
        return [False] * len(values)
    return [IGNORE in mask and mask <= {0, IGNORE} and (0 in mask or not objects) for mask in values]


def spread(items: Sequence[Item], most: int = MAX_LABELS_READ) -> list[Item]:
    """Return at most `most` items, evenly spaced over the list."""
    number = min(most, len(items))
    return [items[index * len(items) // number] for index in range(number)]
