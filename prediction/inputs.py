"""Find and read what predict.py predicts: images, animations and videos, in files, folders or patterns."""

import contextlib
import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import cv2
import numpy as np
from PIL import Image, ImageSequence
from torch.utils.data import Dataset

from data.images import IMAGE_SUFFIXES, decoding, image_size, read_image
from support.errors import InputError, UserError

VIDEO_SUFFIXES = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv")
ANIMATED_FORMATS = ("GIF", "WEBP", "PNG")  # other formats with several pictures hold thumbnails or pages
_SUFFIXES = {suffix.lower() for suffix in (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES, ".gif")}
OUTPUT_NOTE = "predictions.json"  # in every folder that predict.py writes to
DEFAULT_RATE = 25.0  # frames per second of an overlay video if the input does not say


@dataclass(frozen=True)
class Input:
    """A file to predict.

    name: of its outputs, a relative path that no other input has, without suffix unless names would clash.
    """

    path: Path
    name: str


def find_inputs(words: Sequence[str], output: Path) -> tuple[Path, list[Input], int]:
    """Return the common folder of all inputs, the images and videos sorted by path, and the number of other files.

    words: files; folders, which are searched with their subfolders; or patterns with *, ? or [...], where ** matches
    any folders. Names are relative to the common folder. Hidden files, and files in `output` and in other output
    folders of predict.py, are skipped. Raises UserError if nothing is found, or if the outputs of two files would have
    the same name.
    """
    found = [_list(Path(word), word) for word in words]
    folders = {folder for folder, _ in found}
    base = found[0][0] if len(folders) == 1 else Path(os.path.commonpath(list(map(os.path.abspath, folders))))
    inputs: dict[str, Path] = {}
    others: set[str] = set()
    for (folder, files), word in zip(found, words, strict=True):
        outputs = {output.resolve(), *(file.parent.resolve() for file in files if file.name == OUTPUT_NOTE)}
        for file in files:
            if file == Path(word) and len(words) == 1:  # a single file counts whatever its suffix
                inputs[os.path.abspath(file)] = file
            elif not (outputs.intersection(file.resolve().parents) or _hidden(file.relative_to(folder))):
                if file.suffix.lower() in _SUFFIXES:
                    inputs.setdefault(os.path.abspath(file), file)
                else:
                    others.add(os.path.abspath(file))
    if not inputs:
        raise UserError(f"--input {' '.join(words)}: no image or video found, only {len(others)} other file(s)")
    # A name must not depend on which files of a folder are given: a.jpg and a.png never share the name a.
    siblings = [
        file
        for folder in {file.parent for file in inputs.values()}
        for file in folder.iterdir()
        if file.suffix.lower() in _SUFFIXES and not _hidden(Path(file.name)) and file.is_file()
    ]
    names = _names(base, {os.path.abspath(file) for file in [*siblings, *inputs.values()]})
    return (
        base,
        [Input(file, names[path]) for path, file in sorted(inputs.items(), key=lambda item: item[1])],
        len(others),
    )


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _list(path: Path, word: str) -> tuple[Path, list[Path]]:
    """Return the folder and the list of files that a word of --input stands for. Raises UserError if there are none.

    The folder of a pattern is the part before its first wildcard.
    """
    if path.is_dir():
        return path, [file for file in path.rglob("*") if file.is_file()]
    if path.is_file():
        return path.parent, [path]
    if not glob.has_magic(word):
        raise UserError(f"--input {word}: no such file or folder")
    first = next(number for number, part in enumerate(path.parts) if glob.has_magic(part))
    files = [Path(file) for file in glob.glob(word, recursive=True) if os.path.isfile(file)]
    if not files:
        raise UserError(f"--input {word}: no file matches this pattern")
    return Path(*path.parts[:first]), files


def _names(base: Path, files: set[str]) -> dict[str, str]:
    """Return {absolute path: name relative to base}. The suffix is kept if the name would clash without it.

    So a.jpg and a.png get the masks a.jpg.png and a.png.png, and the frames of a.gif do not overwrite a/000001.png.
    Raises UserError if names clash even with suffixes.
    """
    paths = {file: Path(os.path.relpath(file, base)) for file in files}
    short = {file: path.with_suffix("").as_posix() for file, path in paths.items()}
    clashing = _clashing(short)
    names = {file: paths[file].as_posix() if file in clashing else name for file, name in short.items()}
    if left := sorted(_clashing(names)):
        raise UserError(f"{left[0]} and {left[-1]}: would be written to the same files: rename one")
    return names


def _clashing(names: dict[str, str]) -> set[str]:
    """Return the files in {file: name} whose name is also another file's name, or a parent folder of another name."""
    taken = Counter(names.values())
    folders = {parent.as_posix() for name in names.values() for parent in PurePosixPath(name).parents}
    return {file for file, name in names.items() if taken[name] > 1 or name in folders}


@contextlib.contextmanager
def _any_size() -> Iterator[None]:
    """Lift Pillow's limit of pixels, which protects from strangers' files: --input names the user's own."""
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def probe(file: Input) -> tuple[int, int] | UserError | None:
    """Return an image's (height, width), None for a video or animation, or a UserError for an unreadable file.

    The error is returned, not raised. Only the header is read, unless EXIF turns the image.
    """
    if file.path.suffix.lower() in VIDEO_SUFFIXES:
        return None
    try:
        with _any_size():
            with decoding(file.path), Image.open(file.path) as image:
                if getattr(image, "is_animated", False) and image.format in ANIMATED_FORMATS:
                    return None
            return image_size(file.path)
    except UserError as error:
        return error


class Images(Dataset):
    """Data set of (index, image (H, W, 3) uint8 RGB), or (index, UserError) for an unreadable file."""

    def __init__(self, files: list[Input]):
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[int, np.ndarray | UserError]:
        try:
            with _any_size():
                return index, read_image(self.files[index].path)
        except UserError as error:
            return index, error


def read_frames(path: Path) -> Iterator[np.ndarray]:
    """Yield the frames of a video or an animation, (H, W, 3) uint8 RGB. Raises InputError if the file is damaged."""
    try:
        yield from _video_frames(path) if path.suffix.lower() in VIDEO_SUFFIXES else _animation_frames(path)
    except UserError as error:
        raise InputError(str(error)) from None


def _animation_frames(path: Path) -> Iterator[np.ndarray]:
    with decoding(path), Image.open(path) as image:
        for frame in ImageSequence.Iterator(image):
            yield np.array(frame.convert("RGB"))


def _video_frames(path: Path) -> Iterator[np.ndarray]:
    video = cv2.VideoCapture(str(path))
    try:
        expected = int(video.get(cv2.CAP_PROP_FRAME_COUNT))
        number = 0
        while (read := video.read())[0]:
            number += 1
            yield cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB)
    finally:
        video.release()
    if number == 0:
        raise UserError(f"{path}: not a readable video")
    if number < 0.9 * expected:  # the header's frame count is not exact
        raise UserError(f"{path}: ends after {number} of {expected} frames: it is truncated or damaged")


def frame_rate(path: Path) -> float:
    """Return the frames per second of a video or an animation, or DEFAULT_RATE if the file does not say."""
    if path.suffix.lower() in VIDEO_SUFFIXES:
        video = cv2.VideoCapture(str(path))
        rate = video.get(cv2.CAP_PROP_FPS)
        video.release()
    else:
        with decoding(path), Image.open(path) as image:
            rate = 1000 / image.info["duration"] if image.info.get("duration") else 0.0
    return rate if 0 < rate <= 1000 else DEFAULT_RATE
