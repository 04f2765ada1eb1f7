"""The data set in numbers: splits, sizes, classes and their weights, what scribbles cover."""

import dataclasses
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from data.check.findings import Findings
from data.check.measure import Facts
from data.check.survey import Survey
from data.histogram import class_weights
from labels import IGNORE


@dataclass
class ClassRow:
    """pixels and images: {split: count}, in "train" of the labels that training reads, elsewhere of the masks.

    weight: 1 / ln(1.02 + share of training pixels), None for a class without any. coverage: the share of the class's
    mask that scribbles cover, None where no image has both.
    """

    number: int
    name: str
    pixels: dict[str, int] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)
    weight: float | None = None
    coverage: float | None = None


@dataclass
class Summary:
    """labels: {split: {kind: files}}. sizes: {"WIDTHxHEIGHT": images}, the most frequent first. ignored: {split: share}.

    agreement: {"scribble" or "pseudo": share of the pixels that also the mask has a class for, where it is the same}.
    """

    root: str
    layout: str
    dataset: str
    num_classes: int
    num_classes_given: bool
    class_file: str
    images: dict[str, int]
    labels: dict[str, dict[str, int]]
    sizes: dict[str, int]
    ignored: dict[str, float]
    classes: list[ClassRow]
    agreement: dict[str, float]

    def as_dict(self) -> dict:
        return dataclasses.asdict(self)


def summarise(
    found: Survey, facts: list[Facts], num_classes: int, given: bool, class_file: str, names: list[str]
) -> Summary:
    """Count what was measured. class_file: the preset or file that names the classes, "" for none. names: of the classes."""
    sizes = Counter(f"{item.image.size[1]}x{item.image.size[0]}" for item in facts if item.image.sha)
    images, labels, ignored = {}, {}, {}
    rows = [ClassRow(number, names[number]) for number in range(num_classes)]
    for split in found.splits:
        inside = [item for item in facts if split in item.sample.splits]
        images[split] = len(inside)
        labels[split] = dict(Counter(kind for item in inside for kind in item.labels))
        kind = found.kind if split == "train" else "mask"
        maps = [item.labels[kind].values for item in inside if kind in item.labels]
        total = sum(sum(values.values()) for values in maps)
        ignored[split] = sum(values.get(IGNORE, 0) for values in maps) / max(total, 1)
        for row in rows:
            row.pixels[split] = sum(values.get(row.number, 0) for values in maps)
            row.images[split] = sum(row.number in values for values in maps)
    _add_weights(rows)
    _add_coverage(rows, facts)
    return Summary(
        str(found.root), found.layout, found.dataset, num_classes, given, class_file, images, labels, dict(sizes.most_common()),
        ignored, rows, _agreement(facts),
    )  # fmt: skip


def _add_weights(rows: list[ClassRow]) -> None:
    histogram = np.array([row.pixels.get("train", 0) for row in rows])
    for row, weight in zip(rows, class_weights(histogram), strict=True):
        row.weight = round(float(weight), 3) if row.pixels.get("train") else None


def _add_coverage(rows: list[ClassRow], facts: list[Facts]) -> None:
    both = [item.labels for item in facts if {"mask", "scribble"} <= set(item.labels)]
    for row in rows:
        masked = sum(labels["mask"].values.get(row.number, 0) for labels in both)
        if masked:
            row.coverage = sum(labels["scribble"].values.get(row.number, 0) for labels in both) / masked


def _agreement(facts: list[Facts]) -> dict[str, float]:
    shares = {}
    for kind in ("scribble", "pseudo"):
        counted = [item.agreement[kind] for item in facts if kind in item.agreement]
        both = sum(pixels for pixels, _ in counted)
        if both:
            shares[kind] = sum(equal for _, equal in counted) / both
    return shares


def check_classes(summary: Summary, findings: Findings) -> None:
    """Classes that no label has, and those that only the validation masks have."""
    if not any(any(row.pixels.values()) for row in summary.classes):
        return  # no label was read: other findings say why
    for row in summary.classes:
        label = f"class {row.number}" + (f" ({row.name})" if row.name != str(row.number) else "")
        if not any(row.pixels.values()):
            findings.add("class-absent", label)
        elif row.pixels.get("val") and not row.pixels.get("train") and "train" in row.pixels:
            findings.add("class-only-in-val", label, f"in {row.images['val']} image(s)")
