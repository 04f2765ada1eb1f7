"""YOLO's segmentation labels: a text file for each image, and data.yaml with the names of the classes.

Format: https://docs.ultralytics.com/datasets/segment. A line of a text file is a class number and a polygon, x1 y1 x2
y2 ..., as shares of the image's width and height; a line of 5 numbers is a box. data.yaml has `names`, a list or
{number: name}. Ultralytics and CVAT write images/train and labels/train, Roboflow train/images and train/labels, Label
Studio images, labels and classes.txt. Class 0 is the first object, not a background.
"""

import re
from pathlib import Path

from data.folders import list_files
from data.images.files import IMAGE_SUFFIXES
from data.layout import list_folder
from support.errors import InputError, UserError
from support.files import read_text
from support.yaml_file import read_yaml
from tools.convert.drawing import Patch, fill, read_points
from tools.convert.reading import MAX_BYTES, split_in, whole_number
from tools.convert.source import Entry, Shape, Source

FOLDERS = ("images", "labels")  # of images and of text files
NAMES = ("classes.txt", "obj.names")  # of Label Studio, labelImg and Darknet
BOX = 5  # numbers in a line

Key = tuple[str, ...]  # the path of an image or its text file, without suffix and without the folders of FOLDERS


def read(source: Source) -> None:
    """Read the images and classes of a YOLO data set. Raises UserError if its labels are key points."""
    if not source.path.is_dir():
        raise UserError(f"{source.path}: not a folder: name the one with images and labels")
    source.names = _read_names(source)
    names = dict(enumerate(source.names))
    images = _by_key(source.options.images or source.path, IMAGE_SUFFIXES)

    def read_file(item: tuple[Key, Path]) -> Entry:
        key, path = item
        files, shapes = images.get(key, []), []
        if len(files) != 1:
            raise InputError(f"{path}: {len(files) or 'no'} image(s) of its name; name their folder: --images DIR")
        for number, value, points in _read_lines(path):
            name = names.get(value, f"class {value}" if names else str(value))
            shapes.append(Shape(name, f"{path} line {number} ({name})", points))
        split = next(filter(None, map(split_in, key[:-1])), "")
        folders = [part for part in key[:-1] if not split or split_in(part) != split]
        return Entry("/".join([*folders, key[-1]]), str(path), files[0], shapes, split=split)

    source.entries += source.collect(read_file, _label_files(source.path, images))
    if not names:
        source.names = sorted(source.shape_names, key=int)
        problem = f"neither data.yaml nor {NAMES[0]} names the classes: they are named by number"
        source.notes.append(f"{source.path}: {problem}")


def _read_names(source: Source) -> list[str]:
    """Return the class names by number, of a YAML file or of a file of NAMES; [] without both. Note another `nc`."""
    for path in sorted(list_files(source.path, (".yaml", ".yml")), key=lambda path: len(path.parts)):
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
            source.notes.append(f"{path}: nc is {content['nc']}, but there are {len(names)} names")
        return names
    named = [path for path in list_files(source.path, (".txt", ".names")) if path.name in NAMES]
    if not named:
        return []
    path = min(named, key=lambda path: len(path.parts))
    names = [line.strip() for line in read_text(path, MAX_BYTES).rstrip().split("\n")]  # blank lines may end the file
    if "" in names:
        where = f"{path} line {names.index('') + 1}"
        raise UserError(f"{where}: blank, but each line names a class: name it, or remove the line")
    return names


def _by_key(folder: Path, suffixes: tuple[str, ...]) -> dict[Key, list[Path]]:
    """Return the files below a folder by their Key."""
    files: dict[Key, list[Path]] = {}
    for name, paths in list_folder(folder, suffixes).items():
        *folders, stem = name.split("/")
        key = (*(part for part in folders if part.lower() not in FOLDERS), stem)
        files.setdefault(key, []).extend(paths)
    return files


def _label_files(source: Path, images: dict[Key, list[Path]]) -> list[tuple[Key, Path]]:
    """Return the text files that are labels: they are in a folder of FOLDERS, or have the name of an image."""
    return [
        (key, path)
        for key, paths in _by_key(source, (".txt",)).items()
        for path in paths
        if (key in images or not {*FOLDERS}.isdisjoint((source.name, *path.relative_to(source).parts)))
        and path.name not in NAMES
    ]


def _read_lines(path: Path) -> list[tuple[int, int, list[str]]]:
    """Return (line number, class number, coordinates) of each line of a label file that is not blank.

    Raises InputError if one is neither a polygon nor empty. Tools write a single point, or a box without area, for a
    mask that is too thin for a polygon: these are empty.
    """
    polygons = []
    for number, line in enumerate(read_text(path, MAX_BYTES).splitlines(), start=1):
        if not (words := line.split()):
            continue
        value = whole_number(words[0])
        if value is None or value < 0 or len(words) < 3 or len(words) % 2 == 0:
            raise InputError(f"{path} line {number}: expected a class number, then x y of each point: skipped")
        if len(words) == BOX and not any(re.fullmatch(r"0*\.?0*([eE].*)?", side) for side in words[3:]):
            raise InputError(f"{path} line {number}: a box, which has no outline: skipped")
        polygons.append((number, value, words[1:]))
    return polygons


def patch(values: list[str], where: str, size: tuple[int, int], line_width: float) -> Patch:
    """Return the pixels of a polygon."""
    points = read_points([values[at : at + 2] for at in range(0, len(values), 2)], where)
    if not ((points > -1) & (points < 2)).all():
        raise InputError(f"{where}: coordinates must be fractions of the image's width and height: skipped")
    return fill(points * size[::-1], size)
