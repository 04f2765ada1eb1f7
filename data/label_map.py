"""Label maps (--label_map): they map the numbers in label files to class numbers."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np

from data.classes import read_preset
from support.errors import UserError
from support.labels import IGNORE

NUM_VALUES = 2**16  # label files have 8 or 16 bits
UNLISTED = 254  # in LabelMap.table: a value that the map does not list

_LINE = re.compile(r"(\*|(\d+)(?:-(\d+))?)\s+(\d+)(?:-(\d+))?")  # value or first-last, class or first-last


@dataclass(frozen=True, eq=False)
class LabelMap:
    """A map from label values to class numbers.

    chosen: the value of --label_map, for messages. table: (65536,) uint8, by label value: 0..253 = class, 255 = ignore,
    UNLISTED = not in the map.
    """

    chosen: str
    table: np.ndarray

    @property
    def digest(self) -> str:
        """Return 16 hexadecimal digits that differ between maps of different content."""
        return hashlib.sha256(self.table.tobytes()).hexdigest()[:16]

    @property
    def num_classes(self) -> int:
        """Return the highest class number plus 1; 0 if the map gives no class."""
        return int(max(self.table[self.table < UNLISTED], default=-1)) + 1

    def look_up(self, label: np.ndarray) -> np.ndarray:
        """Return the class of each pixel, (H, W) uint8; UNLISTED where the map has none. label: (H, W), integers."""
        if label.dtype == np.uint8:
            return cv2.LUT(label, self.table[:256])  # ten times as fast
        inside = (label >= 0) & (label < NUM_VALUES)
        return np.where(inside, self.table[np.where(inside, label, 0).astype(np.int64)], np.uint8(UNLISTED))


def read_label_map(chosen: str, num_classes: int | None = None, text: str | None = None) -> LabelMap | None:
    """Return the LabelMap of a preset or a file, or None for "".

    chosen: NAME of configs/label_maps/NAME.txt, or the path of a text file. A line is "VALUE CLASS", "FIRST-LAST CLASS"
    (all to one class), "FIRST-LAST FIRST-LAST" (one after the other) or "* CLASS" (every value that no line lists).
    "#" starts a comment. VALUE is 0..65535; CLASS is 0..253, or 255 = ignore. 255 stays 255 unless it is listed.
    num_classes: the value of --numclasses; None accepts any. text: of the file, if it is known. Raises UserError if the
    file cannot be read, has a wrong line, lists a value twice, or gives a class that is not below num_classes.
    """
    if not chosen:
        return None
    text = read_preset("label_map", chosen) if text is None else text
    table = np.full(NUM_VALUES, UNLISTED, np.uint8)
    table[IGNORE] = IGNORE
    listed, rest = np.zeros(NUM_VALUES, bool), UNLISTED
    for where, values, classes in _lines(text, chosen):
        if values is None:
            rest = classes[0]
            continue
        if listed[values].any():
            raise UserError(f"{where}: lists a value that an earlier line lists: remove one")
        table[values], listed[values] = classes, True
    table[~listed & (table == UNLISTED)] = rest
    found = LabelMap(chosen, table)
    if not found.num_classes:
        raise UserError(f"--label_map {chosen}: gives no class, so that nothing is labelled: add a line 'VALUE CLASS'")
    if num_classes is not None and found.num_classes > num_classes:
        raise UserError(
            f"--label_map {chosen}: gives classes up to {found.num_classes - 1}, but --numclasses is {num_classes}: "
            f"use --numclasses {found.num_classes}"
        )
    return found


def _lines(text: str, chosen: str) -> Iterator[tuple[str, slice | None, np.ndarray]]:
    """Yield (where the line is, its values or None for "*", their classes) of each line of a map.

    Raises UserError for a line of another form.
    """
    for number, line in enumerate(text.split("\n"), 1):
        words, where = line.partition("#")[0].strip(), f"--label_map {chosen} line {number}: {line.strip()!r}"
        if not words:
            continue
        match = _LINE.fullmatch(words)
        if not match:
            raise UserError(f"{where}: expected 'VALUE CLASS', 'FIRST-LAST CLASS' or '* CLASS'")
        first_class, last_class = int(match[4]), int(match[5] or match[4])
        classes = np.arange(first_class, last_class + 1)
        if not classes.size or not ((classes < UNLISTED) | (classes == IGNORE)).all():
            raise UserError(f"{where}: a class is 0 to {UNLISTED - 1}, or 255 for ignored pixels")
        if match[1] == "*":
            yield where, None, classes
            continue
        first, last = int(match[2]), int(match[3] or match[2])
        if not first <= last < NUM_VALUES:
            raise UserError(f"{where}: a value is 0 to {NUM_VALUES - 1}, and a range goes up")
        if match[5] and len(classes) != last - first + 1:
            raise UserError(f"{where}: {last - first + 1} value(s), but {len(classes)} class(es)")
        yield where, slice(first, last + 1), classes
