"""Keeps the predictions of an evaluation, as files or for the pictures of a report."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from distributed.group import Group
from evaluation.pictures import label_png
from evaluation.scoring import Result
from files import write_atomic

NUM_WORST, NUM_BEST, NUM_DIFFERENT = 12, 6, 6  # images in a report, besides the worst of each class


class Predictions:
    """Keeps this rank's predictions: as files in save_dir unless it is "", and with `keep` for gather().

    names: file names without suffix, by image index. colours: (256, 3) uint8.
    """

    def __init__(self, names: list[str], colours: np.ndarray, *, save_dir: str, keep: bool):
        self.names, self.colours, self.save_dir, self.keep = names, colours, save_dir, keep
        self.pngs: dict[int, bytes] = {}  # compressed, as all are kept until to_show() chooses some

    def __call__(self, index: int, predicted: np.ndarray) -> None:
        """Keep the label map (H, W) uint8 predicted for an image."""
        if not (self.save_dir or self.keep):
            return
        png = label_png(predicted, self.colours)
        if self.save_dir:
            write_atomic(Path(self.save_dir) / f"{self.names[index]}.png", png, parents=True)
        if self.keep:
            self.pngs[index] = png

    def gather(self, group: Group, chosen: list[int]) -> dict[int, np.ndarray]:
        """The predicted label maps of the chosen images, {index: (H, W) uint8}, from all ranks. Collective."""
        shares = group.gather({index: self.pngs[index] for index in chosen if index in self.pngs})
        merged = {index: png for share in shares for index, png in share.items()}
        return {index: np.array(Image.open(io.BytesIO(merged[index]))) for index in chosen}


def to_show(results: list[Result]) -> list[int]:
    """Indices of the images for a report, by rising mIoU in the first result.

    They are its worst and best images, the worst image of each class, and where two results differ most.
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
