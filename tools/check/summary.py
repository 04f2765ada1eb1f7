"""Sum up a data set in numbers: splits, sizes, classes and their weights, and what scribbles cover."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from data.histogram import class_weights
from support.labels import IGNORE
from tools.check.findings import Findings, class_label
from tools.check.measure import Facts
from tools.check.survey import required_labels


@dataclass
class ClassRow:
    """The counts of one class in each split.

    pixels, images: {split: number of pixels, or of images, with the class}. The training split counts the labels that
    training reads, other splits the masks.
    weight: 1 / ln(1.02 + share of training pixels), None if training has none. coverage: number of scribble pixels of
    the class per mask pixel of the class, over images with both; None if there is no such mask pixel.
    """

    number: int
    name: str
    pixels: dict[str, int] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)
    weight: float | None = None
    coverage: float | None = None


@dataclass
class Summary:
    """A data set in numbers; count() fills in the fields with defaults.

    images: {split: number}. labels: {split: {"mask", "scribble" or "pseudo": number of files}}. sizes: {"WIDTHxHEIGHT":
    number of images}, most frequent first. ignored: {split: share of label pixels that are 255}.
    flags: {name: value} of the data flags that are set. known: name of a well-known data set. splits: names of the
    training and the validation split. class_file: preset or file of the class names, "" for none.
    agreement: {"scribble" or "pseudo": share}. The share is of pixels whose class equals the mask's, among pixels with
    a class in both.
    """

    root: str
    dataset: str
    num_classes: int = 0
    num_classes_given: bool = False
    class_file: str = ""
    flags: dict[str, str] = field(default_factory=dict)
    known: str = ""
    splits: tuple[str, str] = ("train", "val")
    images: dict[str, int] = field(default_factory=dict)
    labels: dict[str, dict[str, int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    ignored: dict[str, float] = field(default_factory=dict)
    classes: list[ClassRow] = field(default_factory=list)
    agreement: dict[str, float] = field(default_factory=dict)

    @property
    def image_sizes(self) -> list[tuple[int, int]]:
        """Return the (height, width) of each image."""
        pairs = ((tuple(map(int, size.split("x")))[::-1], number) for size, number in self.sizes.items())
        return [(height, width) for (height, width), number in pairs for _ in range(number)]

    def count(self, facts: list[Facts], splits: list[str], names: list[str]) -> None:
        """Fill in all counts from the facts about each sample. splits: names of splits. names: of the classes."""
        sizes = Counter("{1}x{0}".format(*item.image.size) for item in facts if item.image.sha)
        self.sizes = dict(sizes.most_common())
        self.classes = [ClassRow(number, name) for number, name in enumerate(names)]
        for split in splits:
            inside = [item for item in facts if split in item.splits]
            self.images[split] = len(inside)
            self.labels[split] = dict(Counter(kind for item in inside for kind in item.labels))
            kind = required_labels(self.dataset, is_train=split == self.splits[0])[0]
            maps = [item.labels[kind].values for item in inside if kind in item.labels]
            num_pixels = sum(sum(values.values()) for values in maps)
            self.ignored[split] = sum(values.get(IGNORE, 0) for values in maps) / max(num_pixels, 1)
            for row in self.classes:
                row.pixels[split] = sum(values.get(row.number, 0) for values in maps)
                row.images[split] = sum(row.number in values for values in maps)
        train = self.splits[0]
        weights = class_weights(np.array([row.pixels.get(train, 0) for row in self.classes]))
        scribbled = [item.labels for item in facts if {"mask", "scribble"} <= set(item.labels)]
        for row, weight in zip(self.classes, weights.tolist(), strict=True):
            row.weight = round(weight, 3) if row.pixels.get(train) else None
            masked = sum(labels["mask"].values.get(row.number, 0) for labels in scribbled)
            covered = sum(labels["scribble"].values.get(row.number, 0) for labels in scribbled)
            row.coverage = covered / masked if masked else None
        for kind in ("scribble", "pseudo"):
            pixels, equal = (sum(item.agreement.get(kind, (0, 0))[place] for item in facts) for place in (0, 1))
            if pixels:
                self.agreement[kind] = equal / pixels


def check_classes(summary: Summary, findings: Findings) -> None:
    """Add findings about classes without a pixel in any label, and classes that val has but train lacks."""
    if not any(any(row.pixels.values()) for row in summary.classes):
        return  # no label could be read: other findings say why
    train, val = summary.splits
    for row in summary.classes:
        label = class_label(row.number, row.name)
        if not any(row.pixels.values()):
            findings.add("class-absent", label)
        elif row.pixels.get(val) and row.pixels.get(train) == 0:
            findings.add("class-only-in-val", label, f"in {row.images[val]} image(s)")
