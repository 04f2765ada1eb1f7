"""Collect the strokes that were drawn after a suggestion. Each set is one pass of the scribble pipeline (--budget)."""

import json
import shutil
from pathlib import Path

import numpy as np

from data.images import label_png, read_label
from data.layout import SCRIBBLES, find_split
from flags import Config
from support.best_score import deciding_score
from support.errors import UserError
from support.files import read_bytes, sha256, write_atomic
from support.labels import IGNORE
from support.terminal import warn
from tools.convert.formats import labelme
from tools.convert.reading import MAX_BYTES, list_name, read_json
from tools.convert.source import Options, Source
from tools.scribbles.simulate import find_regions

TAKEN = "drawings.json"  # digests of the LabelMe files whose strokes a pass has taken
PATHS = ("list_path", "image_path", "image_suffix", "label_suffix")


class Pass:
    """All rounds of training on one set of strokes.

    folder: of the results. scribbles: folder of the strokes; None: strokes/ in `folder`. suggested: the folder that
    tools.suggest writes to after the last round. converted: the folder to which tools.convert writes the strokes that
    were drawn in `suggested`.
    """

    def __init__(self, folder: Path, scribbles: Path | None = None):
        self.folder, self.scribbles = folder, scribbles or folder / "strokes"
        self.suggested, self.converted = folder / "next", folder / "converted"

    def strokes(self, cfg: Config) -> dict[str, Path]:
        """Return {training image: file of its strokes}."""
        paths, labels = {name: getattr(cfg, name) for name in PATHS}, {"label": str(self.scribbles)}
        names, files = find_split(Path(cfg.dataset_path), "ScribbleOnly", cfg.train_split, labels, **paths).pairs
        return {name: file["label"] for name, file in zip(names, files, strict=True)}

    def budget(self) -> int | None:
        """Return the --budget with which tools.suggest began to write to `suggested`; None if no image is there."""
        if not any((self.suggested / "labelme").glob("*")):
            return None
        return _read_object(self.suggested / "suggestions.json", "budget")["budget"]

    def drawings(self) -> dict[str, str]:
        """Return the digest of each LabelMe file in `suggested`, by its name."""
        return {path.name: sha256(path) for path in sorted((self.suggested / "labelme").glob("[!.]*.json"))}

    def has_shapes(self) -> bool:
        """Return whether a LabelMe file in `suggested` has a shape besides the suggested places, or cannot be read."""
        if not self.drawings():
            return False
        source = Source(self.suggested / "labelme", Options())
        labelme.read(source)
        return bool(source.faults) or any(entry.record for entry in source.entries)

    def take_strokes(self, before: "Pass", taken: dict[str, str], cfg: Config) -> bool:
        """Write the strokes in before.converted, and for other images those in before.scribbles, to `scribbles`.

        taken: before.drawings(), read before the conversion, so that a file saved later counts as late. An image whose
        LabelMe file has no shape loses its strokes, also if nothing was converted. Return False, and remove `folder`,
        if no stroke differs from `before`. Raises UserError if an image of before.converted is not in the list.
        """
        scratch, has_changed = self.folder / ".strokes", False
        new = {path.stem: path for path in (before.converted / SCRIBBLES).glob("*.png")}
        without_shapes = {Path(name).stem for name in taken} - new.keys()
        shutil.rmtree(scratch, ignore_errors=True)  # of a start that was stopped
        for name, old in before.strokes(cfg).items():
            file = new.pop(list_name(name), old)
            target = (scratch / old.relative_to(before.scribbles)).with_suffix(file.suffix)
            label, content = read_label(file, IGNORE), read_bytes(file, MAX_BYTES)
            if list_name(name) in without_shapes:
                target, label = target.with_suffix(".png"), np.full_like(label, IGNORE)
                content = label_png(label)
            has_changed = has_changed or not np.array_equal(label, read_label(old, IGNORE))
            write_atomic(target, content, parents=True)
        if new:
            file = before.suggested / "labelme" / f"{next(iter(new))}.json"
            shutil.rmtree(self.folder)
            raise UserError(
                f"{file}: belongs to no training image: give it the name of its image, then repeat the command"
            )
        if has_changed:
            write_atomic(self.folder / TAKEN, json.dumps(taken, indent=1))
            scratch.replace(self.scribbles)  # at once: the folder is there only if it is whole
        else:
            shutil.rmtree(self.folder)
        return has_changed

    def warn_of_late_drawings(self, before: "Pass") -> None:
        """Warn if a LabelMe file of `before` has changed since this pass took its strokes."""
        taken = _read_object(self.folder / TAKEN)
        if late := [name for name, digest in before.drawings().items() if taken.get(name) != digest]:
            file = before.suggested / "labelme" / late[0]
            warn(f"warning: {file}: changed after {self.folder.name} had read it, so the changes are not used: draw in "
                 "the folder that the last line names")  # fmt: skip


def strokes_table(passes: list[Pass], cfg: Config) -> list[str]:
    """Return lines of text: the number of strokes and of labelled pixels of each pass, and its score in percent.

    The score is the mIoU, or the IoU of a single object.
    """
    lines, title = list[str](), ""
    for item in passes:
        num_strokes = num_pixels = 0
        for path in item.strokes(cfg).values():
            label = read_label(path, IGNORE)
            num_pixels += int((label != IGNORE).sum())
            num_strokes += len(find_regions(label, min_area=1))
        scores = _read_object(item.folder / "scores.json", "miou", "iou", "classes")
        title, score = deciding_score(scores, scores["classes"], cfg.background_class)
        lines.append(f"{num_strokes:>10}{num_pixels:>12}{100 * score:>8.2f}")
    return [f"{'strokes':>10}{'pixels':>12}    {title}", *lines]


def _read_object(path: Path, *names: str) -> dict:
    """Return the object in a JSON file. Raises UserError if the file is damaged or lacks one of these entries."""
    content = read_json(path)
    if not isinstance(content, dict) or not content.keys() >= {*names}:
        raise UserError(f"{path}: is damaged, or lacks {' or '.join(names) or 'an object'}: restore it from a copy")
    return content
