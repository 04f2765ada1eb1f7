"""Find the files of a data set: the names in each split, and the file of each of their maps.

There are two layouts: plain folders (--dataset Folder), and PASCAL VOC's with ScribbleSup's labels (all others).
"""

import os
import posixpath
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from data.images import IMAGE_SUFFIXES, LABEL_SUFFIXES, NO_JPEG
from errors import UserError

LISTS = ("ImageSets/SegmentationAug", "ImageSets/Segmentation")
MASKS = ("SegmentationClassAug", "SegmentationClass")
SCRIBBLES = "pascal_2012_scribble"
PSEUDO = "bmp_pseudolabel"
ANY_SUFFIXES = tuple(dict.fromkeys((*LABEL_SUFFIXES, *IMAGE_SUFFIXES)))  # finds JPEG masks, to name them

# What to do with well-known data sets as they are released.
CITYSCAPES = (
    "in Cityscapes as released, an image X_leftImg8bit.png and its label X_gtFine_labelTrainIds.png differ in name: "
    "link each label as masks/SPLIT/CITY/X_leftImg8bit.png, then use --dataset Folder --image_path leftImg8bit and no "
    "other folder flag (code in docs/your_data.md); labelTrainIds, written by Cityscapes' csCreateTrainIdLabelImgs, "
    "hold the 19 classes; labelIds do not"
)
ADE20K = (
    "in ADE20K as released, labels count from 1 and 0 is 'other': subtract 1 from each label, so that 0 becomes 255 "
    "(ignored) and 1..150 become 0..149, then use --numclasses 150 --classes ade20k (code in docs/your_data.md)"
)

Files = dict[str, list[Path]]


@dataclass(frozen=True)
class Split:
    """The folder of each map, {"image": folder, "label": folder, ...}, and the names to find there.

    listed: the names in list_file; None if every file in the image folder belongs to the split.
    plain: plain folders, where two files may not share a name.
    """

    folders: dict[str, Path]
    listed: list[str] | None = None
    list_file: Path | None = None
    plain: bool = False


def find_split(
    root: Path, dataset: str, split: str, maps: dict[str, str], *, list_path: str = "", image_path: str = ""
) -> Split:
    """Find the list and the folders of a split.

    maps: the maps wanted, each with its folder below root, or "" for the default one: {"label": "", "pseudo": ""}.
    By default "label" is the scribbles if split is "train", unless dataset is "Dense" or "Folder", and the dense masks
    otherwise. Distance maps have no default. Raises UserError if the list or the split is missing.
    """
    if not root.is_dir():
        raise UserError(f"--dataset_path {root}: no such folder")
    if dataset == "Folder":
        return _plain_split(root, split, image_path or "images", maps.get("label") or "masks", list_path)
    list_file = first_folder(root, list_path, *LISTS) / f"{split}.txt"
    if not list_file.exists():
        if (root / "images").is_dir() and (root / "masks").is_dir():
            raise UserError(
                f"{list_file}: no such list, but {root} has images and masks: for plain folders use --dataset Folder, "
                f"not {dataset}"
            )
        check_released(root)
    defaults = {"label": MASKS if dataset == "Dense" or split != "train" else (SCRIBBLES,), "pseudo": (PSEUDO,)}
    folders = {"image": first_folder(root, image_path, "JPEGImages")}
    folders |= {kind: first_folder(root, path, *defaults.get(kind, (kind,))) for kind, path in maps.items()}
    return Split(folders, read_list(list_file), list_file)


def first_folder(root: Path, chosen: str, *defaults: str) -> Path:
    """The chosen folder below root, or else the first default that exists."""
    if chosen:
        return root / chosen
    return next((root / name for name in defaults if (root / name).is_dir()), root / defaults[0])


def _plain_split(root: Path, split: str, images: str, masks: str, list_path: str) -> Split:
    """A split of plain folders: subfolders (images/train, masks/train), or a list (train.txt) of files in images."""
    list_file, folder = root / list_path / f"{split}.txt", root / images / split
    if not list_path and folder.is_dir():
        if list_file.is_file():
            raise UserError(
                f"{list_file} and {folder}: both would be the split {split!r}: remove or rename one, or choose the "
                "list with --list_path ."
            )
        return Split({"image": folder, "label": root / masks / split}, plain=True)
    if not list_file.is_file():
        check_released(root, images)
        looked_for = f"list {list_file}" if list_path else f"folder {folder} and the list {list_file}"
        raise UserError(
            f"{root}: no split {split!r}: looked for the {looked_for}; make a folder of that name in {images} and "
            "another for the masks, or a list with one image name a line"
        )
    return Split(
        {"image": root / images, "label": root / masks}, read_list(list_file, plain=True), list_file, plain=True
    )


def check_released(root: Path, images: str = "images") -> None:
    """Raise UserError, with the remedy, if the folder holds Cityscapes or ADE20K as released.

    images: the folder where images were looked for.
    """
    if not (root / images).is_dir() and (root / "leftImg8bit").is_dir():
        raise UserError(f"{root}: {CITYSCAPES}")
    if all((root / folder / "training").is_dir() for folder in ("images", "annotations")):
        raise UserError(
            f"{root}: its folders are named training and validation: rename them to train and val in images and "
            f"annotations, and use --dataset Folder --train_path annotations --val_path annotations; {ADE20K}"
        )


def read_list(path: Path, *, plain: bool = False) -> list[str]:
    """The names in a list file, one a line, in Unicode form NFC. plain: names may have folders, spaces and suffixes."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the list cannot be read ({getattr(error, 'strerror', error)})") from None
    names = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not plain and ("/" in line or len(line.split()) > 1):
            raise UserError(
                f"{path} line {number}: {line!r}: write one image name on each line, without folder or space"
            )
        if line:
            names.append(unicodedata.normalize("NFC", posixpath.normpath(line.replace("\\", "/"))))
    if not names:
        raise UserError(f"{path}: the list is empty; expected one image name a line")
    return names


def list_folder(folder: Path, suffixes: tuple[str, ...]) -> Files:
    """All files below the folder by name, the preferred suffix first: {"sub/x": [folder/sub/x.jpg, ...]}, sorted.

    Names are in Unicode form NFC: macOS stores another form than lists and other systems. Skips hidden files and
    folders, and what systems leave behind (._x, .DS_Store, __MACOSX). A missing folder has no files.
    """

    def fail(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be listed ({error.strerror})")

    def is_kept(parent: str, name: str) -> bool:
        loops = f"{os.path.realpath(parent)}/".startswith(os.path.realpath(os.path.join(parent, name)) + "/")
        return not name.startswith((".", "__MACOSX", "@eaDir")) and not loops  # loops: a link to a folder above

    found: dict[str, list[tuple[bool, int, str]]] = {}
    for parent, folders, files in os.walk(folder, onerror=fail, followlinks=True) if folder.is_dir() else ():
        folders[:] = [name for name in folders if is_kept(parent, name)]
        subfolder = Path(parent).relative_to(folder).as_posix()
        for file in files:
            stem, suffix = os.path.splitext(file)
            if suffix.lower() in suffixes and not file.startswith("."):
                name = unicodedata.normalize("NFC", posixpath.normpath(f"{subfolder}/{stem}"))
                rank = suffix != suffix.lower(), suffixes.index(suffix.lower())
                found.setdefault(name, []).append((*rank, os.path.join(parent, file)))
    return {name: [Path(path) for *_, path in sorted(paths)] for name, paths in sorted(found.items())}


def match_files(
    split: Split, list_files: Callable[[Path, tuple[str, ...]], Files] = list_folder
) -> list[tuple[str, Files]]:
    """The names of a split, each with its files in every folder: {map: [files]}, an empty list if there is none."""
    present = {
        kind: list_files(folder, IMAGE_SUFFIXES if kind == "image" else ANY_SUFFIXES)
        for kind, folder in split.folders.items()
    }
    names = [without_suffix(name, present["image"]) for name in split.listed or ()] or list(present["image"])
    return [(name, {kind: files.get(name, []) for kind, files in present.items()}) for name in names]


def without_suffix(listed: str, images: Files) -> str:
    """The key in `images` for a listed name, which may have a suffix."""
    stem, suffix = posixpath.splitext(listed)
    return stem if listed not in images and suffix.lower() in IMAGE_SUFFIXES else listed


def pair_files(split: Split) -> tuple[list[str], list[dict[str, Path]]]:
    """The names of a split and the files of each, {map: file}. Raises UserError for a missing or ambiguous file."""
    for kind, folder in split.folders.items():
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder (for the {kind} files)")
    names, paired = [], []
    for name, found in match_files(split):
        for kind, files in found.items():
            if not files:
                raise UserError(_describe_missing(split, name, kind, found["image"]))
            if split.plain and len(files) > 1:
                raise UserError(f"{files[0]} and {files[1].name}: two files of one name: remove or rename one")
            if kind != "image" and not files[0].name.lower().endswith(LABEL_SUFFIXES):
                raise UserError(f"{files[0]}: {NO_JPEG}")
        names.append(name)
        paired.append({kind: files[0] for kind, files in found.items()})
    if not names:
        raise UserError(f"{split.folders['image']}: no images in it ({_or(IMAGE_SUFFIXES)})")
    return names, paired


def _describe_missing(split: Split, name: str, kind: str, images: list[Path]) -> str:
    folder = split.folders[kind]
    if kind == "image":
        return f"{split.list_file}: {name!r}: no such image in {folder} (looked for {_or(IMAGE_SUFFIXES)})"
    if is_cityscapes(folder / f"{name}.png"):
        return f"{images[0]}: no label of this name; {CITYSCAPES}"
    if not split.plain:
        return f"{folder / name}.png: no such file, but the list names {name!r}"
    return (
        f"{images[0]}: an image without a mask: expected {folder / name}.png (or {', '.join(LABEL_SUFFIXES[1:])}); add "
        "the mask, or move the image away"
    )


def is_cityscapes(label: Path) -> bool:
    """Whether a label is missing because it still has the name of the Cityscapes release."""
    stem = label.stem.removesuffix("_leftImg8bit")
    released = (f"{stem}_gt{kind}_label{ids}.png" for kind in ("Fine", "Coarse") for ids in ("TrainIds", "Ids"))
    return stem != label.stem and any(label.with_name(name).is_file() for name in released)


def _or(suffixes: tuple[str, ...]) -> str:
    return f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
