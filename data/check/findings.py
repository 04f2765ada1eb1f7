"""What can be wrong with a data set: each finding has a code that does not change, a severity, and what to do."""

from dataclasses import dataclass, field

from data.layout import ADE20K, CITYSCAPES

ERROR, WARNING = "error", "warning"  # error: training would stop, or go or be scored wrong

# code: (severity, what is wrong, what to do)
CATALOG = {
    # Where files lie
    "split-missing": (ERROR, "no such split", "make its folders or its list; training needs train and val"),
    "listed-image-missing": (ERROR, "a list names an image that is not there", "add the image, or take the name off the list"),
    "image-without-label": (ERROR, "an image of a split has no label", "add the label, or take the image out of the split"),
    "cityscapes-names": (ERROR, "an image and its label have the different names of Cityscapes", CITYSCAPES),
    "two-files-of-one-name": (ERROR, "two files differ only in their suffix", "remove or rename one"),
    "in-two-splits": (ERROR, "one image is in two splits", "take it out of one: a score on training images means nothing"),
    "listed-twice": (WARNING, "a list names an image more than once", "keep one line, unless it is to count more"),
    "label-without-image": (WARNING, "a label has no image", "add the image; until then the label is not used"),
    "not-listed": (WARNING, "an image with a label is in no list", "add it to a list if it is to be used"),
    # Files
    "image-unreadable": (ERROR, "an image is truncated, or none", "replace it"),
    "label-unreadable": (ERROR, "a label is truncated, or no image", "replace it"),
    "size-mismatch": (ERROR, "a label has another size than its image", "resize the label (nearest neighbour), or find the right one"),
    "exif-rotated": (
        ERROR, "EXIF turns the image, but its label has the size before turning",
        "turn the label as well, or write the image turned and without the EXIF orientation",
    ),
    "exif-turned": (
        WARNING, "EXIF turns or flips the image, and its label's size cannot tell whether it is turned, too",
        "look at one pair; write the images without EXIF orientation to be sure",
    ),
    "image-16-bit": (ERROR, "an image has more than 8 bits a channel", "convert it to 8 bits with the scaling that suits it"),
    "image-cmyk": (WARNING, "an image is CMYK: its colours as RGB are a guess", "convert it to RGB with its colour profile"),
    "image-transparent": (WARNING, "an image has transparent pixels: the transparency is dropped", "flatten it on the background you want"),
    "image-grey": (WARNING, "an image is grey where others have colour", "check that it belongs to the data set"),
    "image-small": (WARNING, "an image is very small", "check that it is no thumbnail; it is padded to --crop_size"),
    "image-huge": (WARNING, "an image is very large: slow to decode, and most of it is cropped away", "cut it into tiles"),
    "sizes-differ": (WARNING, "images differ widely in size", "bring objects to a similar scale, or crops will show very different things"),
    # Labels
    "mask-colour": (
        ERROR, "a label has colours in place of class numbers",
        "write the class number of each colour to a grey or palette PNG",
    ),
    "mask-mode": (ERROR, "a label is no image of one 8-bit channel", "save class numbers as a grey or palette PNG"),
    "mask-lossy": (ERROR, "a label is a JPEG or lossy WebP, which changes values", "export it again as PNG; converting does not bring values back"),
    "label-out-of-range": (
        ERROR, "a label value is no class number",
        "correct the labels, or raise --numclasses (with --classes, add names to its file); 255 is for ignored pixels; where 0 is "
        "no class, subtract 1 from each label, so that 0 becomes 255",
    ),
    "ade20k-labels": (ERROR, "labels have ADE20K's values 0..150, of which 1..150 are its classes", ADE20K),
    "label-odd-value": (
        ERROR, "a label value lies far above the others", "correct the labels: classes count from 0, and 255 is for ignored pixels; else give --numclasses",
    ),
    "label-binary-255": (
        ERROR, "labels have only 0 and 255, and 255 is ignored: nothing but class 0 would be learnt",
        "write 1 in place of 255",
    ),
    "class-file": (WARNING, "classes.txt is not used", "write one class a line, or name another file by --classes"),
    "class-absent": (WARNING, "a class is in no label", "check that classes count from 0 without gaps, and --numclasses"),
    "class-only-in-val": (WARNING, "a class is in val, but in no training label", "move images with it to train: it cannot be learnt"),
    "mask-empty": (WARNING, "a mask is ignored everywhere (255)", "label it, or take it out of the split"),
    "scribble-empty": (WARNING, "a scribble has no stroke", "draw one, or take it out of the split"),
    "pseudo-empty": (WARNING, "a pseudo-label is ignored everywhere (255)", "make it again, or take it out of the split"),
    "mask-one-class": (WARNING, "a mask has one class only", "check that it is not an empty export"),
    "scribble-lacks-class": (WARNING, "the mask has a class that the scribble has no stroke of", "draw a stroke on each class of the image"),
    "scribble-contradicts-mask": (WARNING, "many stroke pixels have another class in the mask", "correct the scribble or the mask"),
    "pseudo-disagrees": (WARNING, "the pseudo-label has another class than the mask on most pixels", "check how it was made, and that the files belong together"),
    # Duplicates
    "duplicate-across-splits": (ERROR, "the same picture is in two splits under two names", "remove it from one: a score on training images means nothing"),
    "duplicate": (WARNING, "the same picture is in a split more than once", "keep one"),
    "near-duplicate": (WARNING, "nearly the same picture is in two splits", "look at them: frames of one video or crops of one photo belong in one split"),
}  # fmt: skip


@dataclass
class Finding:
    """count: how many cases there are. files: of each case, its file below the root; notes: what is said of it."""

    code: str
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def severity(self) -> str:
        return CATALOG[self.code][0]

    @property
    def what(self) -> str:
        return CATALOG[self.code][1]

    @property
    def advice(self) -> str:
        return CATALOG[self.code][2]

    @property
    def count(self) -> int:
        return len(self.files)


class Findings:
    """All findings, by code."""

    def __init__(self) -> None:
        self._found: dict[str, Finding] = {}

    def add(self, code: str, file: str, note: str = "") -> None:
        """One more case of `code`, at a file (or folder, or split), and what is particular to it."""
        assert code in CATALOG, code
        finding = self._found.setdefault(code, Finding(code))
        finding.files.append(file)
        finding.notes.append(note)

    def sorted(self) -> list[Finding]:
        """Errors first, each group in the catalog's order."""
        return [
            self._found[code]
            for rank in (ERROR, WARNING)
            for code in CATALOG
            if code in self._found and CATALOG[code][0] == rank
        ]

    @property
    def status(self) -> int:
        """Exit status: 0 clean, 1 warnings, 2 errors."""
        return max((2 if finding.severity == ERROR else 1 for finding in self._found.values()), default=0)
