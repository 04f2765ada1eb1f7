"""Masks painted in colours: one colour for each class.

CVAT ("Segmentation mask 1.1") and Datumaro (VOC) add labelmap.txt, with a line "name:red,green,blue::" for each class,
and lists in ImageSets/Segmentation (https://docs.cvat.ai/docs/dataset_management/formats/format-smask).
"""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from data.classes import MAX_TEXT
from data.folders import Files
from data.guess import TRAIN_NAMES, VAL_NAMES
from data.images import decode
from data.images.files import LABEL_SUFFIXES
from data.layout import Split, first_folder, list_folder, match_files, select
from data.plain import find_flags
from support.errors import InputError, UserError
from support.files import read_bytes
from support.progress import progress_bar
from support.terminal import say
from tools.convert.drawing import Patch
from tools.convert.hidden_colours import HIDDEN, opaque, twins
from tools.convert.reading import read_splits
from tools.convert.source import Converted, Entry, Options, Shape, Source

_COLOUR = re.compile(rb"#[0-9a-fA-F]{6}\s*$|^[^:\n]+:[\d,]*:[^:\n]*:", re.MULTILINE)  # or a line of a labelmap.txt
MOST = 254  # colours of a palette that is found
RARE, LEAST = 0.05, 3  # share of the pixels, and number of colours: see _mixed()
BLACK = 0
GROUND = 0.5  # share of the pixels that the ground around strokes has, at least
VOC_VOID = 0xE0E0C0  # the outlines of objects in PASCAL VOC's masks

IMAGE_FOLDERS = ("images", "JPEGImages")
MASK_FOLDERS = ("masks", "labels", "annotations", "SegmentationClass", "SegmentationClassAug")
NO_IMAGES = (*MASK_FOLDERS, "SegmentationObject")  # folders below that of the images that have none
LISTS = "ImageSets/Segmentation"  # as PASCAL VOC, CVAT and Datumaro have them
PLAIN_LISTS = (*TRAIN_NAMES, *VAL_NAMES, "test", "test_list")


def read(source: Source) -> None:
    """Read the pairs of images and masks, and the classes: those of --classes, or one for each colour in the masks.

    The record of an entry is its mask. Raises UserError if a folder is missing, if no mask can be read, or if there
    are more than MOST colours.
    """
    _pair(source)
    if source.options.known:
        names = _class_of_colour(source.options)  # raises before anything is written
        source.names, source.unlabelled = source.options.known.names, False
        if BLACK in names and source.options.scribbles:
            source.notes.append(f"class {names[BLACK]} is black: it is read only in masks of transparent ground, "
                                "because black is unlabelled in all others")  # fmt: skip
        return
    counts: Counter[int] = Counter()
    palettes: list[set[int]] = []
    has_black_strokes = False
    for pixels, is_clear in _readable(source.entries, "finding colours"):
        has_black_strokes |= source.options.scribbles and bool(_black_strokes(pixels, is_clear).any())
        present = dict(zip(*map(np.ndarray.tolist, np.unique(pixels, return_counts=True)), strict=True))
        counts.update(present)
        palettes += [set(present)] if len(present) <= MOST else []
    if source.entries and not counts:
        _packed(source.entries[0].record)  # raises: no mask can be read, and shapes() comes too late to say why
    colours = sorted(counts)
    if colours == [BLACK] and _packed(source.entries[0].record)[2]:
        raise UserError(f"{source.entries[0].record}: {HIDDEN}")
    if len(colours) > MOST:
        raise UserError(
            f"{source.path}: the masks have {len(colours)} colours, as smoothing or JPEG leave them: name those of the "
            "classes with --classes FILE (a line 'name #RRGGBB' for each); others are then ignored"
        )
    if mixed := _mixed(source.entries, counts):
        share = f"{max(counts[colour] for colour in mixed) / counts.total():.1%}"
        rare = f"{len(mixed)} of {len(colours)} colours are in at most {share} of the pixels each, between two others"
        remedy = "name the classes with --classes FILE, or export again"
        source.faults.append(f"{source.path}: {rare}, as smoothing leaves them: ignored (255); {remedy}")
    source.ignored = list(map(_name, mixed))
    source.unlabelled = BLACK in colours
    classes = [colour for colour in colours if colour not in mixed and (colour != BLACK or has_black_strokes)]
    usual, count = counts.most_common(1)[0] if counts else (BLACK, 0)
    if source.options.scribbles and usual != BLACK and count > GROUND * counts.total():
        share = f"{_name(usual)} is on {count / counts.total():.0%} of the pixels"
        remedy = "list only the other colours in --classes FILE, so that it is ignored"
        source.notes.append(f"{share}: if it means unlabelled, {remedy}")
    source.notes += twins([colour for colour in colours if colour not in mixed], palettes)
    source.colours = {_name(colour): tuple(colour.to_bytes(3, "big")) for colour in classes}
    source.names = list(source.colours)


def _readable(entries: list[Entry], doing: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the colours and transparent pixels of the masks that can be read. shapes() names the others."""
    for entry in progress_bar(entries, total=len(entries), title=doing, unit="mask"):
        with contextlib.suppress(InputError):
            yield _packed(entry.record)[:2]


def _black_strokes(pixels: np.ndarray, is_clear: np.ndarray) -> np.ndarray:
    """Return where strokes are black, (H, W) bool. Unless the ground is transparent, black is unlabelled."""
    return (pixels == BLACK) & ~is_clear & bool(is_clear.mean() > GROUND)


def _mixed(entries: list[Entry], counts: Counter[int]) -> list[int]:
    """Return the colours that smoothing left, if there are LEAST: rare ones, mostly between those of their neighbours.

    A thin class is also rare, but no mixture of the colours on its two sides. counts: {packed colour: pixels}.
    """
    rare = [colour for colour, count in counts.items() if count < RARE * counts.total()]
    if len(rare) < LEAST:
        return []
    is_rare, between = np.zeros(1 << 24, bool), Counter[int]()
    is_rare[rare] = True
    for pixels, _ in _readable(entries, "looking at rare colours"):
        rows, columns = np.nonzero(is_rare[pixels])
        padded, centre = np.pad(pixels, 1, mode="edge"), _channels(pixels[rows, columns])
        is_between = np.zeros(len(rows), bool)
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            one = _channels(padded[rows + 1 + down, columns + 1 + right])
            other = _channels(padded[rows + 1 - down, columns + 1 - right])
            inside = (np.minimum(one, other) <= centre) & (centre <= np.maximum(one, other))
            is_between |= inside.all(axis=1) & (centre != one).any(axis=1) & (centre != other).any(axis=1)
        between.update(pixels[rows, columns][is_between].tolist())
    mixed = [colour for colour in rare if 2 * between[colour] >= counts[colour]]
    return mixed if len(mixed) >= LEAST else []


def _channels(packed: np.ndarray) -> np.ndarray:
    """Return the red, green and blue of packed colours (N,), uint8 (N, 3)."""
    return np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1).astype(np.uint8)


def shapes(mask: Path, size: tuple[int, int], options: Options, converted: Converted) -> Iterator[Shape]:
    """Yield the pixels of each colour of a mask. Black is unlabelled in strokes, and elsewhere if no class has it.

    But if the ground of strokes is transparent, it is unlabelled, and black is a stroke.
    """
    pixels, is_clear, converted.is_hidden = _packed(mask)
    height, width = pixels.shape
    if (height, width) != size:
        raise InputError(f"{mask}: {width}x{height} pixels, but the image has {size[1]}x{size[0]}")
    names = _class_of_colour(options)
    present = np.unique(pixels).tolist()
    if len(present) > MOST:
        raise InputError(f"{mask}: {len(present)} colours, as smoothing or JPEG leave them: skipped")
    for colour in present:
        is_strokes = colour == BLACK and options.scribbles
        area = _black_strokes(pixels, is_clear) if is_strokes else pixels == colour
        if area.any() and (colour != BLACK or is_strokes or colour in names):
            yield Shape(names.get(colour, _name(colour)), str(mask), area)


def patch(pixels: np.ndarray, where: str, size: tuple[int, int], line_width: float) -> Patch:
    """Return the pixels of a colour."""
    return Patch(0, 0, pixels)


def has_colours(path: Path) -> bool:
    """Return whether a file of class names has colours; without them it does not say which class a colour is."""
    return bool(_COLOUR.search(read_bytes(path, MAX_TEXT)))


def class_file(source: Path) -> str:
    """Return the path of the export's file of names and colours, "" without one, and say that it is used."""
    files = [path for name in ("labelmap.txt", "classes.txt") if (path := _beside(source, name))]
    if file := next(filter(has_colours, files), None):
        say(f"classes: {file}")
    return str(file or "")


def check_hint(source: Path) -> str:
    """Return the end of a message: the command that finds the ends of names and the layout of an export."""
    return find_flags(source.parent if source.name in MASK_FOLDERS else source)


def _pair(source: Source) -> None:
    """Add the pairs of images and masks below a folder. A file without a partner is a fault.

    Images are in the subfolder of IMAGE_FOLDERS, masks in that of MASK_FOLDERS, or else in the folder itself; --images
    names another folder. If there are lists, entries have the split of their list, and an image without a mask is left
    out if no list has it, or with --scribbles. Raises UserError if a folder is missing.
    """
    root, options = source.path, source.options
    if not root.is_dir():
        raise UserError(f"{root}: not a folder: name the one with images and masks")
    images = options.images or first_folder(root, "", *IMAGE_FOLDERS, ".")
    masks = first_folder(root, "", *MASK_FOLDERS, ".")
    if images.resolve() == masks.resolve() and not options.label_suffix:
        raise UserError(
            f"{root}: images and masks are in one folder: put the masks into {root / 'masks'} and the images into "
            f"{root / 'images'}, or name the end of the masks' names, as in --label_suffix _mask{check_hint(root)}"
        )
    endings = {"image": options.image_suffix, "mask": options.label_suffix}
    split = Split({"image": images, "mask": masks}, endings=endings)
    pairs = match_files(split)
    if images == root != masks:
        pairs = [(name, files) for name, files in pairs if name.split("/")[0] not in NO_IMAGES]
    if not pairs:
        raise UserError(f"{images}: no images in it: name their folder with --images DIR{check_hint(root)}")
    folder = _beside(root, LISTS)
    lists = sorted(folder.glob("*.txt")) if folder else [] if options.scribbles else plain_lists(images, masks)
    splits = read_splits(lists, dict(pairs), source.faults, images, options.image_suffix)

    def read_pair(pair: tuple[str, Files]) -> Entry:
        files, name = split.choose(*pair), pair[0]
        return Entry(name, str(files["mask"]), files["image"], files["mask"], split=splits.get(name, ""))

    if options.scribbles and (lacking := [found["image"][0] for _, found in pairs if not found["mask"]]):
        source.notes.append(f"{len(lacking)} image(s) have no stroke, such as {lacking[0]}: left out")
    needs_mask = splits.keys() if splits else dict(pairs).keys()
    used = [pair for pair in pairs if pair[1]["mask"] or (not options.scribbles and pair[0] in needs_mask)]
    source.entries += source.collect(read_pair, used)
    unused = select(list_folder(masks, LABEL_SUFFIXES), options.label_suffix).keys() - dict(pairs).keys()
    source.faults += [f"{masks / name}: a mask without an image: skipped" for name in sorted(unused)]


def plain_lists(images: Path, masks: Path) -> list[Path]:
    """Return the lists of splits, such as train.txt, beside plain folders of images and masks."""
    root = masks if images.resolve() == masks.resolve() else masks.parent
    names = PLAIN_LISTS if root in (images, images.parent) else ()
    return [path for name in names if (path := root / f"{name}.txt").is_file()]


def _beside(source: Path, name: str) -> Path | None:
    """Return the file or folder `name` in an export, None without one. source: the export, or its folder of masks."""
    roots = (source, source.parent) if source.name in MASK_FOLDERS else (source,)
    return next((root / name for root in roots if (root / name).exists()), None)


def _class_of_colour(options: Options) -> dict[int, str | None]:
    """Return {packed colour: class, or None to ignore} of --classes; {} without it.

    Raises UserError if two classes have one colour.
    """
    if not options.known:
        return {}
    classes: dict[int, str] = {}
    for name, colour in zip(options.known.names, _pack(options.known.colours).tolist(), strict=False):
        if (other := classes.setdefault(colour, name)) != name:
            twice = f"{other!r} and {name!r} both have the colour {_name(colour)}"
            raise UserError(f"--classes {options.classes}: {twice}: give one of them another, in a copy of the file")
    return {VOC_VOID: None} | classes


def _pack(rgb: np.ndarray) -> np.ndarray:
    """Return colours (..., 3) uint8 as 65536 * red + 256 * green + blue, (...) int32."""
    return rgb.astype(np.int32) @ np.array([65536, 256, 1], np.int32)


def _packed(path: Path) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return (colours as of _pack(), is_clear, is_hidden) of a mask; the latter two as of opaque().

    Raises InputError if the file is damaged.
    """

    def convert(image: Image.Image) -> Image.Image:
        return image.convert("RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB")

    rgb, is_clear, is_hidden = opaque(decode(path, convert, lossless=True))
    return _pack(rgb), is_clear, is_hidden


def _name(colour: int) -> str:
    return f"#{colour:06x}"
