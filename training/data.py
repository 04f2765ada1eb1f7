"""The files of a run's splits and the loaders over them, as the flags say."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from data import demo
from data.distance import pseudo_distance, scribble_distance
from data.histogram import count_values
from data.images.reader import ImageReader
from data.label_map import LabelMap, read_label_map
from data.layout import Split, find_split
from data.loader import Loader, loader_options
from data.transforms import CentreCrop, ColourJitter, OwnTransform, TrainTransform, load_transform
from distributed.group import Group
from flags import Config
from flags.shared import LaunchFlags
from support.labels import IGNORE, MAPS

DEMO_ROOT = Path("dataset/demo")

# {distance map: (the map to compute it from, the function)}, used if no folder has the distance map.
COMPUTE = {"distance_s": ("label", scribble_distance), "distance_c": ("pseudo", pseudo_distance)}


def prepare_demo_data(cfg: Config, group: Group) -> None:
    """Draw the demo data set if --dataset_path names it. One process per machine draws, the others wait."""
    if Path(cfg.dataset_path) == DEMO_ROOT:
        if group.local_rank == 0:
            demo.draw_dataset(DEMO_ROOT)
        group.barrier()


def find_training_files(cfg: Config) -> Split:
    """Return the Split of the training images and their label maps. Raises UserError if they are missing."""
    folders = {"label": cfg.train_path, "pseudo": cfg.pseudo_path}
    folders |= {"distance_s": cfg.distancemap_s, "distance_c": cfg.distancemap_c}
    computed = computed_maps(cfg)
    stored = {name: folders[name] for name in MAPS[cfg.dataset] if name not in computed}
    return find_files(cfg, cfg.dataset, cfg.train_split, stored)


def computed_maps(cfg: Config) -> dict[str, tuple[str, Callable]]:
    """Return {distance map without a folder: (source map, function)} of the maps that --dataset needs."""
    return {
        name: (COMPUTE[name][0], partial(COMPUTE[name][1], background=cfg.background_class))
        for name in MAPS[cfg.dataset]
        if name in COMPUTE and not getattr(cfg, f"distancemap_{name[-1]}")
    }


def find_masks(cfg: Config, split: str) -> Split:
    """Return the Split with the paths of a split's images and dense masks. Raises UserError if they are missing."""
    return find_files(cfg, "Folder" if cfg.dataset == "Folder" else "Dense", split, {"label": cfg.val_path})


def data_folders(cfg: Config) -> list[Path]:
    """Return the folders of images and labels that flags name, below --dataset_path."""
    names = [cfg.image_path, cfg.train_path, cfg.val_path] if cfg.dataset_path else []
    return [Path(cfg.dataset_path, name) for name in names if name not in ("", ".")]


def count_labels(
    paths: list[Path], group: Group, label_map: LabelMap | None, num_classes: int = IGNORE
) -> list[dict[int, int]]:
    """Return data.histogram.count_values() of each file on every rank. Each rank reads a share. Collective."""
    work = partial(count_values, label_map=label_map, num_classes=num_classes)
    return [counts or {} for counts in group.share_work(work, paths, "counting labels", "file")]


def find_files(cfg: Config, dataset: str, split: str, maps: dict[str, str]) -> Split:
    """Return layout.find_split() of these arguments and the flags on --dataset_path."""
    names = ("list_path", "image_path", "image_suffix", "label_suffix")
    return find_split(Path(cfg.dataset_path), dataset, split, maps, **{name: getattr(cfg, name) for name in names})


def get_transform(cfg: Config) -> TrainTransform | CentreCrop | OwnTransform:
    """Return the transform of training samples. Raises UserError if that of --transform cannot be imported."""
    transform = _train_transform(cfg) if cfg.augment else CentreCrop(cfg.crop_size, cfg.long_side)
    if not cfg.transform:
        return transform
    load_transform(cfg.transform)
    return OwnTransform(transform, cfg.transform, cfg.numclasses)


def _train_transform(cfg: Config) -> TrainTransform:
    strengths = {name: getattr(cfg, name) for name in ("brightness", "contrast", "saturation", "hue")}
    return TrainTransform(
        cfg.crop_size,
        scale=(cfg.scale[0], cfg.scale[1]),
        rotation=cfg.rotation,
        flip_horizontal=cfg.flip_horizontal,
        flip_vertical=cfg.flip_vertical,
        quarter_turns=cfg.quarter_turns,
        blur=cfg.blur,
        jitter=ColourJitter(**strengths) if any(strengths.values()) else None,
        long_side=cfg.long_side,
    )


def reading_options(cfg: Config) -> dict[str, Any]:
    """Return the keyword arguments of data.dataset.SegmentationDataset that say how files are read."""
    label_map = read_label_map(cfg.label_map, cfg.numclasses, cfg.texts.get("label_map"))
    return {"label_map": label_map, "reader": ImageReader(**cfg.reading)}


def make_loader(dataset: Any, flags: LaunchFlags, group: Group, *, workers: int = -1, **batches) -> Loader:
    """Return a Loader with the loader processes that the flags ask for.

    dataset: a Dataset, or a list. workers: replaces --workers, unless it is -1. batches: keyword arguments such as
    sampler and batch_size.
    """
    options: dict = {"pin_memory": flags.pin_memory, "prefetch_factor": flags.prefetch_factor}
    workers = flags.workers if workers < 0 else workers
    return Loader(dataset, **batches, **loader_options(workers, group.device, group.local_world_size, **options))
