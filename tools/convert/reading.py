"""Read annotation files, and find the images that they name. An InputError names each fault."""

import json
import math
import os
import posixpath
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Iterable
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

from data.folders import list_files
from data.images.files import IMAGE_SUFFIXES
from data.layout import name_in, read_list
from support.errors import InputError
from support.files import read_bytes
from tools.convert.drawing import LIMIT, number

MAX_BYTES = 2**31  # of an annotation file; the largest known one, of LVIS, has 1.1 GB
SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raises InputError if it cannot be read."""
    data = read_bytes(path, MAX_BYTES)
    try:
        try:
            return json.loads(data)
        except UnicodeDecodeError:
            raise ValueError("not UTF-8 text: save it as UTF-8") from None
        except json.JSONDecodeError:
            raise
        except ValueError:  # Python refuses the whole file for one integer of more than 4300 digits
            return json.loads(data, parse_int=lambda text: int(text) if len(text) < 19 else math.nan)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({' '.join(str(error).split())})") from None


def read_xml(path: Path) -> ElementTree.Element:
    """Return the root element of an XML file. Raises InputError if it is none, or defines entities."""
    data = read_bytes(path, MAX_BYTES)
    if b"\0" in data:  # UTF-16 would hide the entities
        raise InputError(f"{path}: not UTF-8: save it as UTF-8")
    if b"<!ENTITY" in data:  # a few of them can stand for gigabytes of text
        raise InputError(f"{path}: defines XML entities, which no annotation tool does: not read")
    try:
        return ElementTree.fromstring(data)
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise InputError(f"{path}: not XML ({' '.join(str(error).split())})") from None


def split_in(name: str) -> str:
    """Return the split in the name of a file, folder or subset: "val" for instances_val2017; "" if none or several."""
    splits = {SPLITS[word] for word in re.findall("[a-z]+", name.lower()) if word in SPLITS}
    return splits.pop() if len(splits) == 1 else ""


def read_splits(
    lists: Iterable[Path], images: Collection[str], faults: list[str], folder: Path, ending: str = ""
) -> dict[str, str]:
    """Return {image name: split} of lists, which are named after their splits. folder, ending: of the images.

    CVAT lists images without a subset in default.txt: their split is "". If an image is in several lists, train, val
    and test take precedence over others, such as VOC's trainval. Adds a fault on names that are not in
    `images`, and on those in two of train, val and test.
    """
    splits, missing, twice = dict[str, str](), dict[str, str](), dict[str, str]()
    for path in sorted(lists, key=lambda path: (path.stem == "default", not split_in(path.stem), path.stem)):
        split = "" if path.stem == "default" else split_in(path.stem) or path.stem
        for name in (name_in(listed, images, folder, ending) for listed in read_list(path, folder.name)):
            if name not in images:
                missing.setdefault(name, f"{path}: {name!r}")
            elif splits.setdefault(name, split) != split and split_in(path.stem):
                twice.setdefault(name, f"{path}: {name!r}, which stays in {splits[name]}")
    for names, problem in ((missing, "have no image and are left out"), (twice, "are in two splits")):
        if names:
            faults.append(f"{len(names)} listed name(s) {problem}, such as {next(iter(names.values()))}")
    return splits


def read_value(record: object, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Return record[key]; raise InputError, naming `where`, if there is none or it is not of the type `kind`."""
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{where}: {key!r} is missing or invalid")
    return value


def whole_number(value: object) -> int | None:
    """Return the integer for a number or its text, such as 3 for 3.0 and "3.0e+00"; None if it is no whole number."""
    if not re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{0,30})?([eE][-+]?[0-9]{1,2})?", str(value)):
        return None
    number = Decimal(str(value))
    return int(number) if number == int(number) else None


def read_size(height: object, width: object, where: str) -> tuple[int, int]:
    """Return (height, width) of numbers or their text; raise InputError if they are no positive numbers of pixels."""
    try:
        size = number(height), number(width)
    except (ValueError, OverflowError):
        raise InputError(f"{where}: height or width is missing or not a number") from None
    if not all(1 <= side < LIMIT for side in size):  # False for NaN, too
        raise InputError(f"{where}: an image of {width}x{height} pixels")
    return int(size[0]), int(size[1])


def output_name(reference: str) -> str:
    """Return the name, without suffix, of the output for an image that a file refers to by path.

    Folders stay, unless the reference is absolute or leads out of its folder. Names are in Unicode form NFC, and none
    begins with a dot, which would hide it.
    """
    path = PurePosixPath(posixpath.normpath(reference.replace("\\", "/")))
    parts = path.parts
    if path.is_absolute() or ".." in parts or any(":" in part for part in parts):
        parts = parts[-1:]
    stem = posixpath.splitext("/".join(part.lstrip(".") or "_" for part in parts))[0]
    return unicodedata.normalize("NFC", stem)


def list_name(name: str) -> str:
    """Return an image's name as a list of VOC's layout can have it: without folder or space."""
    return re.sub(r"[\s/]+", "_", name)


def images_by_name(root: Path) -> dict[str, set[Path]]:
    """Return {file name, with and without suffix: images} below a folder."""
    files: dict[str, set[Path]] = {}
    for path in list_files(root, IMAGE_SUFFIXES):
        name = unicodedata.normalize("NFC", path.name)
        for key in (name, posixpath.splitext(name)[0]):
            files.setdefault(key, set()).add(Path(os.path.abspath(path)))
    return files
