"""Keep the predictions of an evaluation, as files or for the pictures of a report."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from distributed.group import Group
from evaluation.pictures import label_png
from files import write_atomic


class Predictions:
    """This rank's predictions, as palette PNGs: in files if save_dir is set, in memory for gather() with keep.

    names: file names without suffix, by image index. colours: (256, 3) uint8.
    """

    def __init__(self, names: list[str], colours: np.ndarray, *, save_dir: str, keep: bool):
        self.names, self.colours, self.save_dir, self.keep = names, colours, save_dir, keep
        self.pngs: dict[int, bytes] = {}  # compressed, because all are kept until some are chosen

    def add(self, index: int, predicted: np.ndarray) -> None:
        """Keep the label map (H, W) uint8 predicted for an image."""
        if not (self.save_dir or self.keep):
            return
        png = label_png(predicted, self.colours)
        if self.save_dir:
            write_atomic(Path(self.save_dir) / f"{self.names[index]}.png", png, parents=True)
        if self.keep:
            self.pngs[index] = png

    def gather(self, group: Group, chosen: list[int]) -> dict[int, np.ndarray]:
        """Collect the label maps of the chosen images from all ranks: {index: (H, W) uint8}. Collective."""
        shares = group.gather({index: self.pngs[index] for index in chosen if index in self.pngs})
        pngs = {index: png for share in shares for index, png in share.items()}
        return {index: np.array(Image.open(io.BytesIO(pngs[index]))) for index in chosen}
