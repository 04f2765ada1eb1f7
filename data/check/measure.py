"""What the data doctor must know of one sample: each file is decoded once, by whichever process."""

import hashlib
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from data.dataset import LABEL_MODES, decode
from data.histogram import label_histogram
from errors import UserError
from labels import IGNORE

ORIENTATION = 0x0112  # EXIF's tag: 1 is upright, 5 to 8 swap height and width
NUM_COLOURS = 64  # distinct colours to remember of a mask
MIN_CONTRAST = 16  # grey levels: the difference hash of a flatter image says nothing


@dataclass(frozen=True)
class Sample:
    """The files of one name. splits: those that have it. labels: "mask", "scribble", "pseudo", those there are."""

    name: str
    splits: tuple[str, ...]
    image: Path
    labels: dict[str, Path]


@dataclass
class ImageFacts:
    """size: (height, width) as training sees it. sha: of the RGB pixels. near: 64-bit difference hash, or None."""

    fault: str = ""
    mode: str = ""
    size: tuple[int, int] = (0, 0)
    orientation: int = 1
    transparent: bool = False
    sha: str = ""
    near: int | None = None


@dataclass
class LabelFacts:
    """values: {value: pixels}; none where `lossy`, since they mean nothing. colours: {"#RRGGBB": pixels} of a mask that has colours in place of class numbers."""

    fault: str = ""
    mode: str = ""
    size: tuple[int, int] = (0, 0)
    lossy: bool = False
    values: dict[int, int] = field(default_factory=dict)
    colours: dict[str, int] = field(default_factory=dict)

    @property
    def classes(self) -> set[int]:
        return set(self.values) - {IGNORE}


@dataclass
class Facts:
    """Of one sample. agreement: {"scribble" or "pseudo": (pixels where it and the mask have a class, those equal)}."""

    sample: Sample
    image: ImageFacts
    labels: dict[str, LabelFacts]
    agreement: dict[str, tuple[int, int]]


def measure(sample: Sample) -> Facts:
    """Decode the files of a sample and note what is worth knowing; a file that cannot be read is a fault, not an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL's, on large files and old palettes: the doctor has words of its own
        image = _measure_image(sample.image)
        labels, pixels = {}, {}
        for kind, path in sample.labels.items():
            labels[kind], pixels[kind] = _measure_label(path)
    agreement = {}
    mask = pixels.get("mask")
    for kind in ("scribble", "pseudo"):
        other = pixels.get(kind)
        if mask is not None and other is not None and mask.shape == other.shape:
            both = (mask != IGNORE) & (other != IGNORE)
            agreement[kind] = int(both.sum()), int((both & (mask == other)).sum())
    return Facts(sample, image, labels, agreement)


def _measure_image(path: Path) -> ImageFacts:
    facts = ImageFacts()

    def to_rgb(image: Image.Image) -> Image.Image:
        facts.mode, facts.orientation = image.mode, image.getexif().get(ORIENTATION, 1)
        if image.mode.startswith(("I", "F")):
            return image
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            facts.transparent = bool(np.asarray(image.convert("RGBA"))[..., 3].min() < 255)
        return ImageOps.exif_transpose(image).convert("RGB")

    try:
        pixels = decode(path, to_rgb)
    except UserError as error:
        facts.fault = str(error)
        return facts
    height, width = pixels.shape[:2]
    facts.size = height, width
    facts.sha = hashlib.sha256(str(pixels.shape).encode() + pixels.tobytes()).hexdigest()
    if pixels.dtype == np.uint8:
        facts.near = difference_hash(pixels)
    return facts


def difference_hash(pixels: np.ndarray) -> int | None:
    """64 bits of an RGB image (H, W, 3): where brightness rises to the right in its 9x8 miniature; None if it is flat."""
    grey = Image.fromarray(pixels).convert("L").resize((9, 8), Image.Resampling.BOX)
    levels = np.asarray(grey, np.int16)
    if np.ptp(levels) < MIN_CONTRAST:
        return None
    return int.from_bytes(np.packbits(levels[:, 1:] > levels[:, :-1]).tobytes(), "big")


def _measure_label(path: Path) -> tuple[LabelFacts, np.ndarray | None]:
    """The facts, and the class of each pixel (H, W), or None where there is no telling."""
    facts = LabelFacts()

    def note(image: Image.Image) -> Image.Image:
        facts.mode, facts.lossy = image.mode, image.format in ("JPEG", "MPO") or _is_lossy_webp(path)
        return image

    try:
        pixels = decode(path, note)
    except UserError as error:
        facts.fault = str(error)
        return facts, None
    height, width = pixels.shape[:2]
    facts.size = height, width
    if facts.lossy:
        return facts, None
    if pixels.dtype == bool:  # of a 1-bit image
        pixels = pixels.astype(np.uint8)
    if facts.mode == "RGB" and (pixels == pixels[..., :1]).all():
        pixels, facts.mode = pixels[..., 0], "L"  # as read_label takes it
    if facts.mode not in LABEL_MODES:
        facts.colours = _colours(pixels) if pixels.ndim == 3 and pixels.shape[2] >= 3 else {}
        return facts, None
    facts.values = _values(pixels)
    return facts, pixels


def _is_lossy_webp(path: Path) -> bool:
    """Whether a WebP holds a frame of VP8, the lossy codec, rather than VP8L."""
    with path.open("rb") as file:
        head = file.read(64)
    return head[8:12] == b"WEBP" and b"VP8 " in head


def _values(pixels: np.ndarray) -> dict[int, int]:
    if pixels.dtype == np.uint8:
        histogram = label_histogram(pixels, 256)
        return {int(value): int(histogram[value]) for value in np.flatnonzero(histogram)}
    found, counts = np.unique(pixels, return_counts=True)
    return dict(zip(map(int, found), map(int, counts), strict=True))


def _colours(pixels: np.ndarray) -> dict[str, int]:
    """The most frequent colours of (H, W, 3 or 4) pixels, and the pixels of each."""
    channels = pixels.astype(np.uint32)
    packed = (channels[..., 0] << 16) | (channels[..., 1] << 8) | channels[..., 2]
    found, counts = np.unique(packed, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:NUM_COLOURS]
    return {f"#{found[place]:06x}": int(counts[place]) for place in most}
