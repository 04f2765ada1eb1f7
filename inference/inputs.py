"""Find and read the images that predict.py predicts, in files, folders or patterns."""

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from data.folders import walk
from data.images.files import IMAGE_SUFFIXES, jpeg_damage
from data.images.reader import ImageReader
from support.errors import InputError, UserError
from support.shell import quoted

FILM_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv")
OUTPUT_NOTE = "predictions.json"  # in every folder that predict.py writes to
SUFFIXES = {"masks": "png", "overlays": "jpg", "probs": "npy"}  # of the files in its subfolders

T = TypeVar("T")


def find_inputs(words: Sequence[str], output: Path) -> tuple[Path, dict[str, Path], list[Path]]:
    """Return the common folder of all inputs, {name: image} sorted by path, and the other files, sorted.

    words: files; folders, which are searched with their subfolders; or patterns with *, ? or [...], where ** matches
    any folders. A name is the path relative to the common folder, without the suffix if no other image of its folder
    differs in the suffix alone. Hidden files, and results in `output` and in other output folders of predict.py, are
    skipped. Raises UserError if nothing is found, or if two images have the same name.
    """
    found = [_list(Path(word), word) for word in words]
    hides = False  # whether an image is in a folder of results
    base = Path(os.path.commonpath([os.path.abspath(folder) for folder, _ in found]))
    images: dict[str, Path] = {}
    others: dict[str, Path] = {}
    for (folder, files), word in zip(found, words, strict=True):
        outputs = {output.resolve(), *(file.parent.resolve() for file in files if file.name == OUTPUT_NOTE)}
        results = {place / kind for place in outputs for kind in SUFFIXES}
        for file in files:
            folders = Path(os.path.realpath(file)).parents  # resolve() raises at a link to itself before Python 3.13
            is_image, is_result = file.suffix.lower() in IMAGE_SUFFIXES, bool(results.intersection(folders))
            hides = hides or (is_image and is_result)
            # A single file counts whatever its suffix, unless it is a film.
            if file == Path(word) and len(words) == 1 and not _is_film(file):
                images[os.path.abspath(file)] = file
            elif not (is_result or file.name == OUTPUT_NOTE or _hidden(file.relative_to(folder))):
                (images if is_image else others).setdefault(os.path.abspath(file), file)
    if not images:
        problem = f"no image found, only {len(others)} other file(s){film_hint(others.values())}"
        if hides:
            place = f"{', '.join(SUFFIXES)} of an output folder"
            problem = f"all its images are in {place}: name other images, or another --output"
        raise UserError(f"--input {' '.join(words)}: {problem}")
    # A name must not depend on which files of a folder are given: a.jpg and a.png never share the name a.
    siblings = [
        os.path.abspath(file)
        for folder in {file.parent for file in images.values()}
        for file in folder.iterdir()
        if file.suffix.lower() in IMAGE_SUFFIXES and not _hidden(Path(file.name))
    ]
    stems = Counter(Path(path).with_suffix("") for path in {*images, *siblings})
    named: dict[str, Path] = {}
    for path, file in sorted(images.items(), key=lambda item: item[1]):
        stem = Path(path).with_suffix("")
        name = Path(os.path.relpath(path if stems[stem] > 1 else stem, base)).as_posix()
        if name in named:
            raise UserError(f"{named[name]} and {file}: would be written to the same files: rename one")
        named[name] = file
    return base, named, sorted(others.values())


def _is_film(path: Path) -> bool:
    return path.suffix.lower() in FILM_SUFFIXES


def film_hint(files: Iterable[Path]) -> str:
    """Return the end of a message: the command that splits the first film among the files into images; "" without."""
    films = sorted(filter(_is_film, files))
    if not films:
        return ""
    folder = films[0].with_suffix("")
    split = f"mkdir {quoted([str(folder)])} && {quoted(['ffmpeg', '-i', str(films[0]), str(folder / '%06d.png')])}"
    return f"; {len(films)} of them film(s), which must be split into images first: {split}"


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _list(path: Path, word: str) -> tuple[Path, list[Path]]:
    """Return the folder and the list of files that a word of --input stands for. Raises UserError if there are none.

    The folder of a pattern is the part before its first wildcard. Its list has the OUTPUT_NOTE of every folder, too.
    """
    if path.is_dir():
        return path, [Path(folder, name) for folder, names in walk(path, {}) for name in names]
    if path.exists():
        return path.parent, [path]
    if not glob.has_magic(word):
        raise UserError(f"--input {word}: no such file or folder")
    first = next(number for number, part in enumerate(path.parts) if glob.has_magic(part))
    files = [Path(file) for file in glob.glob(word, recursive=True) if os.path.isfile(file)]
    if not files:
        raise UserError(f"--input {word}: no file matches this pattern")
    base = Path(*path.parts[:first])
    folders = {folder for parent in {file.parent for file in files} for folder in (parent, *parent.parents)}
    notes = [folder / OUTPUT_NOTE for folder in folders if folder.is_relative_to(base)]
    return base, files + [note for note in notes if note.is_file()]


def attempt(read: Callable[[Path], T], path: Path) -> T | UserError:
    """Return read(path) of an image, or its InputError."""
    Image.MAX_IMAGE_PIXELS = None  # Pillow's limit protects from strangers' files: --input names the user's own
    try:
        return read(path)
    except InputError as error:
        return error


def read_inputs(inputs: list[tuple[str, Path]], reader: ImageReader) -> list[tuple[str, np.ndarray | UserError, str]]:
    """Return (name, image (H, W, 3) uint8 RGB or its UserError, jpeg_damage()) of each (name, file)."""
    found = [(name, attempt(reader.read, file), file) for name, file in inputs]
    return [(name, read, "" if isinstance(read, UserError) else jpeg_damage(file)) for name, read, file in found]
