"""Find a split of a data set in plain folders (--dataset Folder).

A split is a pair of folders, images/SPLIT and masks/SPLIT or SPLIT/images and SPLIT/masks, or a list SPLIT.txt of files
in `images` and `masks`. The folder of the masks may also be named labels or annotations.
"""

from pathlib import Path
from typing import NamedTuple

from data.folders import list_folder
from data.images.files import IMAGE_SUFFIXES, LABEL_SUFFIXES
from support import shell
from support.errors import UserError

IMAGES = "images"
MASKS = ("masks", "labels", "annotations")


class ListError(UserError):
    """A list contradicts the layout, which is not a missing split."""


class Folders(NamedTuple):
    """The folders of a split's images and masks, and the list of its images if it has one."""

    images: Path
    masks: Path
    list_file: Path | None = None


def find_plain(root: Path, split: str, *, images: str = "", masks: str = "", list_path: str = "") -> Folders:
    """Return the Folders of a split. images, masks: folders below root, "" for the default. list_path: folder of lists.

    If list_path is not "", the split is a list. The folder of masks need not exist. Raises UserError if
    the split is missing, or if it could be in two places.
    """
    places = find_places(root, split, images, masks, list_path)
    if len(places) > 1:
        first, second = (place.list_file or place.images for place in places[:2])
        list_hint = ", or choose the list with --list_path ." if places[-1].list_file else ""
        raise ListError(f"{first} and {second}: both would be the split {split!r}: remove or rename one{list_hint}")
    if places:
        return places[0]
    usual = "train", "val"
    if split not in usual and all(find_places(root, name, images, masks, list_path) for name in usual):
        hint = f"choose one of these, or add folders of that name, or the list {root / list_path / split}.txt"
        raise UserError(f"{root}: has the splits 'train' and 'val', but no split {split!r}: {hint}")
    whole = list_folder(root / IMAGES, IMAGE_SUFFIXES) if not (images or masks or list_path) else {}
    if any("/" not in name for name in whole) and any(list_folder(root / name, LABEL_SUFFIXES) for name in MASKS):
        divide = shell.python_command("-m", "tools.split", root, "--val", "0.2")
        raise UserError(f"{root}: no split {split!r}: to divide the images into train and val: {divide}")
    images = images or IMAGES
    folders = dict.fromkeys((root / images / split, root / split / images))
    wanted = [*map("folder {}".format, () if list_path else folders), f"list {root / list_path / split}.txt"]
    raise UserError(
        f"{root}: no split {split!r}: looked for the {' and the '.join(wanted)}; make a folder of that name in "
        f"{images} and another for the masks, or lists with python -m tools.split, or name the split with "
        f"--train_split or --val_split{find_flags(root)}"
    )


def find_flags(root: Path) -> str:
    """Return the end of a message: the command that finds the flags which read the folder `root`, or converts it."""
    return f"; for the flags that fit it, or to convert an export: {shell.python_command('-m', 'tools.check', root)}"


def find_places(root: Path, split: str, images: str, masks: str, list_path: str) -> list[Folders]:
    """Return all Folders where a split could be. The arguments are those of find_plain()."""
    images, names = images or IMAGES, (masks,) if masks else MASKS
    folders: dict[Path, list[Path]] = {}
    if not list_path:
        folders[root / split / images] = [root / split / name for name in names]
        folders.setdefault(root / images / split, []).extend(root / name / split for name in names)
    places = [Folders(folder, _mask_folder(choices)) for folder, choices in folders.items() if folder.is_dir()]
    list_file = root / list_path / f"{split}.txt"
    if list_file.is_file():
        places.append(Folders(root / images, _mask_folder([root / name for name in names]), list_file))
    return places


def find_whole(root: Path, *, images: str = "", masks: str = "") -> Folders:
    """Return the folders of all images and of all masks, whatever their splits. They need not exist.

    Raises UserError if two folders could hold the masks.
    """
    names = (masks,) if masks else MASKS
    return Folders(root / (images or IMAGES), _mask_folder([root / name for name in names]))


def _mask_folder(folders: list[Path]) -> Path:
    """Return the folder that holds the masks, or the first if none exists; raise UserError if two have label files."""
    existing = [folder for folder in dict.fromkeys(folders) if folder.is_dir()] or folders[:1]
    if len(existing) > 1:
        existing = [folder for folder in existing if list_folder(folder, LABEL_SUFFIXES)] or existing[:1]
    if len(existing) > 1:
        remedy = "choose one with --train_path and --val_path"
        raise UserError(f"{existing[0]} and {existing[1]}: both could hold the masks: {remedy}")
    return existing[0]
