"""The output folder of pseudo.py: finished pseudo-labels, and drafts until all are finished."""

import contextlib
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from data.images import decode, label_png
from pseudo_labels.drafts import Draft
from support.errors import UserError
from support.files import write_atomic
from support.results import claim


class PseudoFolder:
    """A folder with NAME.png for each image, pseudo.json (the settings that the labels depend on) and scores.json.

    NAME may contain folders. Until all labels are finished, .unfinished/ has a draft of each image.
    colours: palette of the PNGs, (256, 3) uint8. ending: of the labels' names, before .png, as --label_suffix.
    """

    def __init__(self, path: Path, colours: np.ndarray, ending: str = ""):
        self.path, self.colours, self.ending = path, colours, ending
        self._unfinished = path / ".unfinished"

    def check_place(self, inputs: Sequence[Path], root: Path) -> None:
        """Raise UserError if the folder is, contains or is in one of the folders `inputs`, or contains `root`.

        root: the data set's root folder, which may contain this folder.
        """
        own = self.path.resolve()
        places = [path.resolve() for path in inputs]
        taken = [place for place in places if own.is_relative_to(place)]
        taken += [place for place in (*places, root.resolve()) if place.is_relative_to(own)]
        if taken:
            raise UserError(
                f"--output {self.path}: is, contains or is in a folder of the data set ({taken[0]}): name a folder of "
                "its own"
            )

    def claim(self, settings: dict, *, overwrite: bool) -> None:
        """Write pseudo.json, or check that its settings are these, as support.results.claim(). Only for rank 0."""
        claim(self.path / "pseudo.json", settings, ["**/*.png", "scores.json"], "pseudo.py", overwrite=overwrite)

    def label_path(self, name: str) -> Path:
        return self.path / f"{name}{self.ending}.png"

    def is_done(self, name: str) -> bool:
        return self.label_path(name).is_file()

    def write(self, name: str, label: np.ndarray) -> None:
        """Write a finished pseudo-label, (H, W) uint8."""
        write_atomic(self.label_path(name), label_png(label, self.colours), parents=True)

    def has_draft(self, name: str) -> bool:
        return self._draft_path(name).is_file()

    def write_draft(self, name: str, draft: Draft) -> None:
        """Write the maps of a draft as the channels of one PNG."""
        buffer = io.BytesIO()
        Image.fromarray(np.stack(draft, axis=2)).save(buffer, "PNG", compress_level=1)
        write_atomic(self._draft_path(name), buffer.getvalue(), parents=True)

    def read_draft(self, name: str) -> Draft:
        """Return the draft of an image. Raises UserError if the file cannot be read."""
        return Draft(*np.moveaxis(decode(self._draft_path(name)), 2, 0))

    @property
    def scores(self) -> dict:
        """Return the content of scores.json; {} if there is none."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return json.loads((self.path / "scores.json").read_text(encoding="utf-8"))
        return {}

    def finish(self, scores: dict) -> None:
        """Write scores.json and remove the drafts. Rank 0 calls this method, after all labels are written."""
        write_atomic(self.path / "scores.json", json.dumps(scores, indent=1))
        shutil.rmtree(self._unfinished, ignore_errors=True)

    def _draft_path(self, name: str) -> Path:
        return self._unfinished / f"{name}.png"
