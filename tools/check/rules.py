"""The rules of the data check: from the facts about each sample to findings."""

from collections import defaultdict

from data.classes import Classes
from support.labels import IGNORE
from tools.check.findings import Findings, class_label
from tools.check.measure import Facts, ImageFacts, LabelFacts

SMALL_SIDE = 32  # pixels
VALUE_JUMP = 32  # a label value this far above the next lower one is not a class number
MAX_CONTRADICTING = 0.05  # share of a scribble's pixels
MIN_AGREEING = 0.5  # share of a pseudo-label's pixels
MANY_IMAGES = 100  # from here on, a class with strokes in few of them is worth a look
FEW_STROKED = 0.01  # share of the images


def find_faults(facts: list[Facts], classes: Classes, inferred: bool, class_file: str, findings: Findings) -> None:
    """Add all findings about the files of the samples. The arguments are those of the functions below."""
    numbers = reversed(range(len(classes.names)))  # of two classes of one colour, the first one counts
    colours = {f"#{bytes(classes.colours[number]).hex()}": number for number in numbers}
    check_images(facts, findings)
    check_labels(facts, colours, findings)
    check_palettes(facts, findings)
    check_values(facts, len(classes.names), inferred, class_file, findings)
    check_agreement(facts, findings)
    check_strokes(facts, classes.names, findings)
    check_duplicates(facts, findings)


def check_images(facts: list[Facts], findings: Findings) -> None:
    """Add findings about unreadable images, small ones, and labels whose size differs from the image's."""
    for image, labels in ((item.image, item.labels.values()) for item in facts):
        if image.fault:
            findings.add("image-unreadable", image.path, image.fault)
            continue
        if min(image.size) < SMALL_SIDE:
            findings.add("image-small", image.path, f"{image.size[1]}x{image.size[0]}, mode {image.mode}")
        for label in labels:
            if not label.fault:
                _check_size(image, label, findings)


def check_duplicates(facts: list[Facts], findings: Findings) -> None:
    """Add a finding for each group of images with the same pixels."""
    same = defaultdict(list)
    for item in facts:
        if item.image.sha:
            same[item.image.sha].append(item)
    for items in same.values():
        if len(items) > 1:
            splits = {split for item in items for split in item.splits}
            first, *others = (item.image.path for item in items)
            code = "duplicate-across-splits" if len(splits) > 1 else "duplicate"
            findings.add(code, first, f"is {', '.join(map(findings.show, others))}")


def _check_size(image: ImageFacts, label: LabelFacts, findings: Findings) -> None:
    rotated = 5 <= image.orientation <= 8  # by 90 degrees, which swaps height and width; 2 to 4 keep them
    if label.size != image.size:
        (height, width), (image_height, image_width) = label.size, image.size
        code = "exif-rotated" if rotated and label.size == image.size[::-1] else "size-mismatch"
        findings.add(code, label.path, f"{width}x{height}, but its image {image_width}x{image_height}")
    elif 2 <= image.orientation <= 8 and (not rotated or image.size[0] == image.size[1]):
        findings.add("exif-turned", label.path, f"orientation {image.orientation}")


def check_labels(facts: list[Facts], colours: dict[str, int], findings: Findings) -> None:
    """Add findings about each label file by itself: unreadable, lossy, in colours, without any class, or with only one.

    colours: {"#rrggbb": class number}, to name the classes of a label in colours.
    """
    for kind, label in ((kind, label) for item in facts for kind, label in item.labels.items()):
        if label.fault:
            findings.add("label-unreadable", label.path, label.fault)
        elif label.lossy:
            findings.add("mask-lossy", label.path)
        elif label.colours:
            known = {colour: f"{colour} = class {colours[colour]}" for colour in label.colours if colour in colours}
            shown = _first_six([known.get(colour, colour) for colour in label.colours])
            findings.add("mask-colour", label.path, f"{len(label.colours)} colour(s): {shown}")
        elif label.unlisted:
            note = f"{_first_six(list(label.unlisted))} in {sum(label.unlisted.values())} pixel(s)"
            findings.add("label-not-listed", label.path, note)
        elif not label.values:
            findings.add("mask-mode", label.path, f"mode {label.mode}")
        elif not label.classes:
            findings.add(f"{kind}-empty", label.path)
        elif kind == "mask" and len(label.classes) == 1 and set(label.values) != {0, IGNORE}:
            findings.add("mask-one-class", label.path, f"class {min(label.classes)}")


def check_palettes(facts: list[Facts], findings: Findings) -> None:
    """Add a finding about each palette mask in which a class number has another colour than in a mask before it."""
    first: dict[int, LabelFacts] = {}
    for mask in (item.labels["mask"] for item in facts if "mask" in item.labels):
        for value, colour in mask.palette.items():
            other = first.setdefault(value, mask)
            if other.palette[value] != colour:
                shown = findings.show(other.path)
                findings.add(
                    "palette-differs", mask.path, f"{value} is {colour}, but {other.palette[value]} in {shown}"
                )
                break


def infer_num_classes(facts: list[Facts]) -> int:
    """Return the number of classes, 2 to 255: the highest label value plus 1.

    A value more than VALUE_JUMP above the next lower one, and all values above it, do not count.
    """
    highest = 0
    for value in sorted({value for item in facts for label in item.labels.values() for value in label.classes}):
        if value - highest > VALUE_JUMP:
            break
        highest = max(highest, value)
    return min(max(highest + 1, 2), 255)


def check_values(facts: list[Facts], num_classes: int, inferred: bool, class_file: str, findings: Findings) -> None:
    """Add findings about label values that are no class numbers, masks with only 0 and 255, and ADE20K's labels.

    inferred: whether num_classes was inferred from the labels. class_file: preset or file of the class names, "" for
    none.
    """
    masks = [item.labels["mask"] for item in facts if "mask" in item.labels]
    values = {value for mask in masks for value in mask.values}
    if values == {0, IGNORE}:
        for mask in masks:
            if IGNORE in mask.values:
                findings.add("label-binary-255", mask.path)
    classes = values - {IGNORE}
    if max(classes, default=0) == 150 if class_file == "ade20k" else not class_file and classes == set(range(151)):
        for mask in masks:
            findings.add("ade20k-labels", mask.path)
        return
    for label in (label for item in facts for label in item.labels.values()):
        bad = sorted(value for value in label.classes if not 0 <= value < num_classes)
        if bad:
            pixels = sum(label.values[value] for value in bad)
            note = f"{_first_six(bad)} in {pixels} pixel(s); classes are 0..{num_classes - 1}"
            findings.add("label-odd-value" if inferred else "label-out-of-range", label.path, note)


def check_agreement(facts: list[Facts], findings: Findings) -> None:
    """Add findings about scribbles and pseudo-labels that disagree with the image's dense mask, if it has one."""
    for item in facts:
        if "scribble" in item.agreement and item.labels["scribble"].classes:
            lacking = sorted(item.labels["mask"].classes - item.labels["scribble"].classes)
            if lacking:
                note = f"class {', '.join(map(str, lacking))}"
                findings.add("scribble-lacks-class", item.labels["scribble"].path, note)
        for kind, code, most in (
            ("scribble", "scribble-contradicts-mask", MAX_CONTRADICTING),
            ("pseudo", "pseudo-disagrees", 1 - MIN_AGREEING),
        ):
            both, equal = item.agreement.get(kind, (0, 0))
            if both and 1 - equal / both > most:
                findings.add(code, item.labels[kind].path, f"{1 - equal / both:.0%} of {both} pixels")


def check_strokes(facts: list[Facts], names: list[str], findings: Findings) -> None:
    """Add a finding about each class that has no stroke in images that show it.

    The masks say which images do. Without any mask of a scribbled image, a class with strokes in very few of many
    images is named. names: of the classes.
    """
    scribbled = [item for item in facts if "scribble" in item.labels and item.labels["scribble"].classes]
    compared = [item for item in scribbled if "scribble" in item.agreement]
    for number, name in enumerate(names):
        stroked = [number in item.labels["scribble"].classes for item in (compared or scribbled)]
        shown = [not compared or number in item.labels["mask"].classes for item in (compared or scribbled)]
        lacking = sum(here and not stroke for here, stroke in zip(shown, stroked, strict=True))
        if compared and lacking:
            findings.add(
                "class-without-stroke", class_label(number, name), f"in {lacking} of {sum(shown)} images with it"
            )
        elif not compared and len(scribbled) >= MANY_IMAGES and 0 < sum(stroked) < FEW_STROKED * len(scribbled):
            note = f"strokes in {sum(stroked)} of {len(scribbled)} images, which have no masks to compare with"
            findings.add("class-without-stroke", class_label(number, name), note)


def _first_six(items: list) -> str:
    return ", ".join(map(str, items[:6])) + (", ..." if len(items) > 6 else "")
