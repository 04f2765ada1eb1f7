"""Guess the flags of a data set from the names of its folders and files, without opening an image.

train.py and the data check use the same guesses.
"""

import functools
import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from data import layout
from data.plain import IMAGES, MASKS, find_flags, find_places, find_plain, find_whole
from support.errors import UserError

# The flags that are guessed, besides --dataset. In a dict of them, "" means that a flag is not set.
GUESSED = (
    *("list_path", "image_path", "train_path", "val_path", "pseudo_path", "train_split", "val_split"),
    *("image_suffix", "label_suffix"),
)

TRAIN_NAMES = ("train", "training", "train2017", "Train", "Training", "train_list")
VAL_NAMES = ("val", "valid", "validation", "val2017", "dev", "Val", "Valid", "Validation", "val_list")
# The folders of images and masks of nnU-Net, mmsegmentation, PaddleX, of VOC without its lists, and in the singular.
PAIRS = {"imagesTr": ["labelsTr"], "img_dir": ["ann_dir"], "JPEGImages": ["Annotations", *layout.MASKS]}
PAIRS |= {images: ["mask", "label", "annotation", *MASKS] for images in (IMAGES, "image")}
BESIDE = ("annot", "_annot", "_labels", "_masks", "_mask", "_label")  # what SMP's CamVid and others add to "train"
CLASS_FILES = ("classes.txt", "Classes.txt", "_classes.csv", "*/_classes.csv")  # the latter are Roboflow's
NUM_NAMES = 200  # image names to find the ends of names with
MOST = 0.9  # share of the images that must have a label of a name for it to be the rule


list_folder = functools.cache(layout.list_folder)


class NoDataSetError(UserError):
    """A folder has no layout that can be read without conversion."""


def guess_flags(root: Path, dataset: str, flags: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Return --dataset and the flags of GUESSED for a folder. Flags that are set stay.

    flags: {flag: value} of all of GUESSED. Raises NoDataSetError if no value of --dataset fits, and UserError if a
    split could be in two places, or if labels of several endings fit the images.
    """
    list_folder.cache_clear()
    if not root.is_dir():
        raise UserError(f"--dataset_path {root}: no such folder")
    known = _known_layout(root) if dataset in ("", "Folder") else {}
    if known and not any(flags[name] for name in ("image_path", "train_path", "val_path")):
        dataset, flags = "Folder", flags | known
    dataset = dataset or guess_dataset(root, flags)
    return dataset, _guess_layout(root, flags) if dataset == "Folder" else flags


def class_file(root: Path) -> str:
    """Return the path of the data set's own file of class names, or "" if there is none."""
    files = [file for pattern in CLASS_FILES for file in sorted(root.glob(pattern))]
    return next((str(file) for file in files if file.is_file()), "")


def _known_layout(root: Path) -> dict[str, str]:
    """Return the flags of the folders of another trainer's data set; {} if `root` is none."""
    if any((root / name).is_dir() for name in ("ImageSets", layout.SCRIBBLES, layout.PSEUDO)):
        return {}
    if (root / IMAGES).is_dir() and any((root / name).is_dir() for name in MASKS):  # the usual names
        return {}
    for images, masks in ((images, masks) for images, names in PAIRS.items() for masks in names):
        if (root / images).is_dir() and list_folder(root / masks, layout.LABEL_SUFFIXES):
            return {"image_path": images, "train_path": masks, "val_path": masks}
    for train in TRAIN_NAMES:
        for end in (end for end in BESIDE if (root / train).is_dir() and (root / f"{train}{end}").is_dir()):
            val = next((name for name in VAL_NAMES if (root / f"{name}{end}").is_dir()), "val")
            return {"image_path": ".", "train_path": f"../{train}{end}", "val_path": f"../{val}{end}"}
    return {}


def guess_dataset(root: Path, flags: dict[str, str]) -> str:
    """Return the value of --dataset that fits the folders below root.

    Raises NoDataSetError if no value fits.
    """
    if (root / layout.SCRIBBLES).is_dir():
        has_pseudo = (root / (flags["pseudo_path"] or layout.PSEUDO)).is_dir()
        return "ScribblePseudoDsDc" if has_pseudo else "ScribbleOnly"
    if (root / layout.PSEUDO).is_dir():
        return "PseudoOnly"
    if (root / "ImageSets").is_dir() or (root / "JPEGImages").is_dir():
        return "Dense"
    images = flags["image_path"] or IMAGES
    if (root / images).is_dir() or any((root / name / images).is_dir() for name in TRAIN_NAMES):
        return "Folder"
    for folder in (root / name for name in (*TRAIN_NAMES, "")):  # train/NAME.jpg and train/NAME_mask.png, or in root
        files = list_folder(folder, layout.IMAGE_SUFFIXES)
        if files and guess_endings(files, files, folder)[1]:
            return "Folder"
    if volume := next(root.glob("*/*.nii*"), None):
        raise NoDataSetError(f"{volume}: a volume, but only 2-D images are read: save its slices as 8-bit PNG")
    if flags["image_path"]:
        raise UserError(f"--image_path {images}: no such folder below --dataset_path {root}, nor below its splits")
    present = ", ".join(sorted(path.name for path in root.iterdir())[:8]) or "nothing"
    raise NoDataSetError(
        f"{root}: no data set: it has neither images and masks (plain folders) nor JPEGImages and ImageSets (VOC's "
        f"layout), but {present}; pass its root folder, or name the folders with --dataset Folder, --image_path, "
        f"--train_path and --val_path{find_flags(root)}"
    )


def _guess_layout(root: Path, flags: dict[str, str]) -> dict[str, str]:
    """Return the flags with the names of the splits, the folders and the ends of names of a data set in plain folders.

    Raises UserError if a split could be in two places, or if labels of several ends fit the images.
    """
    in_images = (root / IMAGES).is_dir() or any((root / name / IMAGES).is_dir() for name in TRAIN_NAMES)
    if not flags["image_path"] and not in_images:  # train/NAME.jpg and train/NAME_mask.png
        paths = {name: flags[name] or "." for name in ("train_path", "val_path")}
        flags = flags | paths | {"image_path": "."}
    splits = (("train_split", TRAIN_NAMES), ("val_split", VAL_NAMES))
    flags = flags | {flag: flags[flag] or _split_name(root, flags, names) for flag, names in splits}
    if flags["image_suffix"] or flags["label_suffix"]:
        return flags
    folders = {"images": flags["image_path"], "masks": flags["train_path"]}
    try:
        images, masks, _ = find_plain(root, flags["train_split"] or "train", **folders, list_path=flags["list_path"])
    except UserError:  # reading the split reports this error later
        images, masks, _ = find_whole(root, **folders)
    present = list_folder(images, layout.IMAGE_SUFFIXES), list_folder(masks, layout.ANY_SUFFIXES)
    image_suffix, label_suffix = guess_endings(*present, masks)
    return flags | {"image_suffix": image_suffix, "label_suffix": label_suffix}


def _split_name(root: Path, flags: dict[str, str], names: tuple[str, ...]) -> str:
    """Return the first of the names that is a split, "" for the default one or if none is."""
    folders = flags["image_path"], flags["val_path"], flags["list_path"]
    splits = [name for name in names if find_places(root, name, *folders)]
    return "" if not splits or splits[0] == names[0] else splits[0]


def guess_endings(images: Collection[str], labels: Collection[str], folder: Path) -> tuple[str, str]:
    """Return the ends of the names of images and labels, such as ("_sat", "_mask").

    images, labels: names without suffix; equal if one folder has both. folder: the labels' folder, for messages. Both
    ends are "" if images and labels have the same names, or if no ends pair most images. Raises UserError if labels
    with several ends fit the images.
    """
    in_one_folder = set(images) == set(labels)
    names = sorted(images) if in_one_folder else sorted(set(images) - set(labels))
    if not names or 2 * len(names) < len(images):
        return "", ""
    names = names[:: math.ceil(len(names) / NUM_NAMES)]
    wanted = MOST * len(names) / (1 + in_one_folder)  # in one folder, half of the names are labels
    # The label of an image of the same name, such as the left one of a stereo pair, belongs to no other image.
    ordered = sorted(labels if in_one_folder else set(labels) - set(images))
    for ending in _own_endings(sorted(images)):
        counts = Counter(rest for name in names for rest in _rests(name.removesuffix(ending), ordered))
        endings = sorted(rest for rest, count in counts.items() if count >= wanted and rest != ending)
        if len(endings) > 1:
            shown, flag = " and ".join(endings[:4]), f"--image_suffix {ending} and " if ending else ""
            raise UserError(f"{folder}: labels of the images end in {shown}: choose one with {flag}--label_suffix")
        if endings:
            return ending, endings[0]
    return "", ""


def _own_endings(names: list[str]) -> list[str]:
    """Return "" and the words that all names end in, the last one first, such as "_vis" and "_windshield_vis"."""
    words = r"(?:[_.-][^/_.-]*[A-Za-z][^/_.-]*)+$|_0000$"  # the latter: nnU-Net's first channel
    run = match[0] if (match := re.search(words, names[0])) else ""
    endings = [run[at:] for at in reversed(range(len(run))) if run[at] in "_.-"]
    return ["", *(ending for ending in endings if all(name.endswith(ending) for name in names))]


def _rests(name: str, ordered: list[str]) -> Iterator[str]:
    """Yield what follows `name` in the labels that begin with it, of the first 20. ordered: names of labels, sorted."""
    first = bisect_left(ordered, name)
    for label in ordered[first : first + 20]:
        if label.startswith(name):
            yield label.removeprefix(name)
