"""The files that predict.py leaves: palette PNGs, overlays, probabilities."""

import io
import json
import shutil
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from engine.files import check_writable, write_file, writing
from engine.pictures import label_png, overlay
from errors import InputError, UserError

NUM_THREADS = 4  # that compress and write, while the next images are predicted
MAX_WAITING = 64  # images


class Outputs:
    """masks/NAME.png, and where asked for overlays/NAME.jpg and probs/NAME.npy, in a folder; NAME may have folders.

    Of a video: masks/NAME/000001.png and so on, overlays/NAME.mp4, and at last masks/NAME/frames.json.
    Every file appears whole, and the mask after what else there is of an image. So what has a mask is done.
    """

    def __init__(self, folder: Path, colours: np.ndarray, *, overlays: bool, probs: bool):
        self.folder, self.colours, self.overlays, self.probs = folder, colours, overlays, probs
        self._pool = ThreadPoolExecutor(NUM_THREADS)
        self._waiting: deque[Future] = deque()

    def __enter__(self) -> "Outputs":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=error[0] is not None)

    def claim(self, settings: dict, *, overwrite: bool) -> None:
        """Note what the folder's predictions are made by; raise UserError where there are some by something else."""
        note = self.folder / "predictions.json"
        text = json.dumps(settings | {"overlay": self.overlays, "probs": self.probs}, indent=1)
        if note.is_file() and not overwrite and note.read_text(encoding="utf-8") != text:
            raise UserError(
                f"--output {self.folder}: has predictions made in another way, see {note}: name another folder, or use "
                "--overwrite"
            )
        check_writable(self.folder)
        write_file(note, text.encode())

    def mask(self, name: str) -> Path:
        return self.folder / "masks" / f"{name}.png"

    def is_done(self, name: str) -> bool:
        """Whether all files of an image or a video are there."""
        return self.mask(name).is_file() or (self.folder / "masks" / name / "frames.json").is_file()

    def remove(self, name: str) -> None:
        """Remove the masks of a video."""
        shutil.rmtree(self.folder / "masks" / name, ignore_errors=True)

    def write(self, name: str, image: np.ndarray, label: np.ndarray, probs: np.ndarray | None, *, frame: bool) -> None:
        """Write what belongs to one image, or to a frame of a video, in the background; raise what went wrong before.

        image (H, W, 3) uint8; label (H, W) uint8; probs (C, H, W) float16.
        """
        self._waiting.append(self._pool.submit(self._write, name, image, label, probs, frame))
        while len(self._waiting) > MAX_WAITING or (self._waiting and self._waiting[0].done()):
            self._waiting.popleft().result()

    def wait(self) -> None:
        """Return when all is written."""
        while self._waiting:
            self._waiting.popleft().result()

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

    def finish_video(self, name: str, rate: float) -> None:
        """Note that all frames of a video are there, once they are. rate: frames a second."""
        self.wait()
        write_file(self.folder / "masks" / name / "frames.json", json.dumps({"frames_per_s": rate}).encode())

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
