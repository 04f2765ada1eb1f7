"""Measure the files of each sample. Each file is decoded once, by any process."""

import hashlib
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from data.images import LABEL_MODES, decode, to_rgb
from data.label_map import UNLISTED, LabelMap
from support.errors import UserError
from support.labels import IGNORE
from tools.check.survey import Sample

NUM_COLOURS = 64  # colours of a mask to keep, the most frequent ones


@dataclass
class FileFacts:
    """What was measured of one image or label file.

    fault: why the file cannot be decoded, "" if it can. mode: PIL's mode. size: (height, width) as training sees it;
    (0, 0) with a fault.
    """

    path: Path
    fault: str = ""
    mode: str = ""
    size: tuple[int, int] = (0, 0)


@dataclass
class ImageFacts(FileFacts):
    """What was measured of one image file.

    orientation: EXIF's, 1 = upright. sha: SHA-256 of shape and pixels in hex, "" if the file cannot be decoded.
    """

    orientation: int = 1
    sha: str = ""


@dataclass
class LabelFacts(FileFacts):
    """What was measured of one label file.

    lossy: whether the compression is JPEG or lossy WebP. values: {value: pixels}; empty if lossy or not one channel.
    unlisted: {value: pixels} that the label map does not list; they are not in `values`, which holds class numbers.
    colours: {"#rrggbb": pixels} of a label that has colours instead of class numbers, the most frequent ones.
    palette: {value: "#rrggbb"} of the class numbers of a palette file that no label map translates.
    """

    lossy: bool = False
    values: dict[int, int] = field(default_factory=dict)
    unlisted: dict[int, int] = field(default_factory=dict)
    colours: dict[str, int] = field(default_factory=dict)
    palette: dict[int, str] = field(default_factory=dict)

    @property
    def classes(self) -> set[int]:
        return set(self.values) - {IGNORE}


@dataclass
class Facts:
    """What was measured of one image and its labels.

    splits: names of the splits that contain the image. labels: keys are "mask", "scribble" and "pseudo".
    agreement: {"scribble" or "pseudo": (pixels with a class in both this label and the mask, those of equal class)}.
    """

    splits: tuple[str, ...]
    image: ImageFacts
    labels: dict[str, LabelFacts]
    agreement: dict[str, tuple[int, int]]


def measure(sample: Sample, label_map: LabelMap | None = None) -> Facts:
    """Decode the files of a sample and return the Facts. An unreadable file gets a fault; nothing is raised.

    label_map: applied to the values of all labels.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL's, on large files and old palettes: the check has findings for these
        image = _measure_image(sample.image)
        labels, pixels = {}, {}
        for kind, path in sample.labels.items():
            labels[kind], pixels[kind] = _measure_label(path, label_map)
    agreement = {}
    mask = pixels.get("mask")
    for kind in ("scribble", "pseudo"):
        other = pixels.get(kind)
        if mask is not None and other is not None and mask.shape == other.shape:
            both = (mask != IGNORE) & (other != IGNORE)
            agreement[kind] = int(both.sum()), int((both & (mask == other)).sum())
    return Facts(sample.splits, image, labels, agreement)


def _measure_image(path: Path) -> ImageFacts:
    facts = ImageFacts(path)

    def note_orientation(image: Image.Image) -> Image.Image:
        facts.mode, facts.orientation = image.mode, image.getexif().get(ExifTags.Base.Orientation, 1)
        return to_rgb(path, image)

    try:
        pixels = decode(path, note_orientation)
    except UserError as error:
        facts.fault = str(error).removeprefix(f"{path}: ")
        return facts
    facts.size = pixels.shape[:2]
    facts.sha = hashlib.sha256(str(pixels.shape).encode() + pixels.tobytes()).hexdigest()
    return facts


def _measure_label(path: Path, label_map: LabelMap | None) -> tuple[LabelFacts, np.ndarray | None]:
    """Return the LabelFacts of a file and its class numbers (H, W), or None if the file has no class numbers."""
    facts = LabelFacts(path)
    palette: list[int] = []

    def note_mode(image: Image.Image) -> Image.Image:
        palette.extend(image.getpalette() or [])
        facts.mode, facts.lossy = image.mode, image.format in ("JPEG", "MPO") or _is_lossy_webp(path)
        return image

    try:
        pixels = decode(path, note_mode)
    except UserError as error:
        facts.fault = str(error).removeprefix(f"{path}: ")
        return facts, None
    facts.size = pixels.shape[:2]
    if facts.lossy:
        return facts, None
    if facts.mode == "RGB" and (pixels == pixels[..., :1]).all():
        pixels, facts.mode = pixels[..., 0], "L"  # as read_label reads it
    if facts.mode in LABEL_MODES:
        pixels = pixels.astype(np.uint8) if facts.mode == "1" else pixels
        if label_map is not None:
            mapped = label_map.look_up(pixels)
            facts.unlisted = _count(pixels[mapped == UNLISTED])
            pixels = np.where(mapped == UNLISTED, np.uint8(IGNORE), mapped)
        facts.values = _count(pixels)
        if label_map is None:
            used = {value: bytes(palette[3 * value : 3 * value + 3]).hex() for value in facts.classes}
            facts.palette = {value: f"#{colour}" for value, colour in used.items() if colour}
        return facts, pixels
    if pixels.ndim == 3 and pixels.shape[2] >= 3:
        colours: list = Image.fromarray(pixels[..., :3]).getcolors(pixels.size) or []
        most_frequent = sorted(colours, key=lambda item: (-item[0], item[1]))[:NUM_COLOURS]
        facts.colours = {f"#{bytes(colour).hex()}": count for count, colour in most_frequent}
    return facts, None


def _count(pixels: np.ndarray) -> dict[int, int]:
    """Return {value: number of pixels}, in the order of values."""
    values, counts = np.unique(pixels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _is_lossy_webp(path: Path) -> bool:
    """Return True if the file is a WebP with a frame of VP8, the lossy codec, instead of VP8L."""
    with path.open("rb") as file:
        head = file.read(64)
    return head[8:12] == b"WEBP" and b"VP8 " in head
