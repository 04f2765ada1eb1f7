"""Build the loaders of training and validation samples from the flags."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar, overload

import torch
from torch.utils.data import DataLoader, Dataset

import models
from builders.augmentation import get_transform
from config import Config
from config.shared import LaunchFlags
from data.dataset import SegmentationDataset, as_is
from data.distance import pseudo_distance, scribble_distance
from data.histogram import count_batch
from data.label_map import LabelMap, read_label_map
from data.layout import Split, find_split
from data.loader import EvalLoader, TrainLoader, loader_options
from data.sampler import EvalBatches, TrainSampler
from distributed.group import Group
from evaluation.windows import Windows
from losses.upsampling import find_points
from models.foreground import find_foreground
from support.errors import UserError
from support.labels import MAPS

# {distance map: (the map to compute it from, the function)}, used if no folder has the distance map.
COMPUTE = {"distance_s": ("label", scribble_distance), "distance_c": ("pseudo", pseudo_distance)}

Loader = TypeVar("Loader", bound=DataLoader)


@overload
def get_loader(cfg: Config, split: Literal["train"], group: Group) -> TrainLoader: ...
@overload
def get_loader(cfg: Config, split: Literal["val"], group: Group) -> EvalLoader: ...
def get_loader(cfg: Config, split: str, group: Group) -> TrainLoader | EvalLoader:
    """Return a DataLoader over this process's share of the training or validation split. split: "train" or "val".

    Raises UserError if folders, lists or files are missing, or if --long_side or --window is too large for images.
    """
    if split == "train":
        return get_train_loader(cfg, group)
    loader = get_eval_loader(cfg, cfg.val_split, group)
    for size in {*loader.batch_sampler.sizes} - {(0, 0)}:
        Windows.over(size, 1.0, **cfg.sizes)  # the first validation would find it late
    return loader


def find_training_files(cfg: Config) -> tuple[Split, dict[str, tuple[str, Callable]]]:
    """Return (the Split of the training files, {distance map without a folder: (source map, function)}).

    Raises UserError if folders or lists are missing.
    """
    folders = {"label": cfg.train_path, "pseudo": cfg.pseudo_path}
    folders |= {"distance_s": cfg.distancemap_s, "distance_c": cfg.distancemap_c}
    compute: dict[str, tuple[str, Callable]] = {
        name: (COMPUTE[name][0], partial(COMPUTE[name][1], background=cfg.background_class))
        for name in MAPS[cfg.dataset]
        if name in COMPUTE and not folders[name]
    }
    stored = {name: folders[name] for name in MAPS[cfg.dataset] if name not in compute}
    return find_files(cfg, cfg.dataset, cfg.train_split, stored), compute


def get_train_loader(cfg: Config, group: Group) -> TrainLoader:
    files, compute = find_training_files(cfg)
    extras: list[Callable] = [count_batch, *([find_points] if MAPS[cfg.dataset] == ("label",) else [])]
    if models.MODELS[cfg.model_type].has_lorm and "pseudo" in MAPS[cfg.dataset]:
        with torch.device("meta"):
            backbone = models.build(cfg.model_type, **cfg.architecture).backbone
        size = backbone.feature_size(cfg.crop_size, cfg.crop_size)
        extras.append(partial(find_foreground, size=size, background=cfg.background_class))
    options: dict = {"extras": extras, "seed": cfg.seed, "label_map": get_label_map(cfg)}
    dataset = SegmentationDataset(files, cfg.numclasses, transform=get_transform(cfg), compute=compute, **options)
    sampler = TrainSampler(
        len(dataset),
        batch_size=cfg.batchsize,
        accum_steps=cfg.accum_steps,
        seed=cfg.seed,
        rank=group.rank,
        world_size=group.world_size,
        repeat=cfg.repeat,
    )
    batches: dict = {"sampler": sampler, "batch_size": cfg.batchsize, "collate_fn": as_is}
    return make_loader(TrainLoader, dataset, cfg, group, **batches)


def get_eval_loader(cfg: Config, split: str, group: Group) -> EvalLoader:
    """Return a DataLoader over this process's share of the images and dense masks of a split. Collective.

    Raises UserError if files are missing, or if a list other than the training list has a name twice.
    """
    files = find_masks(cfg, split)
    dataset = SegmentationDataset(files, cfg.numclasses, label_map=get_label_map(cfg))
    name, number = Counter(dataset.names).most_common(1)[0]
    if number > 1 and split != cfg.train_split:
        raise UserError(f"{files.list_file}: lists {name} {number} times, and each would count: keep one of them")
    # Ranks that list different files are found later, by distributed.checks.check_setup.
    sizes = [size or (0, 0) for size in group.map(dataset.image_size, range(len(dataset)))]
    batch_size = 1 if cfg.window else cfg.val_batchsize  # the windows of one image fill a forward pass
    batches = EvalBatches(sizes, batch_size=batch_size, rank=group.rank, world_size=group.world_size)
    options: dict = {"batch_sampler": batches, "collate_fn": as_is}
    return make_loader(EvalLoader, dataset, cfg, group, workers=cfg.val_workers, **options)


def get_label_map(cfg: Config) -> LabelMap | None:
    return read_label_map(cfg.label_map, cfg.numclasses, cfg.texts.get("label_map"))


def find_masks(cfg: Config, split: str) -> Split:
    """Return the Split with the paths of a split's images and dense masks. Raises UserError if they are missing."""
    return find_files(cfg, "Folder" if cfg.dataset == "Folder" else "Dense", split, {"label": cfg.val_path})


def data_folders(cfg: Config) -> list[Path]:
    """Return the folders of images and labels that flags name, below --dataset_path."""
    names = [cfg.image_path, cfg.train_path, cfg.val_path] if cfg.dataset_path else []
    return [Path(cfg.dataset_path, name) for name in names if name not in ("", ".")]


def find_files(cfg: Config, dataset: str, split: str, maps: dict[str, str]) -> Split:
    """Return layout.find_split() of these arguments and the flags on --dataset_path."""
    names = ("list_path", "image_path", "image_suffix", "label_suffix")
    return find_split(Path(cfg.dataset_path), dataset, split, maps, **{name: getattr(cfg, name) for name in names})


def make_loader(
    kind: type[Loader], dataset: Dataset, flags: LaunchFlags, group: Group, *, workers: int = -1, **batches
) -> Loader:
    """Return a DataLoader of class `kind` with the loader processes that the flags ask for.

    workers: replaces --workers, unless it is -1. batches: keyword arguments such as sampler and batch_size.
    """
    options: dict = {"pin_memory": flags.pin_memory, "prefetch_factor": flags.prefetch_factor}
    workers = flags.workers if workers < 0 else workers
    return kind(dataset, **batches, **loader_options(workers, group.device, group.local_world_size, **options))
