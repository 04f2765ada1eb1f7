"""The files that predict.py writes: palette PNGs, overlays, probabilities."""

import io
import json
import math
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from PIL import Image

from data.classes import Classes
from data.images import label_png
from evaluation.legend import with_legend
from evaluation.pictures import overlay
from prediction.films import CODECS, write_film
from prediction.inputs import OUTPUT_NOTE
from support.errors import InputError
from support.files import write_atomic
from support.results import claim
from support.threads import ThreadPool

RESULTS = ("masks/**/*.png", "masks/**/frames.json", "probs/**/*.npy", "overlays/**/*.jpg", "overlays/**/*.webm",
           "overlays/**/*.mp4")  # fmt: skip
NUM_THREADS = 4  # compress and write while the next images are predicted
MAX_WAITING = 8  # images that wait for a thread
JPEG_SIDE = 65_500  # pixels at most; a larger overlay shows every n-th pixel


class Outputs:
    """A folder with masks/NAME.png and, on request, overlays/NAME.jpg and probs/NAME.npy. NAME may contain folders.

    Below an overlay, a legend names the classes that it shows.
    A video gets masks/NAME/000001.png and so on, masks/NAME/frames.json, and overlays/NAME.webm or .mp4.
    predictions.json has the settings of all predictions. A mask, or frames.json, is written after the rest.
    classes: their colours are the masks' palette. background: class that overlays leave clear, or None. overlays,
    probs: whether to write such files. failures: errors of single outputs. films: overlay videos that were written.
    """

    def __init__(self, folder: Path, classes: Classes, background: int | None, *, overlays: bool, probs: bool):
        self.folder, self.classes, self.background = folder, classes, background
        self.overlays, self.probs = overlays, probs
        self.failures: list[InputError] = []
        self.films: list[Path] = []
        self._pool = ThreadPool(NUM_THREADS)
        self._writes: deque[Future] = deque()

    def __enter__(self) -> "Outputs":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=error[0] is not None)

    def claim(self, settings: dict, *, overwrite: bool) -> None:
        """Write predictions.json, or check that its settings are these, as support.results.claim(). Only for rank 0."""
        overlays = {"background": self.background} if self.overlays else False
        settings = settings | {"overlay": overlays, "probs": self.probs}
        claim(self.folder / OUTPUT_NOTE, settings, RESULTS, "predict.py", overwrite=overwrite)

    def mask(self, name: str) -> Path:
        return self.folder / "masks" / f"{name}.png"

    def is_done(self, name: str, *, frame: bool = False) -> bool:
        """Return True if all files of `name` exist: of an image or a video or, with frame=True, of a video frame."""
        return all(path.is_file() for path in self._files(name, frame))

    def _files(self, name: str, frame: bool) -> Iterator[Path]:
        """Yield all file paths of an image or a video or, with frame=True, of a video frame, which has no overlay."""
        frames = self.folder / "masks" / name / "frames.json"
        if frames.is_file():
            numbers = range(1, json.loads(frames.read_text(encoding="utf-8"))["frames"] + 1)
            yield from (self.mask(f"{name}/{number:06d}") for number in numbers)
            films = [self.folder / "overlays" / f"{name}{suffix}" for _, suffix in CODECS]
            if self.overlays:
                yield next((film for film in films if film.is_file()), films[0])
            return
        yield self.mask(name)
        if self.overlays and not frame:
            yield self.folder / "overlays" / f"{name}.jpg"
        if self.probs:
            yield self.folder / "probs" / f"{name}.npy"

    def write(self, name: str, image: np.ndarray, label: np.ndarray, probs: np.ndarray | None, *, frame: bool) -> None:
        """Write the files of an image, or of a frame of a video, in a thread.

        image: (H, W, 3) uint8 RGB. label: (H, W) uint8. probs: (C, H, W) float16, or None. frame: whether it is a
        frame, which gets no overlay. Blocks while more than MAX_WAITING images wait; see wait() for errors.
        """
        self._writes.append(self._pool.submit(self._write, name, image, label, probs, frame))
        self.wait(MAX_WAITING)

    def wait(self, most: int = 0) -> None:
        """Wait until at most so many images are unwritten. Adds InputErrors to `failures`, raises other errors."""
        while len(self._writes) > most:
            try:
                self._writes.popleft().result()
            except InputError as error:
                self.failures.append(error)

    def _write(self, name: str, image: np.ndarray, label: np.ndarray, probs: np.ndarray | None, frame: bool) -> None:
        if probs is not None:
            buffer = io.BytesIO()
            np.save(buffer, probs)
            write_atomic(self.folder / "probs" / f"{name}.npy", buffer.getbuffer(), parents=True)
        if self.overlays and not frame:
            step, buffer = math.ceil(max(label.shape) / JPEG_SIDE), io.BytesIO()
            picture = self._overlay(image[::step, ::step], label[::step, ::step])
            Image.fromarray(picture).save(buffer, "JPEG", quality=90)
            write_atomic(self.folder / "overlays" / f"{name}.jpg", buffer.getbuffer(), parents=True)
        write_atomic(self.mask(name), label_png(label, self.classes.colours), parents=True)

    def _overlay(self, image: np.ndarray, label: np.ndarray, *, same_size: bool = False) -> np.ndarray:
        painted = overlay(image, label, self.classes.colours, self.background)
        return with_legend(painted, label, self.classes, self.background, same_size=same_size)

    def write_video(self, name: str, frames: Iterable[tuple[np.ndarray, np.ndarray]], rate: float) -> None:
        """Write a video's overlay video, if wanted, and, after all its masks, frames.json.

        frames: pairs of a frame (H, W, 3) uint8 RGB and its label (H, W) uint8; write() gets each frame elsewhere.
        rate: frames per second. Raises InputError if the overlay video cannot be written.
        """
        num_frames = 0

        def painted() -> Iterator[np.ndarray]:
            nonlocal num_frames
            for image, label in frames:
                num_frames += 1
                yield self._overlay(image, label, same_size=True) if self.overlays else image

        if self.overlays:
            self.films.append(write_film(self.folder / "overlays" / name, painted(), rate))
        else:
            deque(painted(), maxlen=0)
        self.wait()
        text = json.dumps({"frames": num_frames, "frames_per_s": rate})
        write_atomic(self.folder / "masks" / name / "frames.json", text, parents=True)
