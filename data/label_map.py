"""Label maps (--label_map): they map the numbers in label files to class numbers."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import cv2
import numpy as np

from data.classes import read_preset
from support.errors import UserError
from support.labels import IGNORE

NUM_VALUES = 2**16  # values that most label files have: 8 or 16 bits
LIMIT = 2**31  # label values are below this
UNLISTED = 254  # in LabelMap.table: a value that the map does not list
BINARY = "binary"  # the preset for one object, whose value is 1 in some masks and 255 in others

# value or first-last, class or first-last
_LINE = re.compile(r"(\*|(-?\d{1,10})(?:-(-?\d{1,10}))?)\s+(\d{1,9})(?:-(\d{1,9}))?")


@dataclass(frozen=True, eq=False)
class LabelMap:
    """A map from label values to class numbers.

    chosen: the value of --label_map, for messages. table: (65536,) uint8, by label value: 0..253 = class, 255 = ignore,
    UNLISTED = not in the map. others: {label value beyond the table: class}, and rest: the class of all further values.
    """

    chosen: str
    table: np.ndarray
    others: dict[int, int] = field(default_factory=dict)
    rest: int = UNLISTED

    @property
    def digest(self) -> str:
        """Return 16 hexadecimal digits that differ between maps of different content."""
        others = repr(sorted(self.others.items())) if self.others else ""
        return hashlib.sha256(self.table.tobytes() + others.encode()).hexdigest()[:16]

    @property
    def num_classes(self) -> int:
        """Return the highest class number plus 1; 0 if the map gives no class."""
        classes = {*self.table.tolist(), *self.others.values()}
        return max((number for number in classes if number < UNLISTED), default=-1) + 1

    def look_up(self, label: np.ndarray) -> np.ndarray:
        """Return the class of each pixel, (H, W) uint8; UNLISTED where the map has none. label: (H, W), integers.

        For BINARY, 255 is ambiguous in a label that also contains 1, so it is UNLISTED there.
        """
        if label.dtype == np.uint8:
            classes = cv2.LUT(label, self.table[:256])  # ten times as fast
        else:
            inside = (label >= 0) & (label < NUM_VALUES)
            classes = self.table[np.where(inside, label, 0).astype(np.int64)]
            values, index = np.unique(label[~inside], return_inverse=True)
            others = [self.others.get(value, self.rest) for value in values.tolist()]
            classes[~inside] = np.array(others, np.uint8)[index.ravel()]
        if self.chosen == BINARY and (label == 1).any() and (label == IGNORE).any():
            classes[label == IGNORE] = UNLISTED
        return classes


def read_label_map(chosen: str, num_classes: int | None = None, text: str | None = None) -> LabelMap | None:
    """Return the LabelMap of a preset or a file, or None for "".

    chosen: NAME of configs/label_maps/NAME.txt, or the path of a text file. A line is "VALUE CLASS", "FIRST-LAST CLASS"
    (one class for all), "FIRST-LAST FIRST-LAST" (one after the other) or "* CLASS" (every value that no line lists).
    "#" starts a comment. VALUE is an integer of 32 bits; CLASS is 0..253, or 255 = ignore. 255 stays 255 unless it is
    listed. num_classes: the value of --numclasses; None accepts any. text: the file's text, if known. Raises UserError
    if the file cannot be read, has a wrong line, lists a value twice, or gives a class that is not below num_classes.
    """
    if not chosen:
        return None
    text = read_preset("label_map", chosen) if text is None else text
    listed: dict[int, int] = {}
    rest = UNLISTED
    for where, values, classes in _lines(text, chosen):
        if values is None:
            rest = int(classes[0])
            continue
        if not listed.keys().isdisjoint(values):
            raise UserError(f"{where}: lists a value that an earlier line lists: remove one")
        if len(listed) > 2 * NUM_VALUES:
            raise UserError(f"{where}: more than {2 * NUM_VALUES} values: use a line '* CLASS' for the rest")
        listed |= zip(values, np.broadcast_to(classes, len(values)).tolist(), strict=True)
    table = np.full(NUM_VALUES, rest, np.uint8)
    table[IGNORE] = IGNORE
    others = {value: number for value, number in listed.items() if not 0 <= value < NUM_VALUES}
    for value in listed.keys() - others.keys():
        table[value] = listed[value]
    label_map = LabelMap(chosen, table, others, rest)
    needed = label_map.num_classes
    if not needed:
        raise UserError(f"--label_map {chosen}: gives no class, so that nothing is labelled: add a line 'VALUE CLASS'")
    if num_classes is not None and needed > num_classes:
        problem = f"gives classes up to {needed - 1}, but --numclasses is {num_classes}"
        raise UserError(f"--label_map {chosen}: {problem}: change the map, or train with --numclasses {needed}")
    return label_map


def _lines(text: str, chosen: str) -> Iterator[tuple[str, range | None, np.ndarray]]:
    """Yield (position, values or None for "*", their classes) of each line. Raises UserError for an invalid line."""
    for number, line in enumerate(text.split("\n"), 1):
        words, where = line.partition("#")[0].strip(), f"--label_map {chosen} line {number}: {line.strip()!r}"
        if not words:
            continue
        match = _LINE.fullmatch(words)
        if not match or (match[1] == "*" and match[5]):
            raise UserError(f"{where}: expected 'VALUE CLASS', 'FIRST-LAST CLASS' or '* CLASS'")
        first_class, last_class = int(match[4]), int(match[5] or match[4])
        classes = np.arange(first_class, min(last_class, IGNORE + 1) + 1)
        if not classes.size or not ((classes < UNLISTED) | (classes == IGNORE)).all():
            raise UserError(f"{where}: a class is 0 to {UNLISTED - 1}, or 255 for ignored pixels")
        if match[1] == "*":
            yield where, None, classes
            continue
        first, last = int(match[2]), int(match[3] or match[2])
        if not -LIMIT <= first <= last < min(LIMIT, first + NUM_VALUES):
            limits = f"a value is {-LIMIT} to {LIMIT - 1}, and a range goes up, by less than {NUM_VALUES}"
            raise UserError(f"{where}: {limits}")
        if match[5] and len(classes) != last - first + 1:
            raise UserError(f"{where}: {last - first + 1} value(s), but {len(classes)} class(es)")
        yield where, range(first, last + 1), classes
