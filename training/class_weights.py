"""The class weights of --class_weights, which may come from the training labels."""

import logging
from functools import partial

import torch

from data import histogram
from data.dataset import SegmentationDataset
from distributed.group import Group
from flags import Config
from flags.losses import read_class_weights
from support.progress import progress_bar
from training.model import active_terms

log = logging.getLogger("segtrain")


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
