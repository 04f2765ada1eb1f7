"""YOLO's segmentation labels: a text file for each image, and data.yaml with the names of the classes.

Format: https://docs.ultralytics.com/datasets/segment. A line of a text file is a class number and a polygon, x1 y1 x2
y2 ..., as shares of the image's width and height; a line of 5 numbers is a box. data.yaml has `names`, a list or
{number: name}, and `train`, `val` and `test`: folders of images, or lists of image files. Ultralytics and CVAT write
images/train and labels/train, Roboflow train/images and train/labels, Label Studio images, labels and classes.txt.
Class 0 is the first object, not a background.
"""

import re
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from data.images import IMAGE_SUFFIXES
from data.layout import list_folder, read_list
from support.errors import InputError, UserError
from tools.convert import polygons
from tools.convert.polygons import Patch, read_points
from tools.convert.reading import SPLITS, split_of
from tools.convert.source import Entry, Options, Shape, Source

FOLDERS = ("images", "labels", "obj_train_data")  # of images and of text files
NAMES = "classes.txt"  # of Label Studio
BOX = 5  # numbers in a line

Key = tuple[str, ...]  # the path of an image or its text file, without suffix and without the folders of FOLDERS


def read(source: Path, options: Options) -> Source:
    """Return the images and classes of a YOLO data set. Raises UserError if its labels are key points."""
    if not source.is_dir():
        raise UserError(f"{source}: not a folder: name the one with images and labels")
    config, base = _read_config(source)
    result = Source(_names(source, config))
    names = dict(enumerate(result.names))
    images = _by_key(options.images or source, IMAGE_SUFFIXES)
    splits = _splits(base, config, images)
    by_name: dict[str, list[Key]] = {}
    for key in images:
        by_name.setdefault(key[-1], []).append(key)
    without, num_empty = set(images), 0
    for key, path in _label_files(source, images):
        try:
            image_key, image = _find_image(key, path, images, by_name)
            without.discard(image_key)
            lines = _read_lines(path)
        except InputError as error:
            result.faults.append(str(error))
            continue
        split = splits.get(image_key) or next(filter(None, map(split_of, image_key[:-1])), "")
        folders = [part for part in image_key[:-1] if not split or split_of(part) != split]
        shapes = []
        for number, (value, *points) in enumerate(lines, 1):
            if len(points) < BOX:
                num_empty += 1
                continue
            name = names.get(int(value), f"class {value}" if names else value)
            shapes.append(Shape(name, f"{path} line {number} ({name})", points))
        result.entries.append(Entry("/".join([*folders, image_key[-1]]), str(path), image, shapes, split=split))
    if not names:
        result.names = sorted(result.shape_names(), key=int)
        result.notes.append(f"{source}: neither data.yaml nor {NAMES} names the classes: they are named by number")
    if num_empty:
        result.notes.append(f"{source}: {num_empty} line(s) have boxes of no area or a single point: left out")
    if without and not options.images:
        shown = images[min(without)][0]
        result.notes.append(f"{len(without)} image(s) have no label file, such as {shown}: left out")
    return result


def _read_config(source: Path) -> tuple[dict[str, Any], Path]:
    """Return the content of the YAML file with `names`, and its folder; {} without one. Raises UserError."""
    paths = [path for files in list_folder(source, (".yaml", ".yml")).values() for path in files]
    for path in sorted(paths, key=lambda path: len(path.parts)):
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            raise UserError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
        if isinstance(content, dict) and isinstance(content.get("names"), list | dict):
            if "kpt_shape" in content:
                raise UserError(f"{path}: kpt_shape: the labels are key points, which have no area")
            return content, path.parent
    return {}, source


def _names(source: Path, config: dict[str, Any]) -> list[str]:
    """Return the names of the classes by number, of data.yaml or of Label Studio's classes.txt; [] without both."""
    names = config.get("names") or []
    if isinstance(names, dict):
        numbered = {int(number): name for number, name in names.items() if str(number).isdecimal()}
        if len(numbered) < len(names) or max(numbered) > 10_000:
            raise UserError(f"{source}: names in the YAML file must be a list, or have a class number for each name")
        names = [numbered.get(number, f"class {number}") for number in range(max(numbered) + 1)]
    if twice := sorted({str(name) for name in names if list(names).count(name) > 1}):
        raise UserError(f"{source}: the class name {twice[0]!r} occurs twice in the YAML file: rename one")
    files = [folder / NAMES for folder in (source, source.parent) if (folder / NAMES).is_file()]
    return [str(name) for name in names] or (read_list(files[0]) if files else [])


def _by_key(folder: Path, suffixes: tuple[str, ...]) -> dict[Key, list[Path]]:
    """Return the files below a folder by their Key."""
    found: dict[Key, list[Path]] = {}
    for name, paths in list_folder(folder, suffixes).items():
        found.setdefault(_key(name), []).extend(paths)
    return found


def _key(name: str) -> Key:
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    return (*(part for part in parts[:-1] if part.lower() not in FOLDERS), *parts[-1:])


def _label_files(source: Path, images: dict[Key, list[Path]]) -> list[tuple[Key, Path]]:
    """Return the text files that are labels: those in a folder of FOLDERS, and those named as an image."""
    return [
        (key, path)
        for key, paths in _by_key(source, (".txt",)).items()
        for path in paths
        if (key in images or not {*FOLDERS}.isdisjoint((source.name, *path.relative_to(source).parts)))
        and path.name != NAMES
    ]


def _find_image(key: Key, path: Path, images: dict[Key, list[Path]], by_name: dict[str, list[Key]]) -> tuple[Key, Path]:
    """Return the Key and the file of a text file's image: of the same Key, or the only one of its name.

    Raises InputError if there is none, or several.
    """
    keys = [key] if key in images else by_name.get(key[-1], [])
    found = [(one, image) for one in keys for image in images[one]]
    if len(found) != 1:
        raise InputError(f"{path}: {len(found) or 'no'} image(s) of its name; name their folder with --images DIR")
    return found[0]


def _splits(base: Path, config: dict[str, Any], images: dict[Key, list[Path]]) -> dict[Key, str]:
    """Return {image: split} of the folders and lists that data.yaml names; an image in two splits has the first.

    base: folder of data.yaml. Leading folders of its paths that are not here, such as ../ or /home/me, are dropped.
    """
    found: dict[Key, str] = {}
    for name, split in SPLITS.items():
        values = config.get(name) or []
        for value in map(str, values if isinstance(values, list) else [values]):
            lists = sorted(base.rglob(PurePosixPath(value).name)) if value.endswith(".txt") else []
            if lists:
                keys = [_key(line.rpartition(".")[0]) for line in read_list(lists[0])]
                chosen = [next((key[at:] for at in range(len(key)) if key[at:] in images), ()) for key in keys]
            else:
                folder = _key(f"{value}/x".replace("\\", "/"))[:-1]
                ends = [folder[at:] for at in range(len(folder))] or [()]
                below = ([key for key in images if key[: len(end)] == end] for end in ends)
                chosen = next(filter(None, below), [])
            found = dict.fromkeys(chosen, split) | found
    return found


def _read_lines(path: Path) -> list[list[str]]:
    """Return the words of each line of a label file. Raises InputError if one is neither a polygon nor empty.

    Empty is a single point, or a box without area: tools write it for a mask that is too thin for a polygon.
    """
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8 text'})") from None
    for number, words in enumerate(lines, 1):
        if not (words[0].isascii() and words[0].isdecimal()) or len(words) < 3 or len(words) % 2 == 0:
            raise InputError(f"{path} line {number}: expected a class number, then x y of each point: skipped")
        if len(words) == BOX and not any(re.fullmatch(r"0*\.?0*", side) for side in words[3:]):
            raise InputError(f"{path} line {number}: a box, which has no outline: skipped")
    return lines


def patch(values: list[str], where: str, size: tuple[int, int], options: Options, faults: list[str]) -> Patch:
    """Return the pixels of a polygon."""
    points = read_points([values[at : at + 2] for at in range(0, len(values), 2)], 3, where)
    if not ((points > -1) & (points < 2)).all():
        raise InputError(f"{where}: coordinates must be fractions of the image's width and height: skipped")
    return polygons.fill([points * size[::-1]], size)
