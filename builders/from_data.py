"""Values that a run takes from its training data: the recipe's flags, and the class weights."""

import dataclasses
import logging
from functools import partial

import torch

from builders.loaders import find_training_files
from builders.model import active_terms
from config import Config, as_dict
from config.losses import read_class_weights
from config.recipe import CPU, CUDA, RECIPE_FLAGS, Choice, Facts, Recipe
from data import histogram
from data.classes import FOLDERS, read_classes, read_preset
from data.dataset import SegmentationDataset
from data.images import image_size
from data.images.resize import large_images
from data.layout import pair_files
from distributed.group import Group
from support.errors import UserError
from support.progress import progress_bar

NUM_SIZES = 100  # images whose sizes are read for the recipe

log = logging.getLogger("segtrain")


def read_texts(cfg: Config, saved: dict | None) -> Config:
    """Return the flags with the texts of --classes and --label_map, which checkpoints hold.

    A run that resumes the checkpoint content `saved` takes a file as it is now, as it describes the labels that are now
    there, and the checkpoint's text if the file is gone. Raises UserError if a file cannot be read.
    """
    texts: dict[str, str] = {}
    for flag in FOLDERS:
        chosen = getattr(cfg, flag)
        kept = saved["texts"].get(flag) if saved and saved["config"].get(flag) == chosen else None
        try:
            texts[flag] = read_preset(flag, chosen)
        except UserError as error:
            if kept is None:
                raise
            log.warning(f"{error}; using its text in the checkpoint")
        if kept != texts.setdefault(flag, kept or "") and kept is not None:
            log.warning(f"--{flag} {chosen}: has changed since the checkpoint; from here on the file is used")
    return dataclasses.replace(cfg, texts=texts)


def get_recipe(cfg: Config, group: Group, saved: dict | None) -> Config:
    """Return the flags with the recipe's values for those that are not set. Collective.

    A run that resumes the checkpoint content `saved` keeps the checkpoint's values. Raises UserError if folders, lists
    or files of the training data are missing.
    """
    given = RECIPE_FLAGS if cfg.given is None else cfg.given

    def choose() -> dict[str, Choice]:
        if saved is None:
            return Recipe(_read_facts(cfg, group), as_dict(cfg), given).choices
        names = RECIPE_FLAGS - given - ({"max_steps"} if "epochs" in given else set())
        kept = {name: value for name, value in saved["config"].items() if name in names}
        return {name: Choice(value, "as before") for name, value in kept.items() if value != getattr(cfg, name)}

    choices = group.broadcast(group.on_main(choose, "choosing flags") if RECIPE_FLAGS - given else {})
    if choices:
        text = ", ".join(f"--{name} {value} ({reason})" for name, (value, reason) in choices.items())
        log.info(f"chosen from the {'data and the device' if saved is None else 'checkpoint'}: {text}")
    return dataclasses.replace(cfg, **{name: choice.value for name, choice in choices.items()})


def _read_facts(cfg: Config, group: Group) -> Facts:
    _, files = pair_files(find_training_files(cfg)[0])
    some = [files[number * len(files) // NUM_SIZES]["image"] for number in range(NUM_SIZES)]
    sizes = [image_size(path) for path in dict.fromkeys(some)]
    device, memory = CPU, 0.0
    if group.device.type == "cuda":
        device, memory = CUDA, torch.cuda.get_device_properties(group.device).total_memory / 2**30
    large, _ = large_images(sizes, cfg.crop_size if cfg.given and "crop_size" in cfg.given else device.crop_size)
    first_class = read_classes(cfg.classes, cfg.numclasses, cfg.texts.get("classes")).names[0] if cfg.classes else ""
    return Facts(cfg.dataset, len(files), sizes, device, memory, group.world_size, large, first_class)


def get_class_weights(cfg: Config, group: Group, train_set: SegmentationDataset) -> list[float] | None:
    """Return the class weights of --class_weights, equal on all ranks, or None if unweighted. Collective.

    For --class_weights balanced, each rank counts a share of the labels.
    """
    if cfg.class_weights == "none":
        return None
    if "seg" not in active_terms(cfg):
        log.warning(f"--class_weights {cfg.class_weights} is not used: no loss is ce")
        return None
    weights = read_class_weights(cfg.class_weights, cfg.numclasses)
    if weights is None:
        own = [files["label"] for files in train_set.files[group.rank :: group.world_size]]
        bar = partial(progress_bar, total=len(own), title="counting labels", unit="file", enabled=group.is_main)
        counts = torch.from_numpy(histogram.count_labels(own, cfg.numclasses, bar, train_set.label_map))
        weights = histogram.class_weights(group.sum(counts).numpy()).tolist()
    weights = group.broadcast(weights)  # a file may differ between machines
    values = ", ".join(f"{number}: {weight:.4g}" for number, weight in enumerate(weights))
    log.info(f"class weights (--class_weights {cfg.class_weights}): {values}")
    return weights
