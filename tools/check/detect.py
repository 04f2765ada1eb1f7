"""Apply the rules of the data check: turn the facts about each sample into findings."""

import itertools
import re
from collections import defaultdict

from data.classes import Classes
from data.label_check import VALUE_JUMP, objects_as_255
from support.labels import IGNORE
from tools.check.counts import Counts
from tools.check.facts import FileFacts, LabelFacts, Sample, first_six
from tools.check.rules import DENSE_STROKES, FEW, Findings

GREYS = {f"#{bytes([value] * 3).hex()}": value for value in range(256)}


def find_faults(samples: list[Sample], classes: Classes, findings: Findings) -> None:
    """Add all findings about the files of the samples."""
    numbers = reversed(range(len(classes.names)))  # of two classes of one colour, the first one counts
    colours = {f"#{bytes(classes.colours[number]).hex()}": number for number in numbers}
    by_kind: dict[str, list[LabelFacts]] = defaultdict(list)
    for kind, label in (item for sample in samples for item in sample.labels.items()):
        by_kind[kind].append(label)
    numbered = {kind: _class_numbers(labels, set(colours)) for kind, labels in by_kind.items()}
    for sample in samples:
        for file in (sample.image, *sample.labels.values()):
            for code, note in file.problems:
                findings.add(code, file.path, note)
        for kind, label in sample.labels.items():
            _check_values(label, len(classes.names), colours, numbered[kind], findings)
            if sample.image.is_readable and label.is_readable:
                _check_size(label, sample.image, findings)
    masks = by_kind["mask"]
    is_binary = objects_as_255([mask.values for mask in masks])
    for mask in (mask for mask, chosen in zip(masks, is_binary, strict=True) if chosen):
        note = f"{mask.values[IGNORE] / sum(mask.values.values()):.1%} of its pixels are 255"
        findings.add("label-binary-255", mask.path, f"{note}; {sum(is_binary) / len(masks):.0%} of the masks are so")
    _check_palettes(masks, numbered.get("mask"), findings)
    _check_duplicates(samples, findings)


def _class_numbers(labels: list[LabelFacts], known: set[str]) -> LabelFacts | None:
    """Return a label that holds class numbers in grey, if there is one: a conversion would read them as colours.

    A grey among the colours of classes, `known`, or of other labels is none: a picture of black and white alone may
    belong to masks in colours. In several channels, greys up to VALUE_JUMP are numbers, since nobody paints with them.
    """
    colours = known.union(*(label.colours for label in labels if not label.colours.keys() <= GREYS.keys()))
    painted = {0, *(GREYS[colour] for colour in colours & GREYS.keys())}
    for label in labels:
        greys = {GREYS[colour] for colour in label.colours} if label.colours.keys() <= GREYS.keys() else set()
        used = {value: label.palette.get(value, "") for value in label.values}
        greys |= {value for value, colour in used.items() if GREYS.get(colour) == value or not label.palette}
        if any(value not in painted and (value <= VALUE_JUMP or not label.is_rgb) for value in greys):
            return label
    return None


def _check_values(
    label: LabelFacts, num_classes: int, colours: dict[str, int], numbers: LabelFacts | None, findings: Findings
) -> None:
    """Add a finding about a label in colours, or with values that are no class numbers.

    colours: {"#rrggbb": class number}, to name the classes of a label in colours. numbers: as _class_numbers().
    """
    if label.colours:
        shown = first_six([f"{name} = class {colours[name]}" if name in colours else name for name in label.colours])
        _add_colours("mask-colour", label, f"{len(label.colours)} colour(s): {shown}", numbers, findings)
    if bad := sorted(value for value in label.classes if not 0 <= value < num_classes):
        pixels = sum(label.values[value] for value in bad)
        note = f"{first_six(bad)} in {pixels} pixel(s); classes are 0..{num_classes - 1}"
        findings.add("label-out-of-range", label.path, note)


def _add_colours(code: str, label: LabelFacts, note: str, numbers: LabelFacts | None, findings: Findings) -> None:
    """Add the finding `code` about a label in colours, or "mask-mixed" beside a label of class numbers, `numbers`."""
    mixed = f"; class numbers in {findings.show(numbers.path)}" if numbers else ""
    findings.add("mask-mixed" if numbers else code, label.path, note + mixed)


def _check_size(label: LabelFacts, image: FileFacts, findings: Findings) -> None:
    (height, width), (image_height, image_width) = label.size, image.size
    if label.size != image.size:
        is_turned = label.size == image.size[::-1] and max(label.turn, image.turn) > 4
        turned = "; does EXIF turn one of them?" if is_turned else ""
        note = f"{width}x{height}, but its image {image_width}x{image_height}{turned}"
        findings.add("size-mismatch", label.path, note)
    elif label.turn != image.turn and ((label.turn > 4) == (image.turn > 4) or height == width):
        findings.add("exif-turns-one", label.path, f"orientation {label.turn}, but its image {image.turn}")


def _check_palettes(masks: list[LabelFacts], numbers: LabelFacts | None, findings: Findings) -> None:
    """Add a finding about each palette mask in which a class number has another colour than in a mask before it."""
    first: dict[int, LabelFacts] = {}
    for mask in masks:
        for value, colour in mask.palette.items():
            other = first.setdefault(value, mask)
            if other.palette[value] != colour:
                note = f"{value} is {colour}, but {other.palette[value]} in {findings.show(other.path)}"
                _add_colours("palette-differs", mask, note, numbers, findings)
                break


def _check_duplicates(samples: list[Sample], findings: Findings) -> None:
    """Add a finding for each group of images with the same pixels in several splits."""
    same = defaultdict(list)
    for sample in samples:
        if sample.image.sha:
            same[sample.image.sha].append(sample)
    for items in same.values():
        if len(items) > 1 and len({split for item in items for split in item.splits}) > 1:
            first, *others = (item.image.path for item in items)
            findings.add("duplicate-across-splits", first, f"is {', '.join(map(findings.show, others))}")


def check_classes(counts: Counts, findings: Findings) -> None:
    """Add findings about splits and classes without a labelled pixel, classes that only val has, and dense strokes."""
    for split in counts.splits:
        if counts.ignored.get(split) == 1:
            findings.add("nothing-labelled", split)
    if not any(any(row.pixels.values()) for row in counts.classes):
        return  # no label could be read: other findings say why
    train, val = counts.splits
    has_labels = any(row.pixels.get(train) for row in counts.classes)
    for row in counts.classes:
        label = f"class {row.number}" + (f" ({row.name})" if row.name != str(row.number) else "")
        if not any(row.pixels.values()):
            findings.add("class-absent", label)
        elif row.pixels.get(val) and row.pixels.get(train) == 0 and has_labels:
            findings.add("class-only-in-val", label, f"in {row.images[val]} image(s)")
    images = {row.name: sum(row.images.values()) for row in counts.classes}
    for rare, usual in itertools.permutations(images, 2):
        if 0 < FEW * images[rare] <= images[usual] and _is_slip(rare, usual):
            findings.add("class-alike", f"class {rare}", f"in {images[rare]} image(s), {usual} in {images[usual]}")
    present = [row.name for row in counts.classes if row.pixels.get(train)]
    if len(present) == 1 and "pseudo" not in counts.labels[train]:
        findings.add("one-class", train, f"class {present[0]}")
    labelled = 1 - counts.ignored.get(train, 1)
    if counts.has_strokes and has_labels and labelled > DENSE_STROKES:
        findings.add("strokes-dense", train, f"{labelled:.0%} of the pixels are labelled")


def _is_slip(one: str, other: str) -> bool:
    """Return whether names differ by one letter at most, whatever its case: one is left out, added or another.

    Classes may be told apart by a number, as in "lane 1", or by a letter that is a word, as in "class a".
    """
    short, long = sorted((one.casefold(), other.casefold()), key=len)
    at = next((at for at, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    replaced = int(len(short) == len(long))
    differing = short[at : at + replaced] + long[at : at + 1]
    is_number = any(map(str.isdigit, differing))
    is_word = re.search(r"[^\W_]", long[max(at - 1, 0) : at] + long[at + 1 : at + 2]) is None
    return len(short) > 2 and short[at + replaced :] == long[at + 1 :] and not is_number and not is_word
