"""What predict.py reads: images, animations and videos, from a file, a folder or a pattern."""

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


def find_inputs(given: Sequence[str], leave_out: Path) -> tuple[Path, list[Input], int]:
    """The folder that names are relative to, the images and videos that `given` names, and the number of other files.

    given: files; folders, searched with their subfolders; or patterns with *, ? or [...], where ** is any folders.
    Names are relative to the deepest folder that all of them share. leave_out: the output folder. Files in it, and in
    other output folders of predict.py, do not count. Raises UserError where nothing is found, or where the outputs of
    two files would have the same name.
    """
    listed = [_list(Path(text), text) for text in given]
    base = _common([folder for folder, _ in listed])
    files: dict[str, Path] = {}
    others: set[str] = set()
    for (folder, found), text in zip(listed, given, strict=True):
        ours = {leave_out.resolve(), *(file.parent.resolve() for file in found if file.name == OUTPUT_NOTE)}
        for file in found:
            if file == Path(text) and len(given) == 1:  # named alone: whatever its suffix
                files[os.path.abspath(file)] = file
            elif not (ours.intersection(file.resolve().parents) or _hidden(file.relative_to(folder))):
                if file.suffix.lower() in _SUFFIXES:
                    files.setdefault(os.path.abspath(file), file)
                else:
                    others.add(os.path.abspath(file))
    if not files:
        raise UserError(f"--input {' '.join(given)}: no image or video found, only {len(others)} other file(s)")
    # Names allow for the other files in these folders: predicted one after the other, a.jpg and a.png are not both a.
    folders = sorted({file.parent for file in files.values()})
    siblings = [file for folder in folders for file in folder.iterdir()
                if file.suffix.lower() in _SUFFIXES and not _hidden(Path(file.name)) and file.is_file()]  # fmt: skip
    names = _names(base, list({os.path.abspath(file): file for file in [*siblings, *files.values()]}.values()))
    return (
        base,
        sorted((Input(file, names[path]) for path, file in files.items()), key=lambda file: file.path),
        len(others),
    )


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _common(folders: list[Path]) -> Path:
    """The deepest folder that holds all these folders."""
    if len(set(folders)) == 1:
        return folders[0]
    try:
        return Path(os.path.commonpath([os.path.abspath(folder) for folder in folders]))
    except ValueError:  # several drives of Windows
        raise UserError("--input: the files are on several drives: run one command for each drive") from None


def _list(path: Path, given: str) -> tuple[Path, list[Path]]:
    """The folder given, a file's folder, or a pattern's part before its first wildcard; and the files meant."""
    if path.is_dir():
        return path, [file for file in path.rglob("*") if file.is_file()]
    if path.is_file():
        return path.parent, [path]
    if not glob.has_magic(given):
        raise UserError(f"--input {given}: no such file or folder")
    first = next(number for number, part in enumerate(path.parts) if glob.has_magic(part))
    found = [Path(file) for file in glob.glob(given, recursive=True) if os.path.isfile(file)]
    if not found:
        raise UserError(f"--input {given}: no file matches this pattern")
    return Path(*path.parts[:first]), found


def _names(base: Path, files: list[Path]) -> dict[str, str]:
    """{absolute path: name relative to base}, without suffix unless another file's output would have that name.

    So a.jpg and a.png are written to a.jpg.png and a.png.png, and the frames of a.gif do not overwrite a/000001.png.
    """
    paths = {os.path.abspath(file): Path(os.path.relpath(file, base)) for file in files}
    short = {file: path.with_suffix("").as_posix() for file, path in paths.items()}
    clashing = _clashing(short)
    names = {file: paths[file].as_posix() if file in clashing else name for file, name in short.items()}
    if left := sorted(_clashing(names)):
        raise UserError(f"{left[0]} and {left[-1]}: would be written to the same files: rename one")
    return names


def _clashing(names: dict[str, str]) -> set[str]:
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
