"""Find the files that pseudo.py reads, and the folder where training looks for its labels."""

import math
from functools import partial
from pathlib import Path

from builders.loaders import find_files, find_masks
from config import Config
from data.dataset import SegmentationDataset
from data.layout import match_files
from distributed import checks
from distributed.group import Group
from runs.log import progress_bar
from support.errors import UserError
from support.files import sha256


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


def find_dense_masks(cfg: Config, split: str, scribbles: Path, *, must_exist: bool) -> tuple[Path, dict[str, Path]]:
    """Return the folder of the dense masks, which may be missing, and {name: path} of the masks of a split.

    There are no masks if the folder is `scribbles`, as where all labels of a data set are strokes. Raises UserError if
    another folder has none and must_exist.
    """
    found = find_masks(cfg, split)
    folder = found.folders["label"]
    if folder.resolve() == scribbles.resolve():
        return folder, {}
    masks = {name: files["label"][0] for name, files in match_files(found) if files["label"]}
    if must_exist and not masks:
        raise UserError(
            f"--val_path {folder}: has no dense mask of any image of {split}: name another folder, or drop it"
        )
    return folder, masks


def find_output(cfg: Config, split: str, output: str) -> Path:
    """Return the folder of the labels: --output, or the folder in it that --dataset Folder reads, as OUTPUT/train."""
    if cfg.dataset != "Folder":
        return Path(output)
    return find_files(cfg, "Folder", split, {"label": str(Path(output).absolute())}).folders["label"]


def digests(dataset: SegmentationDataset, group: Group) -> dict[str, str]:
    """Return digests of the names, the images and the scribbles: if one changes, so do the labels. Collective."""
    result, own = {"images": checks.digest(dataset.listing)}, math.ceil(len(dataset) / group.world_size)
    for name, kind in {"pixels": "image", "scribbles": "label"}.items():
        bar = partial(progress_bar, total=own, title=f"reading {name}", unit="file", enabled=group.is_main)
        contents = group.map(sha256, [files[kind] for files in dataset.files], bar)
        result[name] = checks.digest(list(map(str, contents)))
    return result
