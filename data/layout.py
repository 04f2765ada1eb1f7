"""Find the files of a data set: the names in each split, and the file of each of their maps.

There are two layouts: plain folders (--dataset Folder), and PASCAL VOC's with ScribbleSup's labels (all others).
"""

import codecs
import functools
import posixpath
import re
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from data.folders import Files, left_out, list_folder
from data.images import NO_JPEG
from data.images.files import IMAGE_SUFFIXES, LABEL_SUFFIXES
from data.plain import ListError, find_flags, find_plain
from support.errors import InputError, UserError
from support.files import read_bytes
from support.terminal import warn

LISTS = ("ImageSets/SegmentationAug", "ImageSets/Segmentation")
MASKS = ("SegmentationClassAug", "SegmentationClass")
SCRIBBLES = "pascal_2012_scribble"
PSEUDO = "bmp_pseudolabel"
# An image and its mask in a list: "," or ";" or a tab between them, or spaces if the second one is in a folder.
_FILE = r"\.(?:jpe?g|png|bmp|tiff?|webp)"
_PAIR = re.compile(rf"(.+?{_FILE})(?:\s*[,;\t]\s*|\s+(?=\S*/))(.+{_FILE})", re.IGNORECASE)
ITSELF = "is the image and its label at once: name the ending of label files with --label_suffix"
MAX_LIST, MAX_LINE = 2**28, 4096  # bytes; a path of Linux has at most 4096
ANY_SUFFIXES = tuple(dict.fromkeys((*LABEL_SUFFIXES, *IMAGE_SUFFIXES)))  # finds JPEG masks, to name them

# {map: flag that names its folder}. --train_path and --val_path name the folders of labels.
PATH_FLAGS = {"image": "--image_path", "pseudo": "--pseudo_path"}
PATH_FLAGS |= {"distance_s": "--distancemap_s", "distance_c": "--distancemap_c"}


@dataclass(frozen=True)
class Split:
    """The folders and the list of one split.

    folders: {"image": folder, and one folder per label map, such as "label" or "pseudo"}.
    listed: image names in list_file, or None if every file in the image folder belongs to the split.
    endings: {map: ending of its file names, before the file suffix}, as in --image_suffix and --label_suffix. Files are
    paired by their names without it, and files with another ending are ignored. Maps without an entry use all files.
    """

    folders: dict[str, Path]
    listed: list[str] | None = None
    list_file: Path | None = None
    endings: dict[str, str] = field(default_factory=dict)

    @functools.cached_property
    def pairs(self) -> tuple[list[str], list[dict[str, Path]]]:
        """Return (the name of each image, the files of each image as {map: path}). Lists the folders once.

        Raises UserError if a folder is missing, if there are no images, or as choose().
        """
        for kind, folder in self.folders.items():
            if not folder.is_dir():
                flags = PATH_FLAGS.get(kind, "--train_path or --val_path")
                raise UserError(f"{folder}: no such folder (for the {kind} files): create it, or correct {flags}")
        matches = match_files(self)
        if not matches:
            raise UserError(f"{self.folders['image']}: no images in it ({', '.join(IMAGE_SUFFIXES)})")
        return [name for name, _ in matches], [self.choose(name, found) for name, found in matches]

    def choose(self, name: str, found: Files) -> dict[str, Path]:
        """Return the file of each map of an image among those that match_files() found.

        Raises InputError if a map has no file or two of one name, or if a label is a JPEG or the image itself.
        """
        for kind, files in found.items():
            if kind in self.in_images and files and files[0].name == found["image"][0].name:
                raise InputError(f"{files[0]}: {ITSELF}, or set their folder with --train_path or --val_path")
            if not files:
                raise InputError(_describe_missing(self, name, kind, found["image"]))
            if len(files) > 1:
                raise InputError(f"{files[0]} and {files[1].name}: two files of one name: remove or rename one")
            if kind != "image" and not files[0].name.lower().endswith(LABEL_SUFFIXES):
                raise InputError(f"{files[0]}: {NO_JPEG}")
        return {kind: files[0] for kind, files in found.items()}

    @functools.cached_property
    def in_images(self) -> set[str]:
        """Return the maps whose folder is that of the images, where an image must not be taken for its own label."""
        images = self.folders["image"].resolve()
        return {kind for kind, folder in self.folders.items() if kind != "image" and folder.resolve() == images}

    @property
    def files(self) -> list[dict[str, Path]]:
        return self.pairs[1]


def find_split(
    root: Path,
    dataset: str,
    split: str,
    maps: dict[str, str],
    *,
    list_path: str = "",
    image_path: str = "",
    image_suffix: str = "",
    label_suffix: str = "",
) -> Split:
    """Return the Split of a data set: its folders and the names in its list.

    root: the data set's folder. dataset: as --dataset. split: such as "train". The keyword arguments are the flags of
    the same names; "" for defaults.
    maps: {map: folder below root, or "" for the default one}, such as {"label": "", "pseudo": ""}. The default of
    "mask" is the dense masks, that of "scribble" the scribbles, and that of "label" the dense masks if dataset is
    "Dense" or "Folder", else the scribbles. Distance maps default to the folder `root`/MAP.
    Raises UserError if root, the list or the split is missing. The folders of label maps need not exist.
    """
    if not root.is_dir():
        raise UserError(f"--dataset_path {root}: no such folder")
    endings = {"image": image_suffix} | dict.fromkeys(maps, label_suffix)
    if dataset == "Folder":
        kind, masks = next(iter(maps.items()), ("label", ""))
        place = find_plain(root, split, images=image_path, masks=masks, list_path=list_path)
        folders, list_file = {"image": place.images, kind: place.masks}, place.list_file
        if not list_file:
            return Split(folders, None, None, endings)
        _check_pairs(root, list_file, folders, endings, kind)
        return Split(folders, read_list(list_file, place.images.name), list_file, endings)
    list_file = first_folder(root, list_path, *LISTS) / f"{split}.txt"
    if not list_file.exists():
        others = " and ".join(sorted(path.stem for path in list_file.parent.glob("*.txt"))[:8])
        choose = "choose with --train_split or --val_split (other programs: --split)"
        remedy = f", but {others}: {choose}" if others else find_flags(root)
        raise UserError(f"{list_file}: no such list{remedy}")
    defaults = {"label": MASKS if dataset == "Dense" else (SCRIBBLES,), "pseudo": (PSEUDO,)}
    defaults |= {"mask": MASKS, "scribble": (SCRIBBLES,)}
    folders = {"image": first_folder(root, image_path, "JPEGImages")}
    folders |= {kind: first_folder(root, path, *defaults.get(kind, (kind,))) for kind, path in maps.items()}
    for kind in maps.keys() & {"label", "mask"} if dataset == "Dense" else ():  # other lists may name the dense masks
        _check_pairs(root, list_file, folders, endings, kind)
    return Split(folders, read_list(list_file, folders["image"].name), list_file, endings)


def _check_pairs(root: Path, list_file: Path, folders: dict[str, Path], endings: dict[str, str], kind: str) -> None:
    """Raise UserError if a list names one mask, and another one has the image's name and would be read."""
    masks = folders[kind]
    for image, mask in (_split_pair(line, folders["image"].name) for line in _lines(list_file)):
        stem = posixpath.splitext(posixpath.basename(image))[0].removesuffix(endings["image"]) + endings[kind]
        named = root / mask.lstrip("/")
        if not mask or not named.is_file() or (named.stem == stem and named.is_relative_to(masks)):
            continue
        if any((masks / f"{stem}{suffix}").is_file() for suffix in LABEL_SUFFIXES):
            remedy = "move the mask there, or choose its folder with --val_path and its name with --label_suffix"
            raise ListError(f"{list_file}: names the mask {mask}, but {masks / stem}.png would be read: {remedy}")


def first_folder(root: Path, chosen: str, *defaults: str) -> Path:
    """Return root/chosen; if `chosen` is "", the first of root/default that exists, or else root/(last default)."""
    if chosen:
        return root / chosen
    return next((root / name for name in defaults if (root / name).is_dir()), root / defaults[-1])


def read_list(path: Path, folder: str = "") -> list[str]:
    """Return the names in a list file, one a line, in Unicode form NFC, without empty lines.

    Names may have folders, spaces and suffixes. A line may be "FOLDER/IMAGE FOLDER/MASK", as PaddleX writes it, or the
    mask first, or with a comma between. folder: the name of the images' folder. Raises UserError if the file cannot be
    read or has no name.
    """
    pairs = [_split_pair(line, folder) for line in _lines(path)]
    names = [unicodedata.normalize("NFC", posixpath.normpath(image)) for image, _ in pairs]
    if not names:
        raise UserError(f"{path}: the list is empty; expected one image name a line")
    return names


def find_labels(folder: Path, list_file: Path | None = None) -> dict[str, Path]:
    """Return {name without suffix: file} of the labels below a folder, or of those in a list file, one name per line.

    Raises UserError if there is none, a listed one is missing, or two have one name. Warns of JPEGs that are left out.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    labels, files = list_folder(folder, LABEL_SUFFIXES), list_folder(folder, ANY_SUFFIXES)
    if twice := next((paths for paths in labels.values() if len(paths) > 1), None):
        raise UserError(f"{twice[0]} and {twice[1].name}: two files of one name: remove or rename one")
    if not labels:
        raise UserError(f"{folder}: no label map in it ({', '.join(LABEL_SUFFIXES)})")
    if not list_file and (others := sorted(files.keys() - labels.keys())):
        warn(f"{len(others)} JPEG file(s), such as {files[others[0]][0]}, left out: {NO_JPEG}")
    names = [without_suffix(line, labels) for line in read_list(list_file)] if list_file else list(labels)
    if missing := [name for name in names if name not in labels]:
        raise UserError(f"{list_file}: {missing[0]!r}: no label map of this name in {folder}")
    return {name: labels[name][0] for name in names}


def _split_pair(line: str, folder: str) -> tuple[str, str]:
    """Return the (image, mask) of a line in a list; the mask is "" if the line names only the image.

    The mask is first if only the other one is a JPEG, or in a folder of the images' name, `folder`.
    """
    match = _PAIR.fullmatch(line)
    if not match or _PAIR.fullmatch(match[2]):
        return line, ""
    first, second = match.groups()
    signs = [(f"/{folder}/" in f"/{name}", name.lower().endswith((".jpg", ".jpeg"))) for name in (first, second)]
    return (second, first) if signs[1] > signs[0] else (first, second)


def _lines(path: Path) -> list[str]:
    """Return the lines of a list with "/" in paths, without empty ones. Raises UserError if it cannot be read."""
    try:
        lines = [line.strip() for line in read_bytes(path, MAX_LIST).removeprefix(codecs.BOM_UTF8).split(b"\n")]
        for number, line in enumerate(lines, 1):
            if b"\0" in line[:MAX_LINE]:
                raise InputError(f"not UTF-8: line {number} has a NUL byte")
            if len(line) > MAX_LINE:
                raise InputError(f"line {number} has {len(line)} bytes, but at most {MAX_LINE} are read")
    except InputError as error:
        why = f"the list cannot be read ({str(error).removeprefix(f'{path}: ')})"
        raise ListError(f"{path}: {why}; it must hold one image name a line, as UTF-8 text") from None
    names = [line.decode("utf-8", "surrogateescape") for line in lines]  # as Python reads file names
    return [line.replace("\\", "/") for line in map(str.strip, names) if line]


def match_files(
    split: Split, list_files: Callable[[Path, tuple[str, ...]], Files] = list_folder
) -> list[tuple[str, Files]]:
    """Return (name, {map: [files]}) for each name of a split; [] stands for no file of that name.

    list_files: called with a folder and suffixes; returns {name: [files]}.
    """
    ending, folders = split.endings.get("image", ""), split.folders
    present = {}
    for kind, folder in folders.items():
        files = list_files(folder, IMAGE_SUFFIXES if kind == "image" else ANY_SUFFIXES)
        present[kind] = select(files, split.endings.get(kind, ""))
    for kind, folder in folders.items():
        labels = split.endings.get(kind, "")
        if labels and kind != "image" and folder == folders["image"] and not ending:  # labels are no images then
            present["image"] = {name: files for name, files in present["image"].items() if not name.endswith(labels)}
    names = list(present["image"]) if split.listed is None else []
    for listed in split.listed or ():
        names.append(name_in(listed, present["image"], folders["image"], ending))
    return [(name, {kind: files.get(name, []) for kind, files in present.items()}) for name in names]


def select(files: Files, ending: str) -> Files:
    """Return the files whose names end with `ending`, by the name without it."""
    ending = unicodedata.normalize("NFC", ending)
    return {name.removesuffix(ending): paths for name, paths in files.items() if name.endswith(ending)}


def name_in(listed: str, images: Collection[str], folder: Path, ending: str = "") -> str:
    """Return a listed name as without_suffix(), and without the folder of the images unless it is a key of `images`."""
    name = without_suffix(listed, images, ending)
    if name not in images:  # PaddleX's names begin with the folder of the images, others with "/", too
        inner = listed.removeprefix(f"{folder.as_posix()}/").lstrip("/")
        name = without_suffix(inner.removeprefix(f"{folder.name}/"), images, ending)
    return name


def without_suffix(listed: str, images: Collection[str], ending: str = "") -> str:
    """Return a listed name as it is keyed in `images`: without its image suffix and `ending`, unless it is a key."""
    stem, suffix = posixpath.splitext(listed)
    if listed not in images and suffix.lower() in IMAGE_SUFFIXES:
        listed = stem
    return listed if listed in images else listed.removesuffix(ending)


def _describe_missing(split: Split, name: str, kind: str, images: list[Path]) -> str:
    folder, file = split.folders[kind], f"{name}{split.endings.get(kind, '')}"
    if kind == "image":
        how = f"looked for {', '.join(IMAGE_SUFFIXES)}); a line is the name of an image there, or IMAGE,MASK"
        return f"{split.list_file}: {file!r}: no such image in {folder} ({how}"
    away = f"remove its line from {split.list_file}" if split.list_file else "move the image away"
    unread = "".join(f"; {where}: {note}" for where, note in left_out(folder, ".png").items())
    return (
        f"{images[0]}: an image without a mask: expected {folder / file}.png (or {', '.join(LABEL_SUFFIXES[1:])}); add "
        f"the mask (255 everywhere if it is not labelled yet), or {away}; if mask names have an ending of their own"
        f", such as _mask, use --label_suffix{unread}"
    )
