"""Sum up a data set in numbers."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from support.labels import IGNORE
from tools.check.facts import Sample
from tools.check.files import required_labels
from tools.convert.hidden_colours import HIDDEN


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
class Counts:
    """A data set in numbers; fill_in() fills in the fields with defaults.

    images: {split: number}. labels: {split: {"mask", "scribble" or "pseudo": number of files}}. sizes: {"WIDTHxHEIGHT":
    number of images}, most frequent first. train_sizes: the same of the training split alone. ignored: {split: share of
    label pixels that are 255}.
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
    flags: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    splits: tuple[str, str] = ("train", "val")
    images: dict[str, int] = field(default_factory=dict)
    labels: dict[str, dict[str, int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    train_sizes: dict[str, int] = field(default_factory=dict)
    ignored: dict[str, float] = field(default_factory=dict)
    classes: list[ClassRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def has_strokes(self) -> bool:
        """Whether training reads strokes."""
        return required_labels(self.dataset, is_train=True)[0] == "scribble"

    def fill_in(self, facts: list[Sample], splits: list[str], names: list[str]) -> None:
        """Fill in all counts from the facts about each sample. splits, names: the names of the splits and classes."""
        labels = [(item.image.turn, label.turn) for item in facts for label in item.labels.values()]
        if turned := sum(image != 1 and label == 1 for image, label in labels):
            self.notes.append(f"EXIF rotates {turned} image(s) but not their labels, which must fit the rotated images")
        if hidden := sum(label.is_hidden for item in facts for label in item.labels.values()):
            self.notes.append(f"{hidden} mask(s) have {HIDDEN}")
        masks = [set(item.labels["mask"].values) for item in facts if "mask" in item.labels]
        if any(mask - {0, IGNORE} for mask in masks) and (few := masks.count({0, IGNORE})):
            self.notes.append(f"{few} of {len(masks)} masks hold only 0 and 255 (ignored): is 255 an object there?")
        self.sizes = _count_sizes(facts)
        self.train_sizes = _count_sizes([item for item in facts if self.splits[0] in item.splits])
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


def _count_sizes(facts: list[Sample]) -> dict[str, int]:
    """Return {"WIDTHxHEIGHT": number of images}, most frequent first."""
    sizes = Counter("{1}x{0}".format(*item.image.size) for item in facts if item.image.is_readable)
    return dict(sizes.most_common())
