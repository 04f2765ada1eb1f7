"""The files that predict.py writes: palette PNGs, overlays, probabilities."""

import contextlib
import functools
import io
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from PIL import Image

from data.classes import Classes
from data.images import label_png
from evaluation.legend import with_legend
from evaluation.pictures import overlay
from evaluation.streaming import Band
from prediction.films import SUFFIXES, write_film
from prediction.large import Miniature, png_writer
from support.errors import InputError, UserError
from support.files import check_writable, remove_scratch, write_atomic, writing
from support.threads import ThreadPool

NUM_THREADS = 4  # compress and write while the next images are predicted
MAX_WAITING = 2**29  # bytes of results that wait for a thread


class Outputs:
    """A folder with masks/NAME.png and, on request, overlays/NAME.jpg and probs/NAME.npy. NAME may contain folders.

    Below an overlay, a legend names the classes that it shows.
    A video gets masks/NAME/000001.png and so on, masks/NAME/frames.json, and overlays/NAME.webm or .mp4.
    predictions.json has the settings of all predictions. done.RANK.txt lists the names of finished images, frames and
    videos, as JSON strings.
    classes: their colours are the masks' palette. background: class that overlays leave clear, or None. overlays,
    probs: whether to write such files. failures: errors of single outputs. not_in_browsers: overlay videos that
    browsers do not play.
    """

    def __init__(
        self,
        folder: Path,
        classes: Classes,
        background: int | None,
        *,
        overlays: bool,
        probs: bool,
        rank: int = 0,
    ):
        self.folder, self.classes, self.background = folder, classes, background
        self.overlays, self.probs, self.rank = overlays, probs, rank
        self.failures: list[InputError] = []
        self.not_in_browsers: list[Path] = []
        self._done_file: TextIO | None = None
        self._pool = ThreadPool(NUM_THREADS)
        self._waiting: deque[tuple[str, int, Future]] = deque()  # name, bytes, the write

    def __enter__(self) -> "Outputs":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=error[0] is not None)
        if self._done_file:
            with contextlib.suppress(OSError):  # each line is flushed by itself
                self._done_file.close()

    def claim(self, settings: dict, *, overwrite: bool) -> None:
        """Write predictions.json, or check an existing one; with overwrite, write it and forget finished names.

        Rank 0 calls this method before any other. Raises UserError if the folder cannot be written, has predictions
        with other settings (without overwrite), or has masks that predict.py did not write.
        """
        note = self.folder / "predictions.json"
        overlays = {"background": self.background} if self.overlays else False
        text = json.dumps(settings | {"overlay": overlays, "probs": self.probs}, indent=1)
        if note.is_file() and not overwrite:
            if note.read_text(encoding="utf-8") != text:
                raise UserError(
                    f"--output {self.folder}: has predictions of another input or with other settings, see {note}: "
                    "name another folder, or use --overwrite"
                )
            for kind in ("masks", "overlays", "probs"):  # --output itself may be a folder with other things
                remove_scratch((self.folder / kind).rglob(".*.part.*"))
            return
        if not note.is_file() and (self.folder / "masks").exists():
            raise UserError(f"--output {self.folder}: has masks that predict.py did not write: name another folder")
        check_writable(self.folder, "--output")
        for file in self.folder.glob("done.*.txt"):
            file.unlink()
        write_atomic(note, text)

    @functools.cached_property
    def done(self) -> set[str]:
        """Return the names of the images, frames and videos that earlier processes finished."""
        names = set()
        for file in self.folder.glob("done.*.txt"):
            for line in file.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(json.JSONDecodeError):  # a killed process wrote half a line
                    names.add(json.loads(line))
        return names

    def _finish(self, name: str) -> None:
        """Add a name to done.RANK.txt, the list of finished outputs."""
        if self._done_file is None:
            self._done_file = (self.folder / f"done.{self.rank}.txt").open("a", encoding="utf-8", buffering=1)
            self._done_file.write("\n")  # a killed process may have left half a line
        self._done_file.write(json.dumps(name) + "\n")

    def mask(self, name: str) -> Path:
        return self.folder / "masks" / f"{name}.png"

    def is_done(self, name: str, *, frame: bool = False) -> bool:
        """Return True if an earlier process finished `name` and all of its files still exist.

        name: of an image or a video or, with frame=True, of a video frame.
        """
        return name in self.done and all(path.is_file() for path in self._files(name, frame))

    def _files(self, name: str, frame: bool) -> Iterator[Path]:
        """Yield all file paths of an image or a video or, with frame=True, of a video frame, which has no overlay."""
        frames = self.folder / "masks" / name / "frames.json"
        if frames.is_file():
            numbers = range(1, json.loads(frames.read_text(encoding="utf-8"))["frames"] + 1)
            yield from (self.mask(f"{name}/{number:06d}") for number in numbers)
            films = [self.folder / "overlays" / f"{name}{suffix}" for suffix in SUFFIXES]
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
        frame, which gets no overlay. Adds InputErrors of earlier writes to `failures`, and raises other errors of
        earlier writes. Blocks while more than MAX_WAITING bytes wait.
        """
        size = image.nbytes + (0 if probs is None else probs.nbytes)
        self._waiting.append((name, size, self._pool.submit(self._write, name, image, label, probs, frame)))
        while self._waiting and (self._waiting[0][2].done() or sum(item[1] for item in self._waiting) > MAX_WAITING):
            self._finish_first()

    def wait(self) -> None:
        """Wait until all files are written. Adds InputErrors to `failures`, and raises other errors of writes."""
        while self._waiting:
            self._finish_first()

    def _finish_first(self) -> None:
        name, _, future = self._waiting.popleft()
        try:
            future.result()
        except InputError as error:
            self.failures.append(error)
        else:
            self._finish(name)

    def _write(self, name: str, image: np.ndarray, label: np.ndarray, probs: np.ndarray | None, frame: bool) -> None:
        if probs is not None:
            buffer = io.BytesIO()
            np.save(buffer, probs)
            write_atomic(self.folder / "probs" / f"{name}.npy", buffer.getbuffer(), parents=True)
        if self.overlays and not frame:
            self._write_overlay(name, image, label)
        write_atomic(self.mask(name), label_png(label, self.classes.colours), parents=True)

    def write_large(self, name: str, size: tuple[int, int], bands: Iterable[Band], show: Callable) -> None:
        """Write the files of a huge image of `size` (height, width) from its bands, in order; mark it finished.

        An overlay shows every n-th row and column of it. show: makes the picture of image rows (rows, W, C).
        """
        small, probs, path = Miniature(size), None, self.folder / "probs" / f"{name}.npy"
        with contextlib.ExitStack() as stack:
            mask = stack.enter_context(png_writer(self.mask(name), size, self.classes.colours))
            scratch = stack.enter_context(writing(path, parents=True)) if self.probs else path
            for band in bands:
                label = band.probs.argmax(0).to(torch.uint8).cpu().numpy()
                mask.write(label)
                if self.probs:
                    shape, mode = (len(band.probs), *size), "r+" if band.rows.start else "w+"
                    probs = np.lib.format.open_memmap(scratch, mode=mode, dtype=np.float16, shape=shape)
                    probs[:, band.rows] = band.probs.half().cpu().numpy()
                    del probs  # unmapped: its pages would stay in this process's memory
                if self.overlays:
                    small.add(band.rows.start, show(band.image), label)
        if self.overlays:
            self._write_overlay(name, *small.maps)
        self._finish(name)

    def _write_overlay(self, name: str, image: np.ndarray, label: np.ndarray) -> None:
        buffer = io.BytesIO()
        Image.fromarray(self._overlay(image, label)).save(buffer, "JPEG", quality=90)
        write_atomic(self.folder / "overlays" / f"{name}.jpg", buffer.getbuffer(), parents=True)

    def _overlay(self, image: np.ndarray, label: np.ndarray, *, same_size: bool = False) -> np.ndarray:
        painted = overlay(image, label, self.classes.colours, self.background)
        return with_legend(painted, label, self.classes, self.background, same_size=same_size)

    def write_video(self, name: str, frames: Iterable[tuple[np.ndarray, np.ndarray]], rate: float) -> None:
        """Write a video's overlay video, if wanted, and, after all its masks, frames.json; mark the video finished.

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
            path, plays = write_film(self.folder / "overlays" / name, painted(), rate)
            self.not_in_browsers += [] if plays else [path]
        else:
            deque(painted(), maxlen=0)
        self.wait()
        text = json.dumps({"frames": num_frames, "frames_per_s": rate})
        write_atomic(self.folder / "masks" / name / "frames.json", text, parents=True)
        self._finish(name)
