"""From what was measured of each sample to findings: the rules of the data doctor."""

from collections.abc import Callable
from pathlib import Path

from data.check.findings import Findings
from data.check.measure import Facts, ImageFacts, LabelFacts
from labels import IGNORE

SMALL_SIDE = 32  # pixels
HUGE_AREA = 50_000_000  # pixels
SIDE_RATIO = 4  # of the largest image's long side to the smallest's
VALUE_JUMP = 32  # a label value that much above the next lower one is no class number
MAX_CONTRADICTING = 0.05  # share of a scribble's pixels
MIN_AGREEING = 0.5  # share of a pseudo-label's pixels

Show = Callable[[Path], str]


def check_images(facts: list[Facts], show: Show, findings: Findings) -> None:
    """Modes, sizes and faults of the images, and of their labels against them."""
    modes = {item.image.mode for item in facts if item.image.sha}
    grey = {"1", "L", "LA"}
    for item in facts:
        image, file = item.image, show(item.sample.image)
        if image.fault:
            findings.add("image-unreadable", file, image.fault.removeprefix(f"{item.sample.image}: "))
            continue
        if image.mode.startswith(("I", "F")):
            findings.add("image-16-bit", file, f"mode {image.mode}")
        if image.mode == "CMYK":
            findings.add("image-cmyk", file)
        if image.transparent:
            findings.add("image-transparent", file, f"mode {image.mode}")
        if image.mode in grey and not modes <= grey:
            findings.add("image-grey", file, f"mode {image.mode}")
        height, width = image.size
        if min(image.size) < SMALL_SIDE:
            findings.add("image-small", file, f"{width}x{height}")
        if height * width > HUGE_AREA:
            findings.add("image-huge", file, f"{width}x{height}")
        for kind, label in item.labels.items():
            _check_size(image, label, show(item.sample.labels[kind]), findings)
    _check_spread(facts, show, findings)


def _check_size(image: ImageFacts, label: LabelFacts, file: str, findings: Findings) -> None:
    if label.fault:
        return
    turned, (height, width) = image.orientation in range(2, 9), image.size
    swapped = image.orientation in range(5, 9)
    if label.size != image.size:
        code = "exif-rotated" if swapped and label.size == image.size[::-1] else "size-mismatch"
        findings.add(code, file, f"{label.size[1]}x{label.size[0]}, its image {width}x{height}")
    elif turned and (not swapped or height == width):
        findings.add("exif-turned", file, f"orientation {image.orientation}")


def _check_spread(facts: list[Facts], show: Show, findings: Findings) -> None:
    sized = [(max(item.image.size), item) for item in facts if item.image.sha]
    if not sized:
        return
    (least, small), (most, large) = min(sized, key=lambda pair: pair[0]), max(sized, key=lambda pair: pair[0])
    if most > SIDE_RATIO * least:
        note = f"long side {least}, that of {show(large.sample.image)} {most}"
        findings.add("sizes-differ", show(small.sample.image), note)


def check_labels(facts: list[Facts], show: Show, colours: dict[str, int], findings: Findings) -> None:
    """Each label by itself: readable, class numbers, not lossy, not empty. colours: {"#RRGGBB": class}, for a hint."""
    for item in facts:
        for kind, label in item.labels.items():
            file = show(item.sample.labels[kind])
            if label.fault:
                findings.add("label-unreadable", file, label.fault.removeprefix(f"{item.sample.labels[kind]}: "))
                continue
            if label.lossy:
                findings.add("mask-lossy", file)
            elif label.colours:
                findings.add("mask-colour", file, _describe_colours(label.colours, colours))
            elif not label.values:
                findings.add("mask-mode", file, f"mode {label.mode}")
            elif not label.classes:
                findings.add(f"{kind}-empty", file)
            elif kind == "mask" and len(label.classes) == 1 and set(label.values) != {0, IGNORE}:
                findings.add("mask-one-class", file, f"class {min(label.classes)}")


def _describe_colours(found: dict[str, int], known: dict[str, int]) -> str:
    shown = [f"{colour}{f' = class {known[colour]}' if colour in known else ''}" for colour in list(found)[:6]]
    return f"{len(found)} colour(s): {', '.join(shown)}{', ...' if len(found) > 6 else ''}"


def infer_num_classes(facts: list[Facts]) -> int:
    """The number of classes: values count up to the first jump of more than VALUE_JUMP. 2 to 255."""
    values = sorted({value for item in facts for label in item.labels.values() for value in label.classes})
    highest = 0
    for value in values:
        if value - highest > VALUE_JUMP:
            break
        highest = max(highest, value)
    return min(max(highest + 1, 2), 255)


def check_values(
    facts: list[Facts], num_classes: int, given: bool, classes: str, show: Show, findings: Findings
) -> None:
    """Find label values that are no class numbers, masks that hold only 0 and 255, and ADE20K's labels as released.

    given: whether the user gave num_classes. classes: the preset or file of the class names, "" for none.
    """
    masks = [(show(item.sample.labels["mask"]), item.labels["mask"]) for item in facts if "mask" in item.labels]
    values = {value for _, mask in masks for value in mask.values}
    if values == {0, IGNORE}:
        for file, mask in masks:
            if IGNORE in mask.values:
                findings.add("label-binary-255", file)
    found = values - {IGNORE}
    if (classes == "ade20k" and max(found, default=0) == 150) or (not classes and found == set(range(151))):
        for file, _ in masks:
            findings.add("ade20k-labels", file)
        return
    for item in facts:
        for kind, label in item.labels.items():
            bad = sorted(value for value in label.classes if not 0 <= value < num_classes)
            if bad:
                shown = ", ".join(map(str, bad[:6])) + (", ..." if len(bad) > 6 else "")
                note = (
                    f"{shown} in {sum(label.values[value] for value in bad)} pixel(s); classes are 0..{num_classes - 1}"
                )
                findings.add("label-out-of-range" if given else "label-odd-value", show(item.sample.labels[kind]), note)


def check_agreement(facts: list[Facts], show: Show, findings: Findings) -> None:
    """Scribbles and pseudo-labels against the dense masks, where an image has both."""
    for item in facts:
        mask, scribble = item.labels.get("mask"), item.labels.get("scribble")
        if mask and scribble and "scribble" in item.agreement and scribble.classes:
            lacking = sorted(mask.classes - scribble.classes)
            if lacking:
                note = f"class {', '.join(map(str, lacking))}"
                findings.add("scribble-lacks-class", show(item.sample.labels["scribble"]), note)
        for kind, (both, equal) in item.agreement.items():
            differing = 1 - equal / both if both else 0.0
            if kind == "scribble" and differing > MAX_CONTRADICTING:
                code = "scribble-contradicts-mask"
            elif kind == "pseudo" and differing > 1 - MIN_AGREEING:
                code = "pseudo-disagrees"
            else:
                continue
            findings.add(code, show(item.sample.labels[kind]), f"{differing:.0%} of {both} pixels")
