"""The files that predict.py leaves: palette PNGs, overlays, probabilities."""

import io
import json
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from errors import InputError, UserError
from evaluation.pictures import label_png, overlay
from files import check_writable, remove_scratch, write_atomic
from prediction.films import SUFFIXES, write_film

NUM_THREADS = 4  # that compress and write, while the next images are predicted
MAX_WAITING = 2**29  # bytes of results that wait for a thread


class Outputs:
    """masks/NAME.png, and where asked for overlays/NAME.jpg and probs/NAME.npy, in a folder; NAME may have folders.

    For a video: masks/NAME/000001.png and so on, overlays/NAME.webm or .mp4, and masks/NAME/frames.json as the last.
    Every file appears whole. colours: (256, 3) uint8. background: as of evaluation.pictures.overlay(). failures: errors of
    single outputs. not_in_browsers: overlay videos that browsers do not play.
    """

    def __init__(
        self, folder: Path, colours: np.ndarray, background: int | None = 0, *, overlays: bool, probs: bool
    ):  # fmt: skip
        self.folder, self.colours, self.background = folder, colours, background
        self.overlays, self.probs = overlays, probs
        self.failures: list[InputError] = []
        self.not_in_browsers: list[Path] = []
        self._pool = ThreadPoolExecutor(NUM_THREADS)
        self._waiting: deque[tuple[int, Future]] = deque()  # bytes, and what ends when they are written

    def __enter__(self) -> "Outputs":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=error[0] is not None)

    @property
    def note(self) -> Path:
        """What the folder's predictions are made of and by. What is older than this file is not."""
        return self.folder / "predictions.json"

    def claim(self, settings: dict, *, overwrite: bool) -> None:
        """Write the note; raise UserError where the folder has predictions of something else, or files of others."""
        overlays = {"background": self.background} if self.overlays else False
        text = json.dumps(settings | {"overlay": overlays, "probs": self.probs}, indent=1)
        if self.note.is_file():
            if self.note.read_text(encoding="utf-8") == text and not overwrite:
                remove_scratch(self.folder)
                return
            if not overwrite:
                raise UserError(
                    f"--output {self.folder}: has predictions of another input, or made in another way, see {self.note}: "
                    "name another folder, or use --overwrite"
                )
        elif (self.folder / "masks").exists():
            raise UserError(f"--output {self.folder}: has masks that are not of predict.py: name another folder")
        check_writable(self.folder, "--output")
        write_atomic(self.note, text.encode(), parents=True)

    def mask(self, name: str) -> Path:
        return self.folder / "masks" / f"{name}.png"

    def is_done(self, name: str) -> bool:
        """Whether all files of an image, or of a video, are there, and made by what the note says."""
        frames = self.folder / "masks" / name / "frames.json"
        if frames.is_file():
            wanted, number = [frames], json.loads(frames.read_text(encoding="utf-8"))["frames"]
            wanted += [self.mask(f"{name}/{frame:06d}") for frame in range(1, number + 1)]
            films = [self.folder / "overlays" / f"{name}{suffix}" for suffix in SUFFIXES]
            if self.overlays and not any(map(self.is_new, films)):
                return False
        else:
            wanted = [self.mask(name)]
            wanted += [self.folder / "overlays" / f"{name}.jpg"] if self.overlays else []
            wanted += [self.folder / "probs" / f"{name}.npy"] if self.probs else []
        return all(self.is_new(path) for path in wanted)

    def is_new(self, path: Path) -> bool:
        """Whether a file is there, and not from before the note."""
        return path.is_file() and path.stat().st_mtime_ns >= self.note.stat().st_mtime_ns

    def write(self, name: str, image: np.ndarray, label: np.ndarray, probs: np.ndarray | None, *, frame: bool) -> None:
        """Write what belongs to one image, or to a frame of a video, in the background; raise what went wrong before.

        image (H, W, 3) uint8; label (H, W) uint8; probs (C, H, W) float16.
        """
        size = image.nbytes + (0 if probs is None else probs.nbytes)
        self._waiting.append((size, self._pool.submit(self._write, name, image, label, probs, frame)))
        while self._waiting and (self._waiting[0][1].done() or sum(size for size, _ in self._waiting) > MAX_WAITING):
            self._finish_first()

    def wait(self) -> None:
        """Return when all is written."""
        while self._waiting:
            self._finish_first()

    def _finish_first(self) -> None:
        try:
            self._waiting.popleft()[1].result()
        except InputError as error:
            self.failures.append(error)

    def _write(self, name: str, image: np.ndarray, label: np.ndarray, probs: np.ndarray | None, frame: bool) -> None:
        if probs is not None:
            buffer = io.BytesIO()
            np.save(buffer, probs)
            write_atomic(self.folder / "probs" / f"{name}.npy", buffer.getbuffer(), parents=True)
        if self.overlays and not frame:
            buffer = io.BytesIO()
            Image.fromarray(overlay(image, label, self.colours, self.background)).save(buffer, "JPEG", quality=90)
            write_atomic(self.folder / "overlays" / f"{name}.jpg", buffer.getvalue(), parents=True)
        write_atomic(self.mask(name), label_png(label, self.colours), parents=True)

    def finish_video(self, name: str, num_frames: int, rate: float) -> None:
        """Note that all frames of a video are there, once they are. rate: frames a second."""
        self.wait()
        text = json.dumps({"frames": num_frames, "frames_per_s": rate})
        write_atomic(self.folder / "masks" / name / "frames.json", text.encode(), parents=True)

    def write_film(self, name: str, frames: Iterable[tuple[np.ndarray, np.ndarray]], rate: float) -> None:
        """Write overlays/NAME.webm or .mp4 from pairs of a frame (H, W, 3) uint8 RGB and its label (H, W) uint8."""
        painted = (overlay(image, label, self.colours, self.background) for image, label in frames)
        path, plays = write_film(self.folder / "overlays" / name, painted, rate)
        if not plays:
            self.not_in_browsers.append(path)
