"""Pair images and masks by file name across two folders, and read the split from lists."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from data.images import IMAGE_SUFFIXES, LABEL_SUFFIXES, NO_JPEG, decode
from data.layout import list_folder, read_list, select
from support import shell
from support.errors import InputError, UserError
from tools.convert.reading import split_of
from tools.convert.source import Entry, Options, Source

IMAGE_FOLDERS = ("images", "JPEGImages")
MASK_FOLDERS = ("masks", "labels", "annotations", "SegmentationClass", "SegmentationClassAug")
NO_IMAGES = (*MASK_FOLDERS, "SegmentationObject")  # folders below that of the images that have none
LISTS = "ImageSets/Segmentation"  # as PASCAL VOC, CVAT and Datumaro have them


def read_pairs(source: Path, options: Options, suffixes: tuple[str, ...] = LABEL_SUFFIXES) -> Source:
    """Return the pairs below a folder: an entry's record is its mask. What has no partner is a fault.

    Images are in the subfolder of IMAGE_FOLDERS, masks in that of MASK_FOLDERS, or else in the folder itself; --images
    names another folder. If there are lists, entries have the split of their list, and an image without a mask is left
    out if no list has it. suffixes: of the masks that can be read. Raises UserError if a folder is missing.
    """
    if not source.is_dir():
        raise UserError(f"{source}: not a folder: name the one with images and masks")
    if options.images and not options.images.is_dir():
        raise UserError(f"--images {options.images}: no such folder")
    image_folder = options.images or _first(source, IMAGE_FOLDERS)
    mask_folder = _first(source, MASK_FOLDERS)
    if image_folder.resolve() == mask_folder.resolve() and not options.label_suffix:
        raise UserError(
            f"{source}: images and masks are in one folder: put the masks into {source / 'masks'} and the images into "
            f"{source / 'images'}, or name the end of the masks' names, as in --label_suffix _mask"
            f"{check_hint(source)}"
        )
    result, splits = Source(), read_splits(source)
    images = select(list_folder(image_folder, IMAGE_SUFFIXES), options.image_suffix)
    masks = dict(select(list_folder(mask_folder, (*suffixes, *IMAGE_SUFFIXES)), options.label_suffix))
    if image_folder.resolve() == mask_folder.resolve():
        own = {path for paths in masks.values() for path in paths}
        images = {name: kept for name, paths in images.items() if (kept := [path for path in paths if path not in own])}
    elif image_folder == source:
        images = {name: paths for name, paths in images.items() if name.split("/")[0] not in NO_IMAGES}
    if not images:
        raise UserError(f"{image_folder}: no images in it: name their folder with --images DIR{check_hint(source)}")
    if splits:
        listed = {name: paths for name, paths in images.items() if name in splits or name in masks}
        if len(listed) < len(images):
            result.notes.append(f"{len(images) - len(listed)} image(s) without a mask are in no list: left out")
        images = listed
    for name, paths in images.items():
        found = masks.pop(name, [])
        readable = [path for path in found if path.suffix.lower() in suffixes]
        if len(paths) > 1:
            result.faults.append(f"{paths[0]} and {paths[1].name}: two images of one name: skipped")
        elif not found:
            expected = mask_folder / f"{name}{options.label_suffix}.png"
            result.faults.append(f"{paths[0]}: an image without a mask: expected {expected}: skipped")
        elif not readable:
            result.faults.append(f"{found[0]}: {NO_JPEG}: skipped")
        elif len(readable) > 1:
            result.faults.append(f"{readable[0]} and {readable[1].name}: two masks of one name: skipped")
        else:
            result.entries.append(Entry(name, str(readable[0]), paths[0], readable[0], split=splits.get(name, "")))
    result.faults += [f"{paths[0]}: a mask without an image: skipped" for paths in masks.values()]
    return result


def read_splits(source: Path) -> dict[str, str]:
    """Return {image name: split} of the lists in ImageSets/Segmentation, which are named after their splits.

    Images in default.txt, CVAT's list of images without a subset, have the split "". If an image is in several lists,
    train, val and test take precedence over others, such as VOC's trainval.
    """
    splits: dict[str, str] = {}
    folder = beside(source, LISTS)
    lists = sorted(folder.glob("*.txt")) if folder else []
    for path in sorted(lists, key=lambda path: (path.stem == "default", not split_of(path.stem), path.stem)):
        split = "" if path.stem == "default" else split_of(path.stem) or path.stem
        for name in read_list(path):
            splits.setdefault(name, split)
    return splits


def beside(source: Path, name: str) -> Path | None:
    """Return the file or folder `name` in an export, None without one. source: the export, or its folder of masks."""
    roots = (source, source.parent) if source.name in MASK_FOLDERS else (source,)
    return next((root / name for root in roots if (root / name).exists()), None)


def check_hint(source: Path) -> str:
    """Return the end of a message: the command that finds the ends of names and the layout of an export."""
    root = source.parent if source.name in MASK_FOLDERS else source
    return f"; to find ends of names and other layouts: {shell.python_command('-m', 'tools.check', root)}"


def _first(source: Path, names: tuple[str, ...]) -> Path:
    return next((source / name for name in names if (source / name).is_dir()), source)


def decode_mask(
    path: Path, convert: Callable[[Image.Image], Image.Image], size: tuple[int, int] | None = None
) -> np.ndarray:
    """Return the decoded pixels of a mask. Raises InputError if it is damaged or not of the size (height, width)."""
    try:
        pixels = decode(path, convert)
    except UserError as error:
        raise InputError(str(error)) from None
    height, width = pixels.shape[:2]
    if size not in (None, (height, width)):
        raise InputError(f"{path}: {width}x{height} pixels, but the image has {size[1]}x{size[0]}")
    return pixels
