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

# By preference: VP8 plays in every browser, MPEG-4 in none. OpenCV's wheels have no encoder of H.264.
CODECS = (("VP80", ".webm"), ("mp4v", ".mp4"))


def write_film(stem: Path, frames: Iterable[np.ndarray], rate: float) -> Path:
    """Write frames (H, W, 3) uint8 RGB as stem.webm or, if OpenCV cannot, as stem.mp4; return the path.

    rate: frames per second. Codecs need even sides, so the last row or column of an odd side is repeated. Raises
    InputError if there are no frames or OpenCV cannot write a video of this size.
    """
    frames = map(_even, frames)
    first = next(frames, None)
    if first is None:
        raise InputError(f"{stem}: the video has no frames")
    size = first.shape[1], first.shape[0]
    codec, suffix = _find_codec(size, stem)
    path = stem.with_name(stem.name + suffix)
    with writing(path, parents=True) as scratch:
        film = _open(scratch, codec, rate, size)
        try:
            for frame in itertools.chain([first], frames):
                film.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
        finally:
            film.release()
    return path


def how_to_convert(film: Path) -> str:
    """Return a message for a video that browsers cannot play, with the command that converts it."""
    words = ["ffmpeg", "-i", str(film), "-c:v", "libx264", "-pix_fmt", "yuv420p", str(film.with_suffix(".h264.mp4"))]
    return f"{film}: browsers do not play it, because OpenCV does not encode VP8; to convert: {quoted(words)}"


def _find_codec(size: tuple[int, int], stem: Path) -> tuple[str, str]:
    """Return the first entry of CODECS with which OpenCV writes videos of `size`, (width, height)."""
    with tempfile.TemporaryDirectory(prefix="segtrain-codec-") as folder:
        for codec, suffix in CODECS:
            film = _open(Path(folder, codec + suffix), codec, 25.0, size)
            is_open = film.isOpened()
            film.release()
            if is_open:
                return codec, suffix
    raise InputError(f"{stem}: OpenCV cannot write a video of {size[0]}x{size[1]} pixels")


def _open(path: Path, codec: str, rate: float, size: tuple[int, int]) -> cv2.VideoWriter:
    with _silent():
        return cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*codec), rate, size)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard what C code writes to standard error inside the `with` block, such as OpenCV's warnings about codecs."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _even(frame: np.ndarray) -> np.ndarray:
    height, width = frame.shape[:2]
    return cv2.copyMakeBorder(frame, 0, height % 2, 0, width % 2, cv2.BORDER_REPLICATE)
