"""Sum up a data set in numbers, and write the report as text."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from support.errors import shortened
from support.labels import IGNORE
from tools.check.findings import Findings
from tools.check.measure import Sample
from tools.check.survey import required_labels
from tools.convert.painting import HIDDEN

LAYOUTS = {"Folder": "plain folders", "Dense": "PASCAL VOC's layout"}
NUM_SIZES = 4
NUM_EXAMPLES = 3


@dataclass
class ClassRow:
    """The counts of one class in each split.

    pixels, images: {split: number of pixels, or of images, with the class}. The training split counts the labels that
    training reads, other splits the masks.
    """

    number: int
    name: str
    pixels: dict[str, int] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)


@dataclass
class Summary:
    """A data set in numbers; count() fills in the fields with defaults.

    images: {split: number}. labels: {split: {"mask", "scribble" or "pseudo": number of files}}. sizes: {"WIDTHxHEIGHT":
    number of images}, most frequent first. ignored: {split: share of label pixels that are 255}.
    flags: {name: value} of the data flags that are set or guessed. given: {name: value} of those that the user set,
    with --dataset, --numclasses and --classes; train.py guesses the others alike. splits: names of the
    training and the validation split. class_file: preset or file of the class names, "" for none. repeats: lines of the
    training list that name an image again, which counts once here. notes: lines for information.
    """

    root: str
    dataset: str
    num_classes: int = 0
    num_classes_given: bool = False
    repeats: int = 0
    class_file: str = ""
    flags: dict[str, str] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    splits: tuple[str, str] = ("train", "val")
    images: dict[str, int] = field(default_factory=dict)
    labels: dict[str, dict[str, int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    ignored: dict[str, float] = field(default_factory=dict)
    classes: list[ClassRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def image_sizes(self) -> list[tuple[int, int]]:
        """Return the (height, width) of each image."""
        pairs = ((tuple(map(int, size.split("x")))[::-1], number) for size, number in self.sizes.items())
        return [(height, width) for (height, width), number in pairs for _ in range(number)]

    @property
    def has_strokes(self) -> bool:
        """Whether training reads strokes."""
        return required_labels(self.dataset, is_train=True)[0] == "scribble"

    def count(self, facts: list[Sample], splits: list[str], names: list[str]) -> None:
        """Fill in all counts from the facts about each sample. splits, names: the names of the splits and classes."""
        labels = [(item.image.turn, label.turn) for item in facts for label in item.labels.values()]
        if turned := sum(image != 1 and label == 1 for image, label in labels):
            self.notes.append(f"EXIF rotates {turned} image(s) but not their labels, which must fit the rotated images")
        if hidden := sum(label.is_hidden for item in facts for label in item.labels.values()):
            self.notes.append(f"{hidden} mask(s) have {HIDDEN}")
        masks = [set(item.labels["mask"].values) for item in facts if "mask" in item.labels]
        if any(mask - {0, IGNORE} for mask in masks) and (few := masks.count({0, IGNORE})):
            self.notes.append(f"{few} of {len(masks)} masks hold only 0 and 255 (ignored): is 255 an object there?")
        sizes = Counter("{1}x{0}".format(*item.image.size) for item in facts if item.image.is_readable)
        self.sizes = dict(sizes.most_common())
        self.num_classes = len(names)
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


def report_lines(summary: Summary, findings: Findings) -> list[str]:
    """Return the report as lines of text: layout, splits, image sizes and number of classes; classes; findings."""
    layout = LAYOUTS.get(summary.dataset, "ScribbleSup's layout (VOC with scribbles)")
    lines = [f"{summary.root}: {layout}, for --dataset {summary.dataset}"]
    read = [f"--{name} {value}" for name, value in summary.flags.items()]
    lines += [f"  read with {' '.join(read)}"] if read else []
    for split, count in summary.images.items():
        labels = ", ".join(f"{kind} {files}" for kind, files in summary.labels[split].items()) or "none"
        ignored = f"; {summary.ignored[split]:.1%} of their pixels ignored" if summary.labels[split] else ""
        lines.append(f"  {split}: {count} images; labels: {labels}{ignored}")
    if summary.repeats:
        repeats = f"{summary.repeats} more line(s) for {summary.splits[0]} repeat images"
        lines.append(f"  {repeats}: training reads all lines")
    sizes = ", ".join(f"{size} ({count})" for size, count in list(summary.sizes.items())[:NUM_SIZES]) or "none"
    more = len(summary.sizes) - NUM_SIZES
    lines.append(f"  sizes: {sizes}" + (f", and {more} more" if more > 0 else ""))
    source = "as given" if summary.num_classes_given else "inferred from the labels: check it"
    source = f"named by {summary.class_file}" if summary.class_file else source
    if not any(sum(row.pixels.values()) for row in summary.classes):
        lines.append("  classes: no label has a pixel with a class number")
        return [*lines, *(f"  {note}" for note in summary.notes), "", *_finding_lines(findings)]
    lines.append(f"  classes: --numclasses {summary.num_classes} ({source})")
    if any(re.fullmatch("#[0-9a-f]{6}", row.name) for row in summary.classes):
        rename = f"to rename them, edit the first word of each line of {summary.class_file}"
        lines.append(f"  classes are named by colour: {rename}")
    lines += [f"  {note}" for note in summary.notes]
    return [*lines, *_class_table(summary), *_stroke_lines(summary), "", *_finding_lines(findings)]


def _class_table(summary: Summary) -> list[str]:
    """Return a text table as lines, one row per class.

    The columns are, for each split, the share of the labelled pixels and the number of images with the class.
    """
    totals = {split: max(sum(row.pixels[split] for row in summary.classes), 1) for split in summary.images}
    table = [["class", "name", *sum(((f"{split} pixels", "images") for split in totals), ())]]
    for row in summary.classes:
        counts = [(f"{row.pixels[split] / total:.2%}", str(row.images[split])) for split, total in totals.items()]
        table.append([str(row.number), row.name, *sum(counts, ())])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    alignments = "><".ljust(len(widths), ">")  # "<": the name
    return ["  " + "  ".join(map("{:{}{}}".format, row, alignments, widths)).rstrip() for row in table]


def _stroke_lines(summary: Summary) -> list[str]:
    """Return lines on classes whose shares in strokes and masks differ by a factor of 2, or that are often skipped."""
    train, val = summary.splits
    if not (summary.has_strokes and summary.images.get(train) and summary.images.get(val)):
        return []
    totals, ratios, skipped = [sum(row.pixels[split] for row in summary.classes) for split in (train, val)], [], []
    for row in summary.classes:
        drawn, shown = (row.images[split] / summary.images[split] for split in (train, val))
        ratio = row.pixels[train] * totals[1] / max(row.pixels[val] * totals[0], 1)
        name = f"class {row.name}" if row.name == str(row.number) else row.name
        ratios += [f"{name} {ratio:.1f}"] if drawn and shown and not 0.5 < ratio < 2 else []
        skipped += [f"{name} {drawn:.0%} / {shown:.0%}"] if 0 < drawn < shown / 2 else []
    lines = [(f"share of the strokes / share of the pixels in {val}", ratios, "for information")]
    lines += [(f"images with a stroke in {train} / images that show it in {val}", skipped, "draw more of these")]
    return [f"  {what}: {', '.join(named)}: {do}" for what, named, do in lines if named]


def _finding_lines(findings: Findings) -> list[str]:
    """Return lines of text with each finding, its remedy and its first NUM_EXAMPLES files, errors first."""
    items = findings.sorted()
    if not items:
        return ["nothing wrong found"]
    errors = sum(finding.severity == "error" for finding in items)
    lines = [f"{errors} kind(s) of error, {len(items) - errors} of warning"]
    for finding in items:
        count = len(finding.files)
        lines.append(f"{finding.severity:7} {finding.code} ({count}): {finding.what}")
        lines.append(f"        to do: {finding.do}")
        for file, note in list(zip(finding.files, finding.notes, strict=True))[:NUM_EXAMPLES]:
            lines.append(shortened(f"          {file}" + (f": {note}" if note else ""), 500))
        if count > NUM_EXAMPLES:
            lines.append(f"          and {count - NUM_EXAMPLES} more (--json lists all)")
    return lines
