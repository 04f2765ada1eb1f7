"""The class weights of a run: --class_weights as numbers."""

import logging
from functools import partial

import torch

from build import active_terms
from config import Config
from config.losses import parse_loss, read_class_weights
from data import histogram
from data.dataset import SegmentationDataset
from distributed.checks import digest
from distributed.group import Group
from losses.label_losses import PIXEL_LOSSES
from runs.log import progress_bar

log = logging.getLogger("segtrain")


def get_class_weights(
    cfg: Config, group: Group, train_set: SegmentationDataset, saved: dict | None = None
) -> list[float] | None:
    """Return the class weights of --class_weights, equal on all ranks, or None if unweighted. Collective.

    For --class_weights balanced, each rank counts a share of the labels. saved: content of the resumed checkpoint, or
    None. Its class weights are used again if the training list, label folder and classes are unchanged.
    """
    if cfg.class_weights == "none":
        return None
    if "seg" not in active_terms(cfg) or not set(parse_loss(cfg.loss)) & set(PIXEL_LOSSES):
        log.warning(f"--class_weights {cfg.class_weights} is not used: no loss is ce, focal or ohem")
        return None
    counted = _saved_class_weights(cfg, train_set, saved) if cfg.class_weights == "balanced" else None
    weights = counted or read_class_weights(cfg.class_weights, cfg.numclasses)
    if weights is None:
        own = [files["label"] for files in train_set.files[group.rank :: group.world_size]]
        bar = partial(progress_bar, total=len(own), title="counting labels", enabled=group.is_main)
        counts = torch.from_numpy(histogram.count_labels(own, cfg.numclasses, bar, train_set.label_map))
        weights = histogram.class_weights(group.sum(counts).numpy()).tolist()
    weights = group.broadcast(weights)  # a file may differ between machines
    values = ", ".join(f"{number}: {weight:.4g}" for number, weight in enumerate(weights))
    source = ", from the checkpoint" if counted else ""
    log.info(f"class weights (--class_weights {cfg.class_weights}{source}): {values}")
    return weights


def _saved_class_weights(cfg: Config, train_set: SegmentationDataset, saved: dict | None) -> list[float] | None:
    """Return the checkpoint's class weights if its training list, labels and classes are unchanged, else None."""
    flags = ("class_weights", "numclasses", "dataset", "train_path")
    if saved is None or any(saved["config"].get(name) != getattr(cfg, name) for name in flags):
        return None
    return saved.get("class_weights") if saved["listing"] == digest(train_set.listing) else None
