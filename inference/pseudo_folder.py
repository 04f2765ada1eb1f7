"""What pseudo.py does with a data set, on all ranks.

Each function that takes a group is collective and may raise Stopped.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from data.dataset import SegmentationDataset
from data.histogram import count_values
from data.images import label_png
from data.sampler import EvalBatches
from distributed import rank_checks
from distributed.group import Group
from flags import Config
from flags.programs import PseudoFlags
from flags.shared import LaunchFlags
from inference.predictor import Predictor, Step, each_batch
from inference.pseudo_labels import Stroked, make_label, predict, read_stroked
from support.errors import UserError
from support.files import sha256, write_atomic
from support.labels import IGNORE
from support.processes import ThreadPool
from training.data import find_files, make_loader, reading_options

NUM_THREADS = 4  # of each rank: make and compress labels


def find_scribbles(cfg: Config, split: str, train_path: str) -> SegmentationDataset:
    """Return the data set of a split's images, with their scribbles as "label".

    train_path: folder of the scribbles; "": the one in `cfg` if it may hold scribbles, else that of VOC's layout.
    """
    if cfg.dataset.startswith(("Folder", "Scribble")):  # with Dense, cfg.train_path names dense masks
        train_path = train_path or cfg.train_path
    layout = "Folder" if cfg.dataset == "Folder" else "ScribbleOnly"
    if layout == "Folder" and not train_path:
        problem = "--train_path is not set: --dataset Folder needs the folder of the scribbles"
        raise UserError(f"{problem}, and a data set in VOC's layout needs --dataset ScribbleOnly")
    return SegmentationDataset(
        find_files(cfg, layout, split, {"label": train_path}), cfg.numclasses, **reading_options(cfg)
    )


def map_files(work: Callable[[Path], Any], files: list[Path], group: Group, title: str) -> list[Any]:
    """Return work(file) of each file on every rank. title: of the progress bar."""
    results = group.share_work(lambda file: None if group.stop else work(file), files, title)
    group.raise_if_stopped()
    return results


def digests(dataset: SegmentationDataset, group: Group) -> dict[str, str]:
    """Return digests of the names, the images and the scribbles: if one changes, so do the labels."""
    result = {"images": rank_checks.digest(dataset.listing)}
    for name, kind in {"pixels": "image", "scribbles": "label"}.items():
        if kind not in dataset.folders:
            continue
        contents = map_files(sha256, [files[kind] for files in dataset.files], group, f"reading {name}")
        result[name] = rank_checks.digest(list(map(str, contents)))
    return result


def check_strokes(dataset: SegmentationDataset, group: Group) -> None:
    """Raise UserError if no image has a stroke."""
    count = partial(count_values, num_classes=dataset.num_classes)
    rows = map_files(count, [files["label"] for files in dataset.files], group, "strokes")
    if all(row.keys() <= {IGNORE} for row in rows):
        raise UserError(f"{dataset.folders['label']}: no image has a stroke: draw some, or set --train_path")


def label_images(
    dataset: SegmentationDataset,
    labels: list[Path],
    colours: np.ndarray,
    predictor: Predictor,
    group: Group,
    cfg: Config,
    flags: PseudoFlags,
) -> None:
    """Write the pseudo-labels that are missing.

    labels: the path of each image's label. colours: the PNGs' palette, (256, 3) uint8. flags: the loader's.
    """
    writes: deque[Future] = deque()

    def write(item: Stroked, probs: Tensor) -> None:
        if not labels[item.position].is_file():
            label = make_label(item, probs, cfg.background_class)
            write_atomic(labels[item.position], label_png(label, colours), parents=True)

    def label(batch: list[Stroked], probs: Tensor) -> None:
        while writes:  # of the batch before, made while this one was predicted
            writes.popleft().result()
        writes.extend(pool.submit(write, *pair) for pair in zip(batch, probs, strict=True))

    with ThreadPool(NUM_THREADS) as pool:
        predict_images(dataset, predictor, group, flags, label, lambda index: not labels[index].is_file())
    for done in writes:
        done.result()
    group.barrier()  # each rank reads labels that others have written


def predict_images(
    dataset: SegmentationDataset,
    predictor: Predictor,
    group: Group,
    flags: LaunchFlags,
    use: Callable[[list[Stroked], Tensor], object],
    is_pending: Callable[[int], bool] = lambda index: True,
) -> None:
    """Call use(images, their probabilities on the grid (B, C, h, w) in CPU memory) with each batch of this rank.

    flags: the loader's. is_pending: whether an image, by its index, is needed.
    """
    # Batches are those of all images, and redone whole: a model's result may depend on the batch's size.
    sizes = [size or (0, 0) for size in group.share_work(dataset.image_size, range(len(dataset)))]
    batches = EvalBatches(sizes, batch_size=predictor.images_at_once, rank=group.rank, world_size=group.world_size)
    batches.keep(is_pending)
    read = partial(read_stroked, dataset)
    loader = make_loader(range(len(dataset)), flags, group, batch_sampler=batches, collate_fn=read)

    def run(batch: list[Stroked], step: Step) -> None:
        use(batch, predict(batch, predictor, dataset.num_classes, group.device, step).cpu())

    each_batch(predictor, loader, group, run)


def share_labelled(labels: list[Path], num_classes: int, group: Group) -> float:
    """Return the share of all pixels that these pseudo-labels label."""
    rows = map_files(partial(count_values, num_classes=num_classes), labels, group, "counting")
    pixels = sum(sum(row.values()) for row in rows)
    return (pixels - sum(row.get(IGNORE, 0) for row in rows)) / pixels
