"""Read annotation files, find the images that they name, and turn shapes into regions. InputError names a fault."""

import base64
import binascii
import json
import os
import posixpath
import re
import unicodedata
import urllib.parse
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import cv2
import numpy as np

from data.images import IMAGE_SUFFIXES
from data.layout import list_folder
from support.errors import InputError, UserError
from tools.convert.polygons import LIMIT, Patch

SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raises InputError if it cannot be read."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({' '.join(str(error).split())})") from None


def read_xml(path: Path) -> ElementTree.Element:
    """Return the root element of an XML file. Raises InputError if it cannot be read."""
    try:
        return ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError, LookupError, ValueError) as error:
        raise InputError(f"{path}: not XML ({' '.join(str(error).split())})") from None


def split_of(name: str) -> str:
    """Return the split that a file, folder or subset is named after, such as "val" for instances_val2017; "" if none.

    "" also for a name with the words of two splits.
    """
    found = {SPLITS[word] for word in re.findall("[a-z]+", name.lower()) if word in SPLITS}
    return found.pop() if len(found) == 1 else ""


def value_of(record: object, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Return record[key]; raise InputError, naming `where`, if there is none or it is not of the type `kind`."""
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{where}: {key!r} is missing or invalid")
    return value


def size_of(record: object, height: str, width: str, where: str) -> tuple[int, int]:
    """Return (height, width) of a record's fields of these names; raise InputError if they are no positive numbers."""
    size = [value_of(record, key, (int, float), where) for key in (height, width)]
    if not all(1 <= side < LIMIT for side in size):  # False for NaN, too
        raise InputError(f"{where}: an image of {size[1]}x{size[0]} pixels")
    return int(size[0]), int(size[1])


def colour_of(text: object) -> tuple[int, ...] | None:
    """Return (red, green, blue) of "#RRGGBB", or None for anything else."""
    match = re.fullmatch("#([0-9a-fA-F]{6})", text) if isinstance(text, str) else None
    return tuple(bytes.fromhex(match[1])) if match else None


def place(mask: np.ndarray, top: int, left: int, size: tuple[int, int], where: str) -> Patch:
    """Return a patch of a mask (height, width) bool, cut off at the image's borders.

    Raises InputError if it lies too far outside to be a rounding error: more than one pixel.
    """
    bottom, right = top + mask.shape[0], left + mask.shape[1]
    if min(top, left) < -1 or bottom > size[0] + 1 or right > size[1] + 1:
        raise InputError(
            f"{where}: a mask of {mask.shape[1]}x{mask.shape[0]} pixels at {left}, {top} is outside the image of "
            f"{size[1]}x{size[0]}"
        )
    cut = mask[max(0, -top) : size[0] - top, max(0, -left) : size[1] - left]
    return max(top, 0), max(left, 0), cut


def decode_png(text: str, where: str, *, compressed: bool = False) -> np.ndarray:
    """Return the mask (height, width) bool of a PNG in base64: its alpha channel if it has one, else its pixels.

    compressed: whether zlib packed the PNG. Raises InputError if it cannot be decoded.
    """
    try:
        data = base64.b64decode(text, validate=True)
        data = zlib.decompress(data) if compressed and not data.startswith(b"\x89PNG") else data
    except (binascii.Error, zlib.error, ValueError):
        raise InputError(f"{where}: a mask that is not a PNG in base64") from None
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
    if pixels is None:
        raise InputError(f"{where}: a mask whose PNG is damaged")
    if pixels.ndim == 3:
        pixels = pixels[:, :, 3] if pixels.shape[2] == 4 else pixels.max(axis=2)
    return np.asarray(pixels > 0)


def output_name(reference: str) -> str:
    """Return the name, without suffix, of the output for an image that a file refers to by path or URL.

    Folders stay, unless the reference is absolute or leads out of its folder. Names are in Unicode form NFC, and none
    begins with a dot, which would hide it.
    """
    path = PurePosixPath(posixpath.normpath(reference.replace("\\", "/")))
    parts = path.parts
    if path.is_absolute() or ".." in parts or any(":" in part for part in parts):
        parts = parts[-1:]
    stem = posixpath.splitext("/".join(part.lstrip(".") or "_" for part in parts))[0]
    return unicodedata.normalize("NFC", stem)


class ImageFinder:
    """Finds the images that annotation files refer to, below the folders `roots`.

    flag: folder of --images, which replaces them. exclude: folder whose files are no images but labels.
    """

    def __init__(self, roots: Iterable[Path], flag: Path | None = None, exclude: Path | None = None):
        if flag is not None and not flag.is_dir():
            raise UserError(f"--images {flag}: no such folder")
        self.exclude = Path(os.path.abspath(exclude)) if exclude else None
        self.roots = [flag] if flag else list(dict.fromkeys(roots))

    @cached_property
    def _by_file_name(self) -> dict[str, set[Path]]:
        found: dict[str, set[Path]] = {}
        for root in self.roots:
            for path in (path for paths in list_folder(root, IMAGE_SUFFIXES).values() for path in paths):
                full = Path(os.path.abspath(path))
                if self.exclude not in full.parents:
                    name = unicodedata.normalize("NFC", path.name)
                    for key in (name, posixpath.splitext(name)[0]):
                        found.setdefault(key, set()).add(full)
        return found

    def find(self, reference: str, where: str, subset: str = "") -> Path:
        """Return the file for a path or URL in an annotation: at this path below a root, or the one of its file name.

        subset: a folder that is looked in first, such as "Train". Of several files with the name, the one in a folder
        named after it or its split is taken; a file in the folder of another split is not. Without any file of the
        name, one with another suffix is taken: images are often saved again as JPEG. Raises InputError if there is no
        file, or if several have the name.
        """
        reference = reference.replace("\\", "/")
        path = PurePosixPath(reference)
        # A reference that leads out of the folders that the user named finds nothing there.
        whole = subset / path
        roots = [] if whole.is_absolute() or ".." in whole.parts else self.roots
        for root in roots:
            for with_path in (root / subset / path, root / path):
                if with_path.is_file() and path.suffix.lower() in IMAGE_SUFFIXES:
                    return with_path
        name = unicodedata.normalize("NFC", path.name)
        found = self._by_file_name.get(name) or self._by_file_name.get(posixpath.splitext(name)[0], set())
        if subset:
            top = os.path.commonpath([os.path.abspath(root) for root in self.roots])
            folders = {file: file.parent.relative_to(top).parts for file in found}
            wanted = {subset, split_of(subset)} - {""}
            named = {file for file in found if any({part, split_of(part)} & wanted for part in folders[file])}
            found = named or {file for file in found if not any(map(split_of, folders[file]))}
        if len(found) == 1:
            return next(iter(found))
        problem = f"not below {' or '.join(map(str, self.roots))}; name its folder with --images DIR"
        if found:
            problem = f"{len(found)} files have its name, such as {', '.join(map(str, sorted(found)[:2]))}"
        elif path.suffix.lower() not in IMAGE_SUFFIXES:
            problem = f"not one of {', '.join(IMAGE_SUFFIXES)}"
        raise InputError(f"{where}: image {reference!r}: {problem}")


def path_of_url(url: str) -> str:
    """Return the path in a reference of Label Studio: a URL, s3://BUCKET/KEY, or /data/local-files/?d=PATH."""
    parts = urllib.parse.urlsplit(url)
    local = urllib.parse.parse_qs(parts.query).get("d")
    if local:
        return local[0].lstrip("/")
    if re.match(r"[a-z][a-z0-9+.-]+$", parts.scheme):
        return urllib.parse.unquote(parts.path).lstrip("/")
    return urllib.parse.unquote(url).lstrip("/")


def annotation_files(source: Path, *suffixes: str) -> list[Path]:
    """Return the files with a suffix below the folder `source`, sorted, or `source` itself. Raises UserError if none.

    Skips hidden files and folders.
    """
    if source.is_file():
        if source.suffix.lower() not in suffixes:
            expected = f"expected a {' or '.join(suffixes)} file"
            remedy = "unpack it and name the folder" if source.suffix.lower() == ".zip" else expected
            raise UserError(f"{source}: {remedy}")
        return [source]
    found = sorted(path for paths in list_folder(source, suffixes).values() for path in paths)
    if not found:
        raise UserError(f"{source}: no {' or '.join(suffixes)} file in it")
    return found
