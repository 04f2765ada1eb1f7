"""Find the files of a data set: the names in each split, and the file of each of their maps.

There are two layouts: plain folders (--dataset Folder), and PASCAL VOC's with ScribbleSup's labels (all others).
"""

import os
import posixpath
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from data.images import IMAGE_SUFFIXES, LABEL_SUFFIXES, NO_JPEG, pictures
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
    """Where the files of one split are.

    folders: {"image": folder, and one folder per label map, such as "label" or "pseudo"}.
    listed: image names in list_file; None if every file in the image folder belongs to the split.
    plain: whether the layout is plain folders; then two files in a folder may not differ only in suffix.
    """

    folders: dict[str, Path]
    listed: list[str] | None = None
    list_file: Path | None = None
    plain: bool = False


def find_split(
    root: Path, dataset: str, split: str, maps: dict[str, str], *, list_path: str = "", image_path: str = ""
) -> Split:
    """Return the Split of a data set: its folders and the names in its list.

    root: the data set's folder. dataset: as --dataset. split: such as "train". list_path, image_path: "" for defaults.
    maps: {map: folder below root, or "" for the default one}, such as {"label": "", "pseudo": ""}. The default of
    "label" is the dense masks; for split "train" it is the scribbles, unless dataset is "Dense" or "Folder". Distance
    maps default to the folder `root`/MAP.
    Raises UserError if root, the list or the split is missing. The folders of label maps need not exist.
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
    """Return root/chosen; if `chosen` is "", the first of root/default that exists, or else root/(first default)."""
    if chosen:
        return root / chosen
    return next((root / name for name in defaults if (root / name).is_dir()), root / defaults[0])


def _plain_split(root: Path, split: str, images: str, masks: str, list_path: str) -> Split:
    """Return the Split of a data set in plain folders; raise UserError if the split is missing or ambiguous.

    A split is a pair of subfolders (images/train, masks/train) or a list (train.txt) of files in `images`.
    """
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
    """Raise UserError, with the remedy, if the folder `root` holds Cityscapes or ADE20K as released.

    images: the folder below root where images were looked for.
    """
    if not (root / images).is_dir() and (root / "leftImg8bit").is_dir():
        raise UserError(f"{root}: {CITYSCAPES}")
    if all((root / folder / "training").is_dir() for folder in ("images", "annotations")):
        raise UserError(
            f"{root}: its folders are named training and validation: rename them to train and val in images and "
            f"annotations, and use --dataset Folder --train_path annotations --val_path annotations; {ADE20K}"
        )


def read_list(path: Path, *, plain: bool = False) -> list[str]:
    """Return the names in a list file, one a line, in Unicode form NFC, without empty lines.

    plain: names may have folders, spaces and suffixes. Raises UserError if the file cannot be read, has no name, or has
    a name that is not allowed.
    """
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
    """Return all files below a folder by name, sorted: {"sub/x": [folder/sub/x.jpg, folder/sub/x.png], ...}.

    A name has no suffix and is in Unicode form NFC, because macOS stores another form than lists and other systems.
    suffixes: lower-case suffixes of the files to list; files of one name are in the order of `suffixes`. Skips hidden
    files and folders, and what systems leave behind (._x, .DS_Store, __MACOSX). Returns {} for a missing folder. Raises
    UserError if a folder cannot be listed.
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
    return {name: pictures([Path(path) for *_, path in sorted(paths)]) for name, paths in sorted(found.items())}


def match_files(
    split: Split, list_files: Callable[[Path, tuple[str, ...]], Files] = list_folder
) -> list[tuple[str, Files]]:
    """Return (name, {map: [files]}) for each name of a split; [] stands for no file of that name.

    list_files: called with a folder and suffixes; returns {name: [files]}.
    """
    present = {
        kind: list_files(folder, IMAGE_SUFFIXES if kind == "image" else ANY_SUFFIXES)
        for kind, folder in split.folders.items()
    }
    names = [without_suffix(name, present["image"]) for name in split.listed or ()] or list(present["image"])
    return [(name, {kind: files.get(name, []) for kind, files in present.items()}) for name in names]


def without_suffix(listed: str, images: Files) -> str:
    """Return a listed name as it is keyed in `images`: without its image suffix, unless the whole name is a key."""
    stem, suffix = posixpath.splitext(listed)
    return stem if listed not in images and suffix.lower() in IMAGE_SUFFIXES else listed


def pair_files(split: Split) -> tuple[list[str], list[dict[str, Path]]]:
    """Return the image names of a split and, in the same order, the files of each image, {map: file}.

    Raises UserError if a folder or a file is missing, two files have one name, a label is a JPEG, or there are no
    images.
    """
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
    """Return True if the label file's folder has the label under its name in the Cityscapes release instead.

    label: expected path, such as X_leftImg8bit.png; the released name is X_gtFine_labelTrainIds.png or similar.
    """
    stem = label.stem.removesuffix("_leftImg8bit")
    released = (f"{stem}_gt{kind}_label{ids}.png" for kind in ("Fine", "Coarse") for ids in ("TrainIds", "Ids"))
    return stem != label.stem and any(label.with_name(name).is_file() for name in released)


def _or(suffixes: tuple[str, ...]) -> str:
    return f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
