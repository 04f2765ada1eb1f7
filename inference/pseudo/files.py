"""The files of pseudo.py: images and scribbles that it reads, and the folder of its labels."""

import math
from functools import partial
from pathlib import Path

import numpy as np

from data.dataset import SegmentationDataset
from data.images import label_png
from distributed import checks
from distributed.group import Group
from flags import Config
from support.errors import UserError
from support.files import sha256, write_atomic
from support.progress import progress_bar
from training.data import find_files


def find_scribbles(cfg: Config, split: str, train_path: str) -> SegmentationDataset:
    """Return the data set of a split's images, with their scribbles as "label".

    train_path: folder of the scribbles; "": the one in `cfg` if it may hold scribbles, else that of VOC's layout.
    """
    if cfg.dataset.startswith(("Folder", "Scribble")):  # with Dense, cfg.train_path names dense masks
        train_path = train_path or cfg.train_path
    layout = "Folder" if cfg.dataset == "Folder" else "ScribbleOnly"
    if layout == "Folder" and not train_path:
        raise UserError("--train_path is not set: --dataset Folder needs the folder of the scribbles")
    return SegmentationDataset(find_files(cfg, layout, split, {"label": train_path}), cfg.numclasses)


def digests(dataset: SegmentationDataset, group: Group) -> dict[str, str]:
    """Return digests of the names, the images and the scribbles: if one changes, so do the labels. Collective."""
    result, own = {"images": checks.digest(dataset.listing)}, math.ceil(len(dataset) / group.world_size)
    for name, kind in {"pixels": "image", "scribbles": "label"}.items():
        bar = partial(progress_bar, total=own, title=f"reading {name}", unit="file", enabled=group.is_main)
        contents = group.share_work(sha256, [files[kind] for files in dataset.files], bar)
        result[name] = checks.digest(list(map(str, contents)))
    return result


class PseudoFolder:
    """A folder with NAME.png for each image, and pseudo.json, the settings that the labels depend on.

    NAME may contain folders.
    output: --output, which with --dataset Folder has the labels in a folder for the split, as OUTPUT/train. colours:
    palette of the PNGs, (256, 3) uint8.
    """

    def __init__(self, cfg: Config, split: str, output: str, colours: np.ndarray):
        self.path, self.colours, self.ending = Path(output), colours, cfg.label_suffix
        if cfg.dataset == "Folder":
            self.path = find_files(cfg, "Folder", split, {"label": str(self.path.absolute())}).folders["label"]

    def label_path(self, name: str) -> Path:
        return self.path / f"{name}{self.ending}.png"

    def write_label(self, name: str, label: np.ndarray) -> None:
        """Write a pseudo-label, (H, W) uint8."""
        write_atomic(self.label_path(name), label_png(label, self.colours), parents=True)
