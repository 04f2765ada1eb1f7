"""The files that predict.py writes: palette PNGs, overlays, probabilities."""

import io
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from data.classes import Classes
from data.images import encode, label_png
from data.overlays import JPEG_QUALITY, overlay, with_legend
from distributed.group import Stopped
from inference.inputs import OUTPUT_NOTE, SUFFIXES
from support.errors import InputError
from support.files import write_atomic
from support.processes import ThreadPool
from support.results import file_state, reserve

RESULTS = [f"{kind}/**/*.{suffix}" for kind, suffix in SUFFIXES.items()]
PROBS_DTYPE = torch.float16
NUM_THREADS = 4  # compress and write while the next images are predicted
MAX_WAITING = 8  # images that wait for a thread


class Outputs:
    """A folder with masks/NAME.png and, on request, overlays/NAME.jpg and probs/NAME.npy. NAME may contain folders.

    Below an overlay, a legend names the classes that it shows. predictions.json has the settings of all predictions. A
    mask is written after the rest.
    classes: their colours are the masks' palette. background: class that overlays leave clear, or None. kinds: those
    of SUFFIXES to write. failures: errors of single outputs.
    """

    def __init__(self, folder: Path, classes: Classes, background: int | None, kinds: Sequence[str]):
        self.folder, self.classes, self.background, self.kinds = folder, classes, background, kinds
        self.failures: list[InputError] = []
        self._pool = ThreadPool(NUM_THREADS)
        self._writes: deque[Future] = deque()

    def __enter__(self) -> "Outputs":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=error[0] not in (None, Stopped))  # after a signal, write what is predicted

    def claim(self, settings: dict, images: dict[str, Path], *, overwrite: bool) -> list[Path]:
        """Write predictions.json, or check that its settings are these, as support.results.reserve(). Only for rank 0.

        images: {name: file} of all inputs; the predictions of a file that has changed are removed. Returns the masks
        from earlier starts whose image is gone or renamed: a becomes a.jpg once a.png is beside it.
        """
        overlays = {"background": self.background} if "overlays" in self.kinds else False
        settings = settings | {"overlay": overlays, "probs": "probs" in self.kinds}
        states = {name: file_state(file) for name, file in images.items()}
        options: dict = {"flag": "--output", "overwrite": overwrite, "files": states}
        options["paths"] = lambda name: [self.path(kind, name) for kind in SUFFIXES]
        others = reserve(self.folder / OUTPUT_NOTE, settings, RESULTS, "predict.py", **options)
        return [mask for mask in (self.path("masks", name) for name in others) if mask.is_file()]

    def path(self, kind: str, name: str) -> Path:
        """Return the path of a file. kind: masks, overlays or probs."""
        return self.folder / kind / f"{name}.{SUFFIXES[kind]}"

    def is_done(self, name: str) -> bool:
        """Return True if all files of an image exist."""
        return all(self.path(kind, name).is_file() for kind in self.kinds)

    def write(self, name: str, image: np.ndarray, label: np.ndarray, probs: np.ndarray | None) -> None:
        """Write the files of an image in a thread.

        image: (H, W, 3) uint8 RGB. label: (H, W) uint8. probs: (C, H, W) float16, or None. Blocks while more than
        MAX_WAITING images wait; see wait() for errors.
        """
        self._writes.append(self._pool.submit(self._write, name, image, label, probs))
        self.wait(MAX_WAITING)

    def wait(self, most: int = 0) -> None:
        """Wait until at most so many images are unwritten. Adds InputErrors to `failures`, raises other errors."""
        while len(self._writes) > most:
            try:
                self._writes.popleft().result()
            except InputError as error:
                self.failures.append(error)

    def _write(self, name: str, image: np.ndarray, label: np.ndarray, probs: np.ndarray | None) -> None:
        if probs is not None:
            buffer = io.BytesIO()
            np.save(buffer, probs)
            write_atomic(self.path("probs", name), buffer.getbuffer(), parents=True)
        if "overlays" in self.kinds:
            painted = overlay(image, label, self.classes.colours, self.background)
            picture = Image.fromarray(with_legend(painted, label, self.classes, self.background))
            write_atomic(self.path("overlays", name), encode(picture, "JPEG", quality=JPEG_QUALITY), parents=True)
        write_atomic(self.path("masks", name), label_png(label, self.classes.colours), parents=True)
