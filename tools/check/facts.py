"""Measure the files of each sample. Each file is decoded once, by any process."""

import hashlib
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from data.images import LABEL_MODES
from data.images.files import MASK, is_tiff, jpeg_damage, label_values, lossy_codec, num_frames, opened, orientation
from data.images.reader import ImageReader
from data.images.stretch import sample
from data.images.to_8_bits import HAVE_8_BITS
from data.label_check import is_smoothed
from data.label_map import UNLISTED, LabelMap
from support.errors import UserError
from support.labels import IGNORE
from tools.convert.hidden_colours import opaque

NUM_COLOURS = 64  # colours of a mask to keep, the most frequent ones


@dataclass
class FileFacts:
    """What was measured of one file. size: (height, width) as training sees it; (0, 0) if it cannot be read.

    problems: (code, note) of each finding about this file by itself. turn: as in data.images.Header. sha: SHA-256 of
    an image's shape and pixels in hex.
    """

    path: Path
    problems: list[tuple[str, str]] = field(default_factory=list)
    size: tuple[int, int] = (0, 0)
    turn: int = 1
    sha: str = ""

    @property
    def is_readable(self) -> bool:
        return self.size != (0, 0)


@dataclass
class LabelFacts(FileFacts):
    """What was measured of one label.

    values: {class number: pixels}; empty if the file is lossy or has several frames or channels.
    colours: {"#rrggbb": pixels} of a label that has colours instead of class numbers, the most frequent ones.
    is_hidden: whether it has colours under alpha 0, which count as black, as tools.convert reads them.
    is_rgb: whether the file has several channels, also if all pixels are grey.
    palette: {value: "#rrggbb"} for the class numbers in a palette file that no label map translates.
    """

    values: dict[int, int] = field(default_factory=dict)
    colours: dict[str, int] = field(default_factory=dict)
    is_hidden: bool = False
    is_rgb: bool = False
    palette: dict[int, str] = field(default_factory=dict)

    @property
    def classes(self) -> set[int]:
        return set(self.values) - {IGNORE}


@dataclass
class Sample:
    """One image and its labels: their files and, from read_facts(), the facts about these.

    splits: names of the splits that contain the image. labels: by their kind, "mask", "scribble" or "pseudo".
    """

    splits: tuple[str, ...]
    image: FileFacts
    labels: dict[str, LabelFacts]


def read_facts(item: Sample, reader: ImageReader, label_map: LabelMap | None = None) -> Sample:
    """Decode the files of a sample and return it with all facts. An unreadable file is a problem; nothing is raised.

    reader: reads the image. label_map: applied to the values of all labels.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL's, on large files and old palettes: the check has findings for these
        labels = {kind: _measure_label(facts.path, label_map) for kind, facts in item.labels.items()}
        return Sample(item.splits, _measure_image(item.image.path, reader), labels)


def _measure_image(path: Path, reader: ImageReader) -> FileFacts:
    try:
        pixels, header = reader.read(path), reader.header(path)
        is_deep = header.dtype not in HAVE_8_BITS
        missing = np.isnan(sample(path, reader)).any(axis=1).mean() if is_deep else 0.0
        damage = "" if is_deep or is_tiff(path) else jpeg_damage(path)
    except UserError as error:
        return FileFacts(path, [("image-unreadable", str(error).removeprefix(f"{path}: "))])
    problems = [("image-frames", f"{header.frames} frames")] if header.frames > 1 else []
    problems += [("image-damaged", damage)] if damage else []
    problems += [("image-missing-values", f"{missing:.1%} of the pixels")] if missing else []
    is_flat = (pixels == pixels[0, 0]).all(axis=(0, 1))
    problems += [("image-of-one-value", "")] if (is_flat.any() if is_deep else is_flat.all()) else []
    sha = hashlib.sha256(str(pixels.shape).encode() + pixels.tobytes()).hexdigest()
    return FileFacts(path, problems, header.size, header.turn, sha)


def _measure_label(path: Path, label_map: LabelMap | None) -> LabelFacts:
    facts = LabelFacts(path)
    add = facts.problems.append
    try:
        with opened(path, MASK) as image:
            facts.turn, frames, codec = orientation(image), num_frames(path, image), lossy_codec(path, image)
            facts.is_rgb = image.mode not in LABEL_MODES
            pixels, mode = label_values(image)
            palette = image.getpalette() or []
    except UserError as error:
        add(("label-unreadable", str(error).removeprefix(f"{path}: ")))
        return facts
    facts.size = pixels.shape[:2]
    if codec or frames > 1:
        add(("mask-lossy", codec) if codec else ("mask-frames", f"{frames} frames"))
    elif mode in LABEL_MODES:
        unlisted = dict[int, int]()
        if label_map is not None:
            mapped = label_map.look_up(pixels)
            unlisted = _count(pixels[mapped == UNLISTED])
            pixels = np.where(mapped == UNLISTED, np.uint8(IGNORE), mapped)
        facts.values = _count(pixels)
        if label_map is None:
            used = {value: bytes(palette[3 * value : 3 * value + 3]).hex() for value in facts.classes}
            facts.palette = {value: f"#{colour}" for value, colour in used.items() if colour}
        if is_smoothed(pixels):
            add(("mask-smoothed", f"{len(facts.values)} values"))
        if unlisted:
            add(("label-not-listed", f"{first_six(list(unlisted))} in {sum(unlisted.values())} pixel(s)"))
        elif not facts.classes:
            add(("label-empty", ""))
    elif pixels.ndim == 3 and pixels.shape[2] >= 3:
        rgb, _, facts.is_hidden = opaque(pixels if mode == "RGBA" else pixels[..., :3])
        colours: list = Image.fromarray(rgb).getcolors(pixels.size) or []
        most_frequent = sorted(colours, key=lambda item: (-item[0], item[1]))[:NUM_COLOURS]
        facts.colours = {f"#{bytes(colour).hex()}": count for count, colour in most_frequent}
    else:
        add(("mask-mode", f"mode {mode}"))
    return facts


def _count(pixels: np.ndarray) -> dict[int, int]:
    """Return {value: number of pixels}, in the order of values."""
    values, counts = np.unique(pixels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def first_six(items: list) -> str:
    """Return the first items as text, for a note."""
    return ", ".join(map(str, items[:6])) + (", ..." if len(items) > 6 else "")
