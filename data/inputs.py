"""What predict.py reads: images, animations and videos, from a file, a folder or a pattern."""

import glob
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import cv2
import numpy as np
from PIL import Image, ImageSequence
from torch.utils.data import Dataset

from data.dataset import IMAGE_SUFFIXES, decoding, image_size, read_image
from errors import InputError, UserError

VIDEO_SUFFIXES = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv")
ANIMATED_FORMATS = ("GIF", "WEBP", "PNG")  # a JPEG or TIFF with several pictures is a photo with a thumbnail, or pages
_SUFFIXES = {suffix.lower() for suffix in (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES, ".gif")}
OUTPUT_NOTE = "predictions.json"  # in every folder that predict.py writes to
ALONE_FPS = 25.0  # of an overlay, where the file does not say


@dataclass(frozen=True)
class Input:
    """path: of the file. name: of what is written for it, relative and without suffix, no other input's."""

    path: Path
    name: str


def find_inputs(given: str, leave_out: Path) -> tuple[Path, list[Input], int]:
    """The folder that names are relative to, the images and videos that `given` names, and the number of other files.

    given: a file; a folder, searched with those below it; or a pattern with *, ? or [...], ** being any folders.
    leave_out: a folder whose files do not count, that of the output; nor do other outputs of predict.py. Raises UserError
    where there is nothing, or where two files cannot have names of their own.
    """
    path = Path(given)
    if path.is_file():
        # Named as if all of its folder were predicted.
        siblings = [file for file in path.parent.iterdir() if file.suffix.lower() in _SUFFIXES and file.is_file()]
        names = _names(path.parent, [*siblings, *([] if path in siblings else [path])])
        return path.parent, [Input(path, names[path])], 0
    base, files = _list(path, given)
    ours = {leave_out.resolve(), *(file.parent.resolve() for file in files if file.name == OUTPUT_NOTE)}
    files = [file for file in files if not ours.intersection(file.resolve().parents)]
    visible = [file for file in files if not any(part.startswith(".") for part in file.relative_to(base).parts)]
    chosen = sorted(file for file in visible if file.suffix.lower() in _SUFFIXES)
    if not chosen:
        raise UserError(f"--input {given}: no image or video there, of {len(visible)} file(s)")
    names = _names(base, chosen)
    return base, [Input(file, names[file]) for file in chosen], len(visible) - len(chosen)


def _list(path: Path, given: str) -> tuple[Path, list[Path]]:
    """The folder, or the part of a pattern before its first *, ? or [, and all files there that match."""
    if path.is_dir():
        return path, [file for file in path.rglob("*") if file.is_file()]
    if not glob.has_magic(given):
        raise UserError(f"--input {given}: no such file or folder")
    first = next(number for number, part in enumerate(path.parts) if glob.has_magic(part))
    return Path(*path.parts[:first]), [Path(file) for file in glob.glob(given, recursive=True) if os.path.isfile(file)]


def _names(base: Path, files: list[Path]) -> dict[Path, str]:
    """A name for each file, relative to base: without suffix, but with it where another file's would be in the way.

    So a.jpg and a.png are written to a.jpg.png and a.png.png; and the frames of a.gif not to where a/000001.png is.
    """
    short = {file: file.relative_to(base).with_suffix("").as_posix() for file in files}
    clashing = _clashing(short)
    names = {file: file.relative_to(base).as_posix() if file in clashing else name for file, name in short.items()}
    if left := sorted(_clashing(names)):
        raise UserError(f"{left[0]} and {left[-1]}: would be written to the same files: rename one")
    return names


def _clashing(names: dict[Path, str]) -> set[Path]:
    """The files whose name another one has, or has as a folder."""
    taken = Counter(names.values())
    folders = {parent.as_posix() for name in names.values() for parent in PurePosixPath(name).parents}
    return {file for file, name in names.items() if taken[name] > 1 or name in folders}


def probe(path: Path) -> tuple[int, int] | None:
    """Height and width of an image, from its header; None for a video or an animation. Raises UserError."""
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return None
    with decoding(path), Image.open(path) as image:
        if getattr(image, "is_animated", False) and image.format in ANIMATED_FORMATS:
            return None
    return image_size(path)


class Images(Dataset):
    """images[index] is (index, the image (H, W, 3) uint8 RGB, or the UserError that it cannot be read)."""

    def __init__(self, paths: list[Path]):
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[int, np.ndarray | UserError]:
        try:
            return index, read_image(self.paths[index])
        except UserError as error:
            return index, error


def read_frames(path: Path) -> Iterator[np.ndarray]:
    """The frames of a video or an animation, (H, W, 3) uint8 RGB. Raises InputError where it is cut off or unreadable."""
    try:
        yield from _film_frames(path) if path.suffix.lower() in VIDEO_SUFFIXES else _animation_frames(path)
    except UserError as error:
        raise InputError(str(error)) from None


def _animation_frames(path: Path) -> Iterator[np.ndarray]:
    with decoding(path), Image.open(path) as image:
        for frame in ImageSequence.Iterator(image):
            yield np.array(frame.convert("RGB"))


def _film_frames(path: Path) -> Iterator[np.ndarray]:
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
    if number < 0.9 * expected:  # what a file says of its length is not exact
        raise UserError(f"{path}: ends after {number} of {expected} frames: it is cut off or damaged")


def frame_rate(path: Path) -> float:
    """Frames a second of a video or an animation."""
    if path.suffix.lower() in VIDEO_SUFFIXES:
        video = cv2.VideoCapture(str(path))
        rate = video.get(cv2.CAP_PROP_FPS)
        video.release()
    else:
        with decoding(path), Image.open(path) as image:
            rate = 1000 / image.info["duration"] if image.info.get("duration") else 0.0
    return rate if 0 < rate <= 1000 else ALONE_FPS
