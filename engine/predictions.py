"""The predictions of an evaluation that are kept: as files, or for the pictures of a report."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from engine.distributed import Group
from engine.files import write_file
from engine.pictures import label_png
from engine.scoring import Result

NUM_WORST, NUM_BEST, NUM_DIFFERENT = 12, 6, 6  # images in a report, besides the worst of each class


class Predictions:
    """Takes this rank's predictions. names: of the images. save_dir: folder to write them to, or "". keep: for gather()."""

    def __init__(self, names: list[str], colours: np.ndarray, *, save_dir: str, keep: bool):
        self.names, self.colours, self.save_dir, self.keep = names, colours, save_dir, keep
        self.pngs: dict[int, bytes] = {}  # small, so that all can be kept until it is known which are shown

    def __call__(self, index: int, predicted: np.ndarray) -> None:
        """Take the label map (H, W) uint8 predicted for an image."""
        if not (self.save_dir or self.keep):
            return
        png = label_png(predicted, self.colours)
        if self.save_dir:
            write_file(Path(self.save_dir) / f"{self.names[index]}.png", png)
        if self.keep:
            self.pngs[index] = png

    def gather(self, group: Group, chosen: list[int]) -> dict[int, np.ndarray]:
        """The predictions of these images, of all ranks."""
        shares = group.gather({index: self.pngs[index] for index in chosen if index in self.pngs})
        merged = {index: png for share in shares for index, png in share.items()}
        return {index: np.array(Image.open(io.BytesIO(merged[index]))) for index in chosen}


def to_show(results: list[Result]) -> list[int]:
    """The images for a report, the worst of the first result first.

    They are its worst and best images, the worst of each class, and of two results those that differ most.
    """
    result = results[0]
    order = [index for index in np.argsort(result.image_miou, kind="stable").tolist()
             if np.isfinite(result.image_miou[index])]  # fmt: skip
    chosen = set(order[:NUM_WORST] + order[-NUM_BEST:])
    for of_class in np.where(result.counts[:, 1] > 0, result.image_iou, np.inf).T:
        if np.isfinite(of_class.min()):
            chosen.add(int(of_class.argmin()))
    difference = np.abs(results[-1].image_miou - result.image_miou)
    chosen.update(sorted(order, key=lambda index: -difference[index])[:NUM_DIFFERENT] if len(results) == 2 else [])
    return [index for index in order if index in chosen]
