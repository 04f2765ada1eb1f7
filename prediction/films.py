"""Write videos that browsers play, with OpenCV."""

import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np

from support.errors import InputError
from support.files import writing
from support.shell import quoted

# By preference. H.264 plays everywhere, but few builds of OpenCV encode it. VP8 plays in every browser and encodes five
# times as fast as VP9. MPEG-4 plays in no browser.
CODECS = (("avc1", ".mp4"), ("VP80", ".webm"), ("mp4v", ".mp4"))
NOT_IN_BROWSERS = "mp4v"
SUFFIXES = (".mp4", ".webm")


def write_film(stem: Path, frames: Iterable[np.ndarray], rate: float) -> tuple[Path, bool]:
    """Write frames (H, W, 3) uint8 RGB as stem.mp4 or stem.webm; return (path, whether browsers play the video).

    rate: frames per second. Codecs need even sides, so the last row or column of an odd side is repeated. An older
    video with the other suffix is deleted. Raises InputError if there are no frames or OpenCV cannot write a video of
    this size.
    """
    frames = map(_even, frames)
    first = next(frames, None)
    if first is None:
        raise InputError(f"{stem}: the video has no frames")
    size = first.shape[1], first.shape[0]
    codec, suffix = find_codec(size, stem)
    path = stem.with_name(stem.name + suffix)
    with writing(path, parents=True) as scratch:
        film = _open(scratch, codec, rate, size)
        try:
            for frame in itertools.chain([first], frames):
                film.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
        finally:
            film.release()
    for other in SUFFIXES:  # written earlier by another build of OpenCV
        if other != suffix:
            stem.with_name(stem.name + other).unlink(missing_ok=True)
    return path, codec != NOT_IN_BROWSERS


def how_to_convert(films: list[Path]) -> str:
    """Return a message for videos that browsers cannot play, with the command that converts the first one."""
    which = films[0] if len(films) == 1 else f"{films[0]} and {len(films) - 1} more"
    target = films[0].with_suffix(".h264.mp4")
    command = quoted(["ffmpeg", "-i", str(films[0]), "-c:v", "libx264", "-pix_fmt", "yuv420p", str(target)])
    return f"{which}: browsers do not play it, because OpenCV encodes neither H.264 nor VP8; to convert: {command}"


def find_codec(size: tuple[int, int], stem: Path) -> tuple[str, str]:
    """Return (codec, suffix) of the first entry of CODECS with which OpenCV can write and read back a video of `size`.

    size: (width, height). stem: path named in the error. Raises InputError if no codec works.
    """
    frame = np.zeros((size[1], size[0], 3), np.uint8)
    with tempfile.TemporaryDirectory(prefix="segtrain-codec-") as folder:
        for codec, suffix in CODECS:
            path = Path(folder, codec + suffix)
            film = _open(path, codec, 25.0, size)
            film.write(frame)
            film.release()
            with _silent():
                video = cv2.VideoCapture(str(path))
                read, _ = video.read()
                video.release()
            if read:
                return codec, suffix
    raise InputError(f"{stem}: OpenCV cannot write a video of {size[0]}x{size[1]} pixels")


def _open(path: Path, codec: str, rate: float, size: tuple[int, int]) -> cv2.VideoWriter:
    with _silent():
        return cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*codec), rate, size)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard what C code writes to standard error inside the `with` block, such as OpenCV's warnings about codecs."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _even(frame: np.ndarray) -> np.ndarray:
    height, width = frame.shape[:2]
    return cv2.copyMakeBorder(frame, 0, height % 2, 0, width % 2, cv2.BORDER_REPLICATE)
