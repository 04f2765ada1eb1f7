"""What can be wrong with a data set: each finding has a fixed code, a severity, and a remedy."""

from dataclasses import dataclass, field
from pathlib import Path

from data.released import ADE20K

# {code: (what is wrong, what to do)}. Errors stop training, or make it or its scores wrong.
ERRORS = {
    "split-missing": ("no such split", "add its folders or its list; training needs train and val"),
    "listed-image-missing": ("a list names a missing image", "add the image, or remove the name from the list"),
    "no-split": ("images are not split into train and val", "choose images for validation, by the command below"),
    "image-without-label": (
        "an image has no label",
        "add the label, or remove the image from the split; if name endings differ: --image_suffix, --label_suffix",
    ),
    "two-files-of-one-name": ("two files differ only in their suffix", "remove or rename one"),
    "in-two-splits": ("an image is in two splits", "remove it from one: a score on training images means nothing"),
    "image-unreadable": ("an image is truncated, or not an 8-bit image", "replace it, or convert it to 8-bit RGB"),
    "label-unreadable": ("a label is truncated or not an image", "replace it"),
    "size-mismatch": ("a label and its image differ in size", "resize the label (nearest), or find the right one"),
    "exif-rotated": ("EXIF rotates an image, not its label", "rotate the label too, or save the image upright"),
    "mask-colour": ("a label has colours, not class numbers", "python -m tools.convert colours writes class numbers"),
    "palette-differs": (
        "a class number has different colours in two palette files, so it may mean two classes",
        "python -m tools.convert colours reads the colours; if the numbers are right, give them as a --label_map FILE",
    ),
    "mask-mode": ("a label does not have one 8-bit channel", "save class numbers as a grey or palette PNG"),
    "mask-lossy": ("JPEG or lossy WebP changed a label's values", "export it again as PNG; converting it is too late"),
    "label-out-of-range": (
        "a label value is not a class number",
        "correct the labels, or raise --numclasses (with --classes, add names to its file); 255 marks ignored pixels; "
        "--label_map FILE maps the files' values to class numbers",
    ),
    "label-not-listed": (
        "a label value is not in the label map",
        "use a --label_map FILE that lists it; '* 255' ignores the rest",
    ),
    "ade20k-labels": (
        "labels have ADE20K's values 0..150, but only 1..150 are classes",
        "use " + " ".join(f"--{name} {ADE20K.flags[name]}" for name in ("label_map", "numclasses", "classes")),
    ),
    "label-odd-value": (
        "a label value lies far above the others",
        "correct the labels: classes count from 0, and 255 marks ignored pixels; else set --numclasses, or map the "
        "values to class numbers with --label_map FILE",
    ),
    "label-binary-255": ("labels are only 0 and 255 (ignored): only class 0 is learnt", "use --label_map binary"),
    "duplicate-across-splits": ("two splits share a picture", "keep it in one, or scores are those of training images"),
}
WARNINGS = {
    "listed-twice": ("a list names an image more than once", "keep one line, unless it should count more"),
    "label-without-image": ("a label has no image", "add the image; until then the label is unused"),
    "not-listed": ("an image with a label is in no list", "add it to a list to use it"),
    "exif-turned": (
        "EXIF rotates or flips an image, and its label's size does not show whether the label is rotated too",
        "look at one pair; to be sure, save the images without EXIF orientation",
    ),
    "image-small": ("an image is very small", "check that it is not a thumbnail; it is padded to --crop_size"),
    "class-file": ("classes.txt is not used", "write one class a line, or name another file with --classes"),
    "class-absent": ("a class is in no label", "check that classes count from 0 without gaps, and --numclasses"),
    "class-only-in-val": ("val has a class that no training label has", "move images with it to train to learn it"),
    "mask-empty": ("a mask is ignored everywhere (255)", "label it, or remove it from the split"),
    "scribble-empty": ("a scribble has no stroke", "draw one, or remove it from the split"),
    "pseudo-empty": ("a pseudo-label is ignored everywhere (255)", "make it again, or remove it from the split"),
    "mask-one-class": ("a mask has only one class", "check that it is not an empty export"),
    "class-without-stroke": (
        "a class has no stroke in some images",
        "draw a stroke on each class that an image shows: one without a stroke counts as absent from the image",
    ),
    "scribble-lacks-class": ("a scribble lacks a class of the mask", "draw a stroke on each class of the image"),
    "scribble-contradicts-mask": ("many stroke pixels have another class in the mask", "correct one of the two"),
    "pseudo-disagrees": ("most pixels differ between pseudo-label and mask", "check how it was made, and its image"),
    "duplicate": ("a split has the same picture more than once", "keep one"),
}


@dataclass
class Finding:
    """All cases of one kind of problem, such as "label-unreadable".

    code, severity ("error" or "warning"), what (the problem) and do (the remedy) come from ERRORS or WARNINGS.
    files: of each case, the file relative to the data set's root, the split or the class. notes: details of each case.
    """

    code: str
    severity: str
    what: str
    do: str
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.files)


def class_label(number: int, name: str) -> str:
    """Return "class NUMBER (NAME)", for Findings.add(); without the name if it is the number."""
    return f"class {number}" + (f" ({name})" if name != str(number) else "")


class Findings:
    """The problems found in the data set in folder `root`, one Finding per code."""

    def __init__(self, root: Path):
        self.root = root
        self._found: dict[str, Finding] = {}

    def add(self, code: str, where: Path | str, note: str = "") -> None:
        """Add a case of the problem `code`, a key of ERRORS or WARNINGS.

        where: the file, split or class concerned. note: details, as text.
        """
        severity, catalog = ("error", ERRORS) if code in ERRORS else ("warning", WARNINGS)
        finding = self._found.setdefault(code, Finding(code, severity, *catalog[code]))
        finding.files.append(where if isinstance(where, str) else self.show(where))
        finding.notes.append(note)

    def show(self, path: Path) -> str:
        """Return a path as text for the report: relative to the data set's root, or as it is if outside the root."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)

    def sorted(self) -> list[Finding]:
        """Return the findings as a list: errors, then warnings, each in the order of ERRORS or WARNINGS."""
        return [self._found[code] for code in (*ERRORS, *WARNINGS) if code in self._found]

    @property
    def status(self) -> int:
        """Return the exit status: 0 without findings, 1 with warnings only, 2 with errors."""
        return max((2 if finding.severity == "error" else 1 for finding in self._found.values()), default=0)
