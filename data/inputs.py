"""What predict.py reads: images, animations and videos, from a file, a folder or a pattern."""

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageSequence
from torch.utils.data import Dataset

from data.dataset import IMAGE_SUFFIXES, decoding, image_size, read_image
from errors import InputError, UserError

VIDEO_SUFFIXES = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv")
ANIMATED_FORMATS = ("GIF", "WEBP", "PNG")  # a JPEG or TIFF with several pictures is a photo with a thumbnail, or pages
_SUFFIXES = {suffix.lower() for suffix in (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES, ".gif")}
ALONE_FPS = 25.0  # of an overlay, where the file does not say


@dataclass(frozen=True)
class Input:
    """path: of the file. name: of what is written for it, relative and without suffix, no other input's."""

    path: Path
    name: str


def find_inputs(given: str, leave_out: Path) -> tuple[list[Input], int]:
    """The images and videos that `given` names, sorted, and the number of other files there.

    given: a file; a folder, searched with those below it; or a pattern with *, ? or [...], ** being any folders. leave_out: a folder
    whose files do not count, that of the output. Raises UserError where there are none.
    """
    path = Path(given)
    if path.is_dir():
        base, files = path, [file for file in path.rglob("*") if file.is_file()]
    elif path.is_file():
        return [Input(path, path.stem)], 0
    else:
        if not glob.has_magic(given):
            raise UserError(f"--input {given}: no such file or folder")
        first = next(number for number, part in enumerate(path.parts) if glob.has_magic(part))
        base = Path(*path.parts[:first])
        files = [Path(file) for file in glob.glob(given, recursive=True) if os.path.isfile(file)]
    left_out = leave_out.resolve()
    files = [file for file in files if left_out not in file.resolve().parents]
    relative = {file: file.relative_to(base) for file in files}
    visible = [file for file in files if not any(part.startswith(".") for part in relative[file].parts)]
    chosen = sorted(file for file in visible if file.suffix.lower() in _SUFFIXES)
    if not chosen:
        raise UserError(f"--input {given}: no image or video there, of {len(visible)} file(s)")
    stems: dict[str, int] = {}
    for file in chosen:
        stem = relative[file].with_suffix("").as_posix()
        stems[stem] = stems.get(stem, 0) + 1
    # a.jpg and a.png are written to a.jpg.png and a.png.png.
    return [
        Input(file, stem if stems[stem] == 1 else relative[file].as_posix())
        for file in chosen
        for stem in [relative[file].with_suffix("").as_posix()]
    ], len(visible) - len(chosen)


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
