"""The files that predict.py leaves: palette PNGs, overlays, probabilities."""

import io
import json
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from engine.files import check_writable, remove_stale, write_file, writing
from engine.pictures import label_png, overlay
from errors import InputError, UserError

NUM_THREADS = 4  # that compress and write, while the next images are predicted
MAX_WAITING = 2**29  # bytes of results that wait for a thread


class Outputs:
    """masks/NAME.png, and where asked for overlays/NAME.jpg and probs/NAME.npy, in a folder; NAME may have folders.

    Of a video: masks/NAME/000001.png and so on, overlays/NAME.mp4, and at last masks/NAME/frames.json.
    Every file appears whole. colours: (256, 3) uint8. failures: what could not be written for reasons of its own.
    """

    def __init__(self, folder: Path, colours: np.ndarray, *, overlays: bool, probs: bool):
        self.folder, self.colours, self.overlays, self.probs = folder, colours, overlays, probs
        self.failures: list[InputError] = []
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
        text = json.dumps(settings | {"overlay": self.overlays, "probs": self.probs}, indent=1)
        if self.note.is_file():
            if self.note.read_text(encoding="utf-8") == text and not overwrite:
                remove_stale(self.folder)
                return
            if not overwrite:
                raise UserError(
                    f"--output {self.folder}: has predictions of another input, or made in another way, see {self.note}: "
                    "name another folder, or use --overwrite"
                )
        elif (self.folder / "masks").exists():
            raise UserError(f"--output {self.folder}: has masks that are not of predict.py: name another folder")
        check_writable(self.folder, "--output")
        write_file(self.note, text.encode())

    def mask(self, name: str) -> Path:
        return self.folder / "masks" / f"{name}.png"

    def is_done(self, name: str) -> bool:
        """Whether all files of an image, or of a video, are there, and made by what the note says."""
        frames = self.folder / "masks" / name / "frames.json"
        if frames.is_file():
            wanted, number = [frames], json.loads(frames.read_text(encoding="utf-8"))["frames"]
            wanted += [self.mask(f"{name}/{frame:06d}") for frame in range(1, number + 1)]
            wanted += [self.folder / "overlays" / f"{name}.mp4"] if self.overlays else []
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
            write_file(self.folder / "probs" / f"{name}.npy", buffer.getbuffer())
        if self.overlays and not frame:
            buffer = io.BytesIO()
            Image.fromarray(overlay(image, label, self.colours)).save(buffer, "JPEG", quality=90)
            write_file(self.folder / "overlays" / f"{name}.jpg", buffer.getvalue())
        write_file(self.mask(name), label_png(label, self.colours))

    def finish_video(self, name: str, num_frames: int, rate: float) -> None:
        """Note that all frames of a video are there, once they are. rate: frames a second."""
        self.wait()
        text = json.dumps({"frames": num_frames, "frames_per_s": rate})
        write_file(self.folder / "masks" / name / "frames.json", text.encode())

    def write_film(self, name: str, frames: Iterable[tuple[np.ndarray, np.ndarray]], rate: float) -> None:
        """Write overlays/NAME.mp4 from pairs of a frame (H, W, 3) uint8 RGB and its label (H, W) uint8."""
        path = self.folder / "overlays" / f"{name}.mp4"
        with writing(path) as scratch:
            film = None
            try:
                for image, label in frames:
                    if film is None:
                        size = label.shape[1], label.shape[0]
                        film = cv2.VideoWriter(
                            str(scratch), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*"mp4v"), rate, size
                        )
                        if not film.isOpened():
                            raise InputError(f"{path}: OpenCV cannot write a video of {size[0]}x{size[1]} pixels")
                    film.write(cv2.cvtColor(overlay(image, label, self.colours), cv2.COLOR_RGB2BGR))
            finally:
                if film is not None:
                    film.release()
