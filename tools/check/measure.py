"""Measure the files of each sample. Each file is decoded once, by any process."""

import hashlib
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from data.images import LABEL_MODES, label_values, read_header, read_image
from data.images.files import MASK, jpeg_damage, lossy_codec, num_frames, opened, orientation
from data.label_check import is_smoothed
from data.label_map import UNLISTED, LabelMap
from support.errors import UserError
from support.labels import IGNORE
from tools.check.survey import Sample
from tools.convert.painting import opaque

NUM_COLOURS = 64  # colours of a mask to keep, the most frequent ones


@dataclass
class FileFacts:
    """What was measured of one file. fault: why it cannot be read, or "". size: (height, width) as training sees it.

    turn, frames: as in data.images.Header.
    """

    path: Path
    fault: str = ""
    size: tuple[int, int] = (0, 0)
    turn: int = 1
    frames: int = 1


@dataclass
class ImageFacts(FileFacts):
    """What was measured of one image. sha: SHA-256 of shape and pixels in hex. damage: what the decoder says, or ""."""

    sha: str = ""
    damage: str = ""


@dataclass
class LabelFacts(FileFacts):
    """What was measured of one label. mode: PIL's mode. lossy: the codec if it can change values, or "".

    is_smoothed: as data.label_check.is_smoothed() returns.
    values: {value: pixels}; empty if the file is lossy or has several frames or channels.
    unlisted: {value: pixels} that the label map does not list; they are not in `values`, which holds class numbers.
    colours: {"#rrggbb": pixels} of a label that has colours instead of class numbers, the most frequent ones.
    is_hidden: whether it has colours under alpha 0, which count as black, as tools.convert reads them.
    palette: {value: "#rrggbb"} for the class numbers in a palette file that no label map translates.
    """

    mode: str = ""
    lossy: str = ""
    is_smoothed: bool = False
    values: dict[int, int] = field(default_factory=dict)
    unlisted: dict[int, int] = field(default_factory=dict)
    colours: dict[str, int] = field(default_factory=dict)
    is_hidden: bool = False
    palette: dict[int, str] = field(default_factory=dict)

    @property
    def classes(self) -> set[int]:
        return set(self.values) - {IGNORE}


@dataclass
class SampleFacts:
    """What was measured of one image and its labels. splits, labels: as in Sample."""

    splits: tuple[str, ...]
    image: ImageFacts
    labels: dict[str, LabelFacts]


def measure(sample: Sample, label_map: LabelMap | None = None) -> SampleFacts:
    """Decode the files of a sample and return the SampleFacts. An unreadable file gets a fault; nothing is raised.

    label_map: applied to the values of all labels.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL's, on large files and old palettes: the check has findings for these
        labels = {kind: _measure_label(path, label_map) for kind, path in sample.labels.items()}
        return SampleFacts(sample.splits, _measure_image(sample.image), labels)


def _measure_image(path: Path) -> ImageFacts:
    try:
        pixels, header = read_image(path), read_header(path)
    except UserError as error:
        return ImageFacts(path, str(error).removeprefix(f"{path}: "))
    sha = hashlib.sha256(str(pixels.shape).encode() + pixels.tobytes()).hexdigest()
    return ImageFacts(path, "", header.size, header.turn, header.frames, sha, jpeg_damage(path))


def _measure_label(path: Path, label_map: LabelMap | None) -> LabelFacts:
    facts = LabelFacts(path)
    try:
        with opened(path, MASK) as image:
            facts.turn, facts.frames = orientation(image), num_frames(path, image)
            facts.lossy = lossy_codec(path, image)
            pixels, facts.mode = label_values(image)
            palette = image.getpalette() or []
    except UserError as error:
        facts.fault = str(error).removeprefix(f"{path}: ")
        return facts
    facts.size = pixels.shape[:2]
    if facts.lossy or facts.frames > 1:
        return facts
    if facts.mode in LABEL_MODES:
        facts.is_smoothed = is_smoothed(pixels)
        if label_map is not None:
            mapped = label_map.look_up(pixels)
            facts.unlisted = _count(pixels[mapped == UNLISTED])
            pixels = np.where(mapped == UNLISTED, np.uint8(IGNORE), mapped)
        facts.values = _count(pixels)
        if label_map is None:
            used = {value: bytes(palette[3 * value : 3 * value + 3]).hex() for value in facts.classes}
            facts.palette = {value: f"#{colour}" for value, colour in used.items() if colour}
    elif pixels.ndim == 3 and pixels.shape[2] >= 3:
        rgb, facts.is_hidden = opaque(pixels if facts.mode == "RGBA" else pixels[..., :3])
        colours: list = Image.fromarray(rgb).getcolors(pixels.size) or []
        most_frequent = sorted(colours, key=lambda item: (-item[0], item[1]))[:NUM_COLOURS]
        facts.colours = {f"#{bytes(colour).hex()}": count for count, colour in most_frequent}
    return facts


def _count(pixels: np.ndarray) -> dict[int, int]:
    """Return {value: number of pixels}, in the order of values."""
    values, counts = np.unique(pixels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
