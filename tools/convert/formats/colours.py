"""Masks painted in colours: one colour for each class.

CVAT ("Segmentation mask 1.1") and Datumaro (VOC) add labelmap.txt, with a line "name:red,green,blue::" for each class,
and lists in ImageSets/Segmentation (https://docs.cvat.ai/docs/dataset_management/formats/format-smask).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from support.errors import InputError, UserError
from tools.convert.formats.pairs import beside, decode_mask, read_pairs
from tools.convert.source import Entry, Options, Region, Source

MOST = 254  # colours of a palette that is found
MAX_UNKNOWN = 0.1  # share of the painted pixels whose colour no class may have
NUM_TRIED = 200  # masks that are compared with the class file before any is written
BLACK = 0
VOC_VOID = (224, 224, 192)  # the outlines of objects in PASCAL VOC's masks

# Colours of the labels that are not among Cityscapes' 19 classes (mcordts/cityscapesScripts, helpers/labels.py):
# dynamic, ground, parking, rail track, guard rail, bridge, tunnel, caravan, trailer.
CITYSCAPES_VOID = (
    *((111, 74, 0), (81, 0, 81), (250, 170, 160), (230, 150, 140), (180, 165, 180), (150, 100, 100)),
    *((150, 120, 90), (0, 0, 90), (0, 0, 110)),
)
# The 32 labels of CamVid as released (label_colors.txt), where they differ from the 11 classes: the class of each, as
# SegNet groups them (arXiv:1511.00561).
CAMVID = {
    "building": ((192, 0, 128), (0, 128, 64), (64, 0, 64), (64, 192, 0)),  # archway, bridge, tunnel, wall
    "pole": ((0, 0, 64),),  # traffic cone
    "road": ((128, 0, 192), (192, 0, 64)),  # lane markings
    "pavement": ((0, 0, 192), (64, 192, 128), (128, 128, 192)),  # sidewalk, parking block, road shoulder
    "tree": ((192, 192, 0),),  # other vegetation
    "sign": ((128, 128, 64), (0, 64, 64)),  # text, traffic light
    "car": ((128, 64, 64), (64, 128, 192), (192, 64, 128), (192, 128, 192)),  # other moving, SUV, train, truck or bus
    "pedestrian": ((64, 128, 64), (64, 0, 192), (192, 128, 64)),  # animal, luggage or pram, child
    "cyclist": ((192, 0, 192),),  # motorcycle
}


def read(source: Path, options: Options) -> Source:
    """Return the pairs of images and masks, and the classes: those of --classes, or one for each colour found.

    Raises UserError if there are more than MOST colours, or if the class file does not fit the masks.
    """
    result = read_pairs(source, options)
    if options.known:
        result.names, result.unlabelled = options.known.names, False
        check_fit(result.entries[:: max(1, len(result.entries) // NUM_TRIED)], options)
        return result
    found = np.zeros(1 << 24, bool)
    for entry in tqdm(result.entries, unit="mask", desc="finding colours"):
        try:
            found |= _present(_packed(entry.record))
        except InputError:
            continue  # draw() names it
    colours = np.flatnonzero(found).tolist()
    if len(colours) > MOST:
        raise UserError(
            f"{source}: the masks have {len(colours)} colours, as smoothing or JPEG leave them: name those of the "
            "classes with --classes FILE (a line 'name #RRGGBB' for each); others are then ignored"
        )
    result.unlabelled = BLACK in colours
    if result.unlabelled and not options.unlabelled:
        remedy = "if it means unlabelled, convert to a new folder with --unlabelled ignore"
        result.notes.append(f"black became the class background: {remedy}")
    colours = [colour for colour in colours if colour != BLACK]
    result.names = [_name(colour) for colour in colours]
    result.colours = {_name(colour): tuple(colour.to_bytes(3, "big")) for colour in colours}
    return result


def draw(entry: Entry, size: tuple[int, int], options: Options, faults: list[str]) -> Iterator[Region]:
    """Yield a region for each colour of the mask. Black that is not the colour of a class is unlabelled."""
    pixels = _packed(entry.record, size)
    names = class_of_colour(options)
    present = np.flatnonzero(_present(pixels)).tolist()
    if len(present) > MOST:
        raise InputError(f"{entry.record}: {len(present)} colours, as smoothing or JPEG leave them: skipped")
    for colour in present:
        if colour != BLACK or colour in names:
            yield Region(names.get(colour, _name(colour)), 0, 0, pixels == colour)


def check_fit(entries: list[Entry], options: Options) -> None:
    """Raise UserError if more than MAX_UNKNOWN of the painted pixels have a colour that no class has.

    Pixels that are neither black nor background are painted. With --unlisted, any colour is accepted.
    """
    names, unknown = class_of_colour(options), Counter[str]()
    painted = 0
    for entry in entries if not options.unlisted else ():
        try:
            colours, counts = np.unique(_packed(entry.record), return_counts=True)
        except InputError:
            continue  # draw() names it
        if len(colours) > MOST:
            continue  # and this
        for colour, count in zip(colours.tolist(), counts.tolist(), strict=True):
            if colour not in names and colour != BLACK:
                unknown[_name(colour)] += count
            elif (names.get(colour) or "background").lower() != "background":
                painted += count
    missing = sum(unknown.values())
    if missing > MAX_UNKNOWN * (missing + painted):
        shown = ", ".join(f"{colour} {count / (missing + painted):.0%}" for colour, count in unknown.most_common(4))
        share = f"{missing / (missing + painted):.0%} of the painted pixels ({shown})"
        remedy = "correct the file (a line 'name #RRGGBB' for each class), or ignore such pixels: --unlisted ignore"
        raise UserError(f"--classes {options.classes}: no class has the colour of {share}: {remedy}")


def class_of_colour(options: Options) -> dict[int, str | None]:
    """Return {packed colour: class, or None to ignore} of --classes; {} without it."""
    names: dict[int, str | None] = {}
    if not options.known:
        return names
    void = [VOC_VOID, *(CITYSCAPES_VOID if options.classes == "cityscapes" else ())]
    names |= {_pack(colour): None for colour in void}
    if options.classes == "camvid":
        names |= {_pack(colour): name for name, group in CAMVID.items() for colour in group}
    pairs = [*zip(options.known.names, options.known.colours.tolist(), strict=False)]
    return names | {_pack(colour): name for name, colour in reversed(pairs)}


def class_file(source: Path) -> str:
    """Return the path of the export's file of names and colours, "" without one, and say that it is used."""
    found = [path for name in ("labelmap.txt", "classes.txt") if (path := beside(source, name)) and path.is_file()]
    # Without colours, a list of names does not say which class a colour is.
    coloured = [path for path in found if any(char in path.read_text("utf-8", "replace") for char in "#:")]
    if coloured:
        print(f"classes: {coloured[0]}")
    return str(coloured[0]) if coloured else ""


def _pack(colour: Sequence[int]) -> int:
    return int.from_bytes(bytes(colour), "big")


def _packed(path: Path, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return the colours of a mask, (H, W) int32: 65536 * red + 256 * green + blue. Transparent pixels are black.

    size: (H, W) that it must have.
    """

    def convert(image: Image.Image) -> Image.Image:
        return image.convert("RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB")

    pixels = decode_mask(path, convert, size)
    packed = pixels[:, :, :3].astype(np.int32) @ np.array([65536, 256, 1], np.int32)
    return packed if pixels.shape[2] == 3 else np.where(pixels[:, :, 3] > 0, packed, BLACK)


def _present(packed: np.ndarray) -> np.ndarray:
    """Return (2**24,) bool: whether each packed colour occurs."""
    found = np.zeros(1 << 24, bool)
    found[packed] = True
    return found


def _name(colour: int) -> str:
    return f"#{colour:06x}"
