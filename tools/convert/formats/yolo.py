"""YOLO's segmentation labels: a text file for each image, and data.yaml with the names of the classes.

Format: https://docs.ultralytics.com/datasets/segment. A line of a text file is a class number and a polygon, x1 y1 x2
y2 ..., as shares of the image's width and height; a line of 5 numbers is a box. data.yaml has `names`, a list or
{number: name}. Ultralytics and CVAT write images/train and labels/train, Roboflow train/images and train/labels, Label
Studio images, labels and classes.txt. Class 0 is the first object, not a background.
"""

import re
from pathlib import Path

from data.images import IMAGE_SUFFIXES
from data.layout import list_folder, read_list
from support.errors import InputError, UserError
from support.files import read_text
from support.yaml_file import read_yaml
from tools.convert.polygons import Patch, fill, read_points
from tools.convert.reading import MAX_BYTES, split_of, whole_number
from tools.convert.source import Entry, Options, Shape, Source

FOLDERS = ("images", "labels")  # of images and of text files
NAMES = ("classes.txt", "obj.names")  # of Label Studio, labelImg and Darknet
BOX = 5  # numbers in a line

Key = tuple[str, ...]  # the path of an image or its text file, without suffix and without the folders of FOLDERS


def read(source: Path, options: Options) -> Source:
    """Return the images and classes of a YOLO data set. Raises UserError if its labels are key points."""
    if not source.is_dir():
        raise UserError(f"{source}: not a folder: name the one with images and labels")
    result = Source()
    result.names = _names(source, result.notes)
    names = dict(enumerate(result.names))
    images = _by_key(options.images or source, IMAGE_SUFFIXES)
    for key, path in _label_files(source, images):
        try:
            found = images.get(key, [])
            if len(found) != 1:
                raise InputError(f"{path}: {len(found) or 'no'} image(s) of its name; name their folder: --images DIR")
            lines = _read_lines(path)
        except InputError as error:
            result.faults.append(str(error))
            continue
        shapes = []
        for number, (value, points) in enumerate(lines, 1):
            name = names.get(value, f"class {value}" if names else str(value))
            shapes.append(Shape(name, f"{path} line {number} ({name})", points))
        split = next(filter(None, map(split_of, key[:-1])), "")
        folders = [part for part in key[:-1] if not split or split_of(part) != split]
        result.entries.append(Entry("/".join([*folders, key[-1]]), str(path), found[0], shapes, split=split))
    if not names:
        result.names = sorted(result.shape_names(), key=int)
        result.notes.append(f"{source}: neither data.yaml nor {NAMES[0]} names the classes: they are named by number")
    return result


def _names(source: Path, notes: list[str]) -> list[str]:
    """Return the class names by number, of a YAML file or of a file of NAMES; [] without both. Note another `nc`."""
    paths = [path for files in list_folder(source, (".yaml", ".yml")).values() for path in files]
    for path in sorted(paths, key=lambda path: len(path.parts)):
        content = read_yaml(path)
        if not isinstance(content, dict) or "names" not in content:
            continue
        names = content["names"]
        if not isinstance(names, list | dict):
            raise UserError(f"{path}: names: {names!r}: must be a list, such as [cat, dog], or {{0: cat, 1: dog}}")
        if "kpt_shape" in content:
            raise UserError(f"{path}: kpt_shape: the labels are key points, which have no area")
        if isinstance(names, dict):
            if set(names) != set(map(str, range(len(names)))):
                raise UserError(f"{path}: names must be a list, or have the class numbers 0, 1, 2, ...")
            names = [names[str(number)] for number in range(len(names))]
        if not all(isinstance(name, str) for name in names):
            raise UserError(f"{path}: names: each must be a text")
        if whole_number(content.get("nc", len(names))) != len(names):
            notes.append(f"{path}: nc is {content['nc']}, but there are {len(names)} names")
        return names
    files = [path for files in list_folder(source, (".txt", ".names")).values() for path in files if path.name in NAMES]
    return read_list(min(files, key=lambda path: len(path.parts))) if files else []


def _by_key(folder: Path, suffixes: tuple[str, ...]) -> dict[Key, list[Path]]:
    """Return the files below a folder by their Key."""
    found: dict[Key, list[Path]] = {}
    for name, paths in list_folder(folder, suffixes).items():
        *folders, stem = name.split("/")
        key = (*(part for part in folders if part.lower() not in FOLDERS), stem)
        found.setdefault(key, []).extend(paths)
    return found


def _label_files(source: Path, images: dict[Key, list[Path]]) -> list[tuple[Key, Path]]:
    """Return the text files that are labels: those in a folder of FOLDERS, and those named as an image."""
    return [
        (key, path)
        for key, paths in _by_key(source, (".txt",)).items()
        for path in paths
        if (key in images or not {*FOLDERS}.isdisjoint((source.name, *path.relative_to(source).parts)))
        and path.name not in NAMES
    ]


def _read_lines(path: Path) -> list[tuple[int, list[str]]]:
    """Return (class number, coordinates) of each line of a label file.

    Raises InputError if one is neither a polygon nor empty. Empty is a single point, or a box without area: tools write
    it for a mask that is too thin for a polygon.
    """
    lines = [line.split() for line in read_text(path, MAX_BYTES).splitlines() if line.strip()]
    found = []
    for number, words in enumerate(lines, 1):
        value = whole_number(words[0])
        if value is None or value < 0 or len(words) < 3 or len(words) % 2 == 0:
            raise InputError(f"{path} line {number}: expected a class number, then x y of each point: skipped")
        if len(words) == BOX and not any(re.fullmatch(r"0*\.?0*([eE].*)?", side) for side in words[3:]):
            raise InputError(f"{path} line {number}: a box, which has no outline: skipped")
        found.append((value, words[1:]))
    return found


def patch(values: list[str], where: str, size: tuple[int, int], line_width: float) -> Patch:
    """Return the pixels of a polygon."""
    points = read_points([values[at : at + 2] for at in range(0, len(values), 2)], where)
    if not ((points > -1) & (points < 2)).all():
        raise InputError(f"{where}: coordinates must be fractions of the image's width and height: skipped")
    return fill(points * size[::-1], size)
