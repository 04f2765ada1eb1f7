"""What can be wrong with a data set: each finding has a fixed code, a severity, and a remedy."""

from dataclasses import dataclass, field
from pathlib import Path

# Limits of the rules.
DENSE_STROKES = 0.5  # share of the labelled pixels: strokes label a few percent
UNEVEN = 2  # factor from which a class's share of the strokes is listed beside its share of the masks
FEW = 4  # a misspelt class is in so many times fewer images than the right one, at least

# {code: (what is wrong, what to do)}. Errors stop training, or make it or its scores wrong.
ERRORS = {
    "split-missing": ("no such split", "add its folders or its list; training needs train and val"),
    "listed-image-missing": ("a list names a missing image", "add the image, or remove the name from the list"),
    "listed-twice": ("a list for validation repeats a name", "keep one line: else the image counts more"),
    "no-split": ("images are not split into train and val", "divide them by python -m tools.split"),
    "image-without-label": (
        "an image has no label",
        "add the label (255 everywhere if it is not labelled yet), or remove the image from the split; if name "
        "endings differ: --image_suffix, --label_suffix",
    ),
    "two-files-of-one-name": ("two files differ only in their suffix", "remove or rename one"),
    "in-two-splits": ("an image is in two splits", "remove it from one: a score on training images means nothing"),
    "image-unreadable": ("an image cannot be read; the line of each file says why", "replace or convert it"),
    "label-unreadable": ("a label cannot be read; the line of each file says why", "replace or convert it"),
    "size-mismatch": ("a label and its image differ in size", "resize the label (nearest), or find the right one"),
    "mask-colour": ("a label has colours, not class numbers", "python -m tools.convert colours writes class numbers"),
    "mask-mixed": (
        "a label has colours, or a palette unlike another's, but labels hold class numbers in grey",
        "export it as class numbers in one channel, as those: python -m tools.convert colours would read those as "
        "colours",
    ),
    "palette-differs": (
        "a class number has different colours in two palette files, so it may mean two classes",
        "python -m tools.convert colours reads the colours; if the numbers are right, give them as a --label_map FILE",
    ),
    "mask-mode": ("a label does not have one 8-bit channel", "save class numbers as a grey or palette PNG"),
    "mask-lossy": (
        "a label's codec, made for photos, changes values",
        "export it as PNG again; if it shows one object, save it as a grey PNG and add --label_map threshold",
    ),
    "mask-frames": ("a label has several frames, of which one would be read", "save its class numbers as one image"),
    "label-out-of-range": (
        "a label value is not a class number",
        "correct the labels: classes count from 0, and 255 marks ignored pixels; else raise --numclasses (with "
        "--classes, add names to its file), or map the values to class numbers with --label_map FILE",
    ),
    "label-not-listed": (
        "a label value is not in the label map",
        "use a --label_map FILE that lists it; '* 255' ignores the rest",
    ),
    "label-binary-255": (
        "labels are only 0 and 255 (ignored): only class 0 is learnt from them",
        "use --label_map binary (reads 0/1, 0/255 and 1 bit); with more classes, export these masks again; if the "
        "data set has strokes, where 255 means no stroke, write the object as 1 in the masks",
    ),
    "nothing-labelled": ("every label of a split is 255 (ignored) everywhere", "label some pixels"),
    "duplicate-across-splits": ("two splits share a picture", "keep it in one, or scores are those of training images"),
}
WARNINGS = {
    "image-damaged": ("a JPEG has damaged data: colours may be wrong", "look at it: intact webcam images can show it"),
    "image-missing-values": (
        "an image has values that are NaN, infinite or marked as no data, which become 0 (black)",
        "give these pixels the label 255, so that they are ignored; or fill them",
    ),
    "image-of-one-value": ("all pixels of an image or a band have one value", "look at it; remove it if it is empty"),
    "image-frames": (
        "an image has several frames, of which only the first is read",
        "save the others, or use --bands",
    ),
    "left-out": ("files in unread formats, or links to parent folders, are skipped", "convert them; remove the links"),
    "exif-turns-one": ("EXIF turns an image or its label, not both; both ways fit", "compare them; save both upright"),
    "mask-smoothed": (
        "classes at borders lie between those of both sides, as bilinear resizing or JPEG leaves them",
        "export the masks again as PNG, or resize them by nearest neighbour",
    ),
    "one-class": ("the training labels hold a single class, so there is nothing to learn", "label a second class"),
    "class-absent": ("a class is in no label", "check that classes count from 0 without gaps, and --numclasses"),
    "class-alike": (
        "the name of a rare class is almost that of another",
        "if they are one class, correct the labels of these images, and convert again",
    ),
    "class-only-in-val": (
        "val has a class that no training label has",
        "label it in training images, or move images of it to train",
    ),
    "label-without-image": (
        "a label has no image, so training does not use it",
        "add the image as .jpg, .png, .bmp, .tif or .webp, or remove the label",
    ),
    "label-other-ending": (
        "an image has another label file, whose name ends otherwise, so training does not use it",
        "merge the labels of an image into one file, or choose others with --label_suffix",
    ),
    "strokes-dense": (
        "strokes label more than half of the pixels",
        "pixels without a stroke must be 255; dense masks belong in SegmentationClass, for --dataset Dense",
    ),
    "label-empty": (
        "a label is ignored everywhere (255)",
        "label something in it, remove it from the split, or keep it for tools.suggest",
    ),
}


@dataclass
class Finding:
    """All cases of one kind of problem, such as "label-unreadable".

    code, severity ("error" or "warning"), what (the problem) and do (the remedy) come from ERRORS or WARNINGS.
    files: the file of each case, relative to the data set's root, or its split or class. notes: details of each case.
    """

    code: str
    severity: str
    what: str
    do: str
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Findings:
    """The problems found in the data set in folder `root`, one Finding per code."""

    def __init__(self, root: Path):
        self.root = root
        self.repeats = 0  # of names in the training list, which are no fault
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
