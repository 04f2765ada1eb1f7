"""Where the files of a data set lie: the names of a split, and the folder of each of its maps.

Two layouts: plain folders (--dataset Folder), and that of PASCAL VOC and ScribbleSup (every other --dataset).
"""

import posixpath
import unicodedata
from collections.abc import Collection
from pathlib import Path

from data.dataset import IMAGE_SUFFIXES, LABEL_SUFFIXES, NO_JPEG, list_folder, read_list
from errors import UserError

LISTS = ("ImageSets/SegmentationAug", "ImageSets/Segmentation")
DENSE = ("SegmentationClassAug", "SegmentationClass")
SCRIBBLES = "pascal_2012_scribble"
PSEUDO = "bmp_pseudolabel"
ANY_SUFFIXES = tuple(dict.fromkeys((*LABEL_SUFFIXES, *IMAGE_SUFFIXES)))

# What to do with well-known data sets as they are released.
CITYSCAPES = (
    "in Cityscapes as released, an image X_leftImg8bit.png and its label X_gtFine_labelTrainIds.png differ in name: link "
    "each label as masks/SPLIT/CITY/X_leftImg8bit.png, then use --dataset Folder --image_path leftImg8bit and no other "
    "folder flag (code in docs/your_data.md); labelTrainIds, written by Cityscapes' csCreateTrainIdLabelImgs, "
    "hold the 19 classes; labelIds do not"
)
ADE20K = (
    "in ADE20K as released, labels count from 1 and 0 is 'other': subtract 1 from each label, so that 0 becomes 255 "
    "(ignored) and 1..150 become 0..149, then use --numclasses 150 --classes ade20k (code in docs/your_data.md)"
)


def find_files(
    root: Path, dataset: str, split: str, maps: dict[str, str], *, list_path: str = "", image_path: str = ""
) -> tuple[list[str], dict[str, Path]]:
    """The names of a split, and the folders of its images and maps, as SegmentationDataset takes them.

    maps: those wanted, each with its folder relative to root, or "" for the usual one: {"label": "", "pseudo": ""}.
    The usual folder of "label" holds scribbles in the split "train", unless dataset is "Dense" or "Folder"; otherwise
    dense masks. Distance maps have no usual folder.
    Raises UserError where folders or lists are missing and, for "Folder", where an image or its mask is.
    """
    if not root.is_dir():
        raise UserError(f"--dataset_path {root}: no such folder")
    if dataset == "Folder":
        return _plain(root, split, image_path or "images", maps.get("label") or "masks", list_path)
    listed = first_folder(root, list_path, *LISTS) / f"{split}.txt"
    if not listed.exists() and (root / "images").is_dir() and (root / "masks").is_dir():
        raise UserError(
            f"{listed}: no such list, but {root} has images and masks: plain folders are --dataset Folder, not {dataset}"
        )
    if not listed.exists():
        check_released(root)
    names = read_list(listed)
    labels = DENSE if dataset == "Dense" or split != "train" else (SCRIBBLES,)
    usual = {"label": labels, "pseudo": (PSEUDO,)}
    folders = {"image": first_folder(root, image_path, "JPEGImages")}
    return names, folders | {kind: first_folder(root, path, *usual.get(kind, (kind,))) for kind, path in maps.items()}


def first_folder(root: Path, chosen: str, *usual: str) -> Path:
    """The chosen folder below root, or else the first of the usual ones that is there."""
    if chosen:
        return root / chosen
    return next((root / name for name in usual if (root / name).is_dir()), root / usual[0])


def _plain(root: Path, split: str, images: str, masks: str, list_path: str) -> tuple[list[str], dict[str, Path]]:
    """The split as subfolders (images/train, masks/train), or as a list of names (train.txt) below images."""
    names_file = plain_list(root, split, images, list_path)
    folders = {"image": root / images, "label": root / masks}
    if names_file is None:
        folders = {kind: folder / split for kind, folder in folders.items()}
    for kind, folder in folders.items():
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder (for the {kind} files)")
    image_files = list_folder(folders["image"], IMAGE_SUFFIXES)
    label_files = list_folder(folders["label"], ANY_SUFFIXES)
    names = list(image_files) if names_file is None else read_names(names_file)
    if not names:
        raise UserError(f"{folders['image']}: no images in it ({_or(IMAGE_SUFFIXES)})")
    return [_pair(name, names_file, folders, image_files, label_files) for name in names], folders


def plain_list(root: Path, split: str, images: str, list_path: str) -> Path | None:
    """The list of a split of plain folders; None where the split is a subfolder of `images`."""
    listed, folder = root / list_path / f"{split}.txt", root / images / split
    if not list_path and folder.is_dir():
        if listed.is_file():
            raise UserError(
                f"{listed} and {folder}: both would be the split {split!r}: remove or rename one, or take the list by "
                "--list_path ."
            )
        return None
    if not listed.is_file():
        check_released(root, images)
        raise UserError(
            f"{root}: no split {split!r}: looked for the {f'list {listed}' if list_path else f'folder {folder} and the list {listed}'}; "
            f"make a folder of that name in {images} and another for the masks, or a list with one image name a line"
        )
    return listed


def check_released(root: Path, images: str = "images") -> None:
    """Raise UserError, with what to do, where the folder holds Cityscapes or ADE20K as released.

    images: the folder where images were looked for.
    """
    if not (root / images).is_dir() and (root / "leftImg8bit").is_dir():
        raise UserError(f"{root}: {CITYSCAPES}")
    if all((root / folder / "training").is_dir() for folder in ("images", "annotations")):
        raise UserError(
            f"{root}: its folders are named training and validation: rename them to train and val in images and annotations, "
            f"and use --dataset Folder --train_path annotations --val_path annotations; {ADE20K}"
        )


def is_cityscapes(name: str, labels: Collection[str]) -> bool:
    """Whether an image of this name has a label that is named as in Cityscapes, and not like the image."""
    stem = name.removesuffix("_leftImg8bit")
    return stem != name and any(
        f"{stem}_gt{kind}_label{ids}" in labels for kind in ("Fine", "Coarse") for ids in ("TrainIds", "Ids")
    )


def read_names(path: Path) -> list[str]:
    """The names in a list of plain folders, one a line: they may have spaces, folders and suffixes."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the list cannot be read ({getattr(error, 'strerror', error)})") from None
    names = [posixpath.normpath(line.strip().replace("\\", "/")) for line in lines if line.strip()]
    if not names:
        raise UserError(f"{path}: the list is empty; expected one image name a line")
    return [unicodedata.normalize("NFC", name) for name in names]


def without_suffix(name: str, present: dict[str, list[str]]) -> str:
    """A listed name as `present` (of list_folder) has it: without its suffix, if the list gives one."""
    stem, suffix = posixpath.splitext(name)
    return stem if name not in present and suffix.lower() in IMAGE_SUFFIXES else name


def _pair(
    listed: str, names_file: Path | None, folders: dict[str, Path],
    image_files: dict[str, list[str]], label_files: dict[str, list[str]],
) -> str:  # fmt: skip
    """The name under which both folders have one file each, an image and a mask that is no JPEG."""
    name = without_suffix(listed, image_files)
    if name not in image_files:
        raise UserError(
            f"{names_file}: {listed!r}: no such image in {folders['image']} (looked for {name} with {_or(IMAGE_SUFFIXES)})"
        )
    for kind, files in (("image", image_files), ("label", label_files)):
        found = files.get(name, [])
        if len(found) > 1:
            raise UserError(f"{folders[kind] / found[0]} and {found[1]}: two files of one name: remove or rename one")
    image = folders["image"] / image_files[name][0]
    if name not in label_files:
        if is_cityscapes(name, label_files):
            raise UserError(f"{image}: no label of this name; {CITYSCAPES}")
        raise UserError(
            f"{image}: an image without a mask: expected {folders['label'] / name}.png "
            f"(or {', '.join(LABEL_SUFFIXES[1:])}); add the mask, or move the image away"
        )
    mask = label_files[name][0]
    if not mask.lower().endswith(LABEL_SUFFIXES):
        raise UserError(f"{folders['label'] / mask}: {NO_JPEG}")
    return name


def _or(suffixes: tuple[str, ...]) -> str:
    return " or ".join((", ".join(suffixes[:-1]), suffixes[-1]))
