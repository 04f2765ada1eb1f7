"""The output folder of pseudo.py: finished pseudo-labels, and drafts until all are finished."""

import io
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from data.images import decode, label_png
from pseudo_labels.drafts import Draft
from support.errors import UserError
from support.files import write_atomic


class PseudoFolder:
    """A folder with NAME.png for each image, pseudo.json (the settings that the labels depend on) and scores.json.

    NAME may contain folders. Until all labels are finished, .unfinished/ has a draft of each image. Every file is
    written in .unfinished/ and then moved, so a killed process leaves nothing beside the labels.
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
        """Write pseudo.json, or check that its settings are these; with overwrite, remove all labels first.

        Rank 0 calls this method before any other. Raises UserError if the folder cannot be written, has labels of other
        settings (without overwrite), or has PNGs but no pseudo.json, so that pseudo.py did not write them.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--output {self.path}: is a file: name a folder")
        note, text = self.path / "pseudo.json", json.dumps(settings, indent=1)
        found = next(self.path.rglob("*.png"), None)  # a label or a draft
        if note.is_file() and not overwrite:
            saved = self._read(note)
            differ = [name for name in saved | settings if saved.get(name) != json.loads(text).get(name)]
            if differ and found:
                raise UserError(
                    f"--output {self.path}: has pseudo-labels made with other settings ({', '.join(differ)}), see "
                    f"{note}: name another folder, or delete this one, or replace them with --overwrite"
                )
            if not differ:
                return
        if found and not note.is_file():
            raise UserError(f"--output {self.path}: has {found}, which pseudo.py did not write: name another folder")
        # The old note goes last: if this process is killed here, the folder still belongs to the old settings.
        shutil.rmtree(self._unfinished, ignore_errors=True)
        labels = self.path.rglob("*.png") if note.is_file() else ()  # of other lists, too
        for path in [self.path / "scores.json", *labels]:
            path.unlink(missing_ok=True)
        self._place(note, text)

    def label_path(self, name: str) -> Path:
        return self.path / f"{name}{self.ending}.png"

    def is_done(self, name: str) -> bool:
        return self.label_path(name).is_file()

    def write(self, name: str, label: np.ndarray) -> None:
        """Write a finished pseudo-label, (H, W) uint8."""
        self._place(self.label_path(name), label_png(label, self.colours))

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
        path = self.path / "scores.json"
        return self._read(path) if path.is_file() else {}

    def finish(self, scores: dict) -> None:
        """Write scores.json and remove the drafts. Rank 0 calls this method, after all labels are written."""
        self._place(self.path / "scores.json", json.dumps(scores, indent=1))
        shutil.rmtree(self._unfinished, ignore_errors=True)

    def _read(self, path: Path) -> dict:
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise UserError(f"{path}: damaged: use --overwrite to make the pseudo-labels again") from None

    def _draft_path(self, name: str) -> Path:
        return self._unfinished / "drafts" / f"{name}.png"

    def _place(self, path: Path, data: bytes | str) -> None:
        """Write a file in the folder of drafts, and move it to `path`."""
        part = self._unfinished / "parts" / path.relative_to(self.path)
        write_atomic(part, data, parents=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(part, path)
