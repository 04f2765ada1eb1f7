"""The class weights of a run: --class_weights as numbers."""

import logging
import math
from functools import partial

import numpy as np
import torch

from build import active_terms
from config import Config
from config.losses import parse_loss, read_class_weights
from data import histogram
from data.dataset import SegmentationDataset
from distributed.checks import digest
from distributed.group import Group
from errors import UserError
from losses.label_losses import PIXEL_LOSSES
from pseudo_labels.walker import class_areas
from runs.log import progress_bar

log = logging.getLogger("segtrain")

COUNTED = ("balanced", "areas")  # values of --class_weights that are counted at the start
AREA_IMAGES = 512  # training images that --class_weights areas looks at, evenly spaced over the list


def get_class_weights(
    cfg: Config, group: Group, train_set: SegmentationDataset, saved: dict | None = None
) -> list[float] | None:
    """Return the class weights of --class_weights, equal on all ranks, or None if unweighted. Collective.

    For --class_weights balanced and areas, each rank counts a share of the labels. saved: content of the resumed
    checkpoint, or None. Its class weights are used again if the training list, label folder and classes are unchanged.
    """
    if cfg.class_weights == "none":
        return None
    if "seg" not in active_terms(cfg) or not set(parse_loss(cfg.loss)) & set(PIXEL_LOSSES):
        log.warning(f"--class_weights {cfg.class_weights} is not used: no loss is ce, focal or ohem")
        return None
    counted = _saved_class_weights(cfg, train_set, saved) if cfg.class_weights in COUNTED else None
    weights = counted or read_class_weights(cfg.class_weights, cfg.numclasses)
    if weights is None and cfg.class_weights == "areas":
        weights = area_weights(cfg, group, train_set)
    elif weights is None:
        own = [files["label"] for files in train_set.files[group.rank :: group.world_size]]
        bar = partial(progress_bar, total=len(own), title="counting labels", enabled=group.is_main)
        counts = torch.from_numpy(histogram.count_labels(own, cfg.numclasses, bar, train_set.label_map))
        weights = histogram.class_weights(group.sum(counts).numpy()).tolist()
    weights = group.broadcast(weights)  # a file may differ between machines
    values = ", ".join(f"{number}: {weight:.4g}" for number, weight in enumerate(weights))
    source = ", from the checkpoint" if counted else ""
    log.info(f"class weights (--class_weights {cfg.class_weights}{source}): {values}")
    return weights


def area_weights(cfg: Config, group: Group, train_set: SegmentationDataset) -> list[float]:
    """Return weights that make the strokes count as if each class had strokes in proportion to its area. Collective.

    Strokes cover a larger share of small objects than of large areas, so a model trained on them predicts small objects
    too often. The weight of a class is its share of the area, estimated by spreading the strokes with a random walk,
    over its share of the stroke pixels (importance weights for label shift, arXiv:1802.03916). A class without a stroke
    has weight 1. Raises UserError if no image has strokes of two classes.
    """
    chosen = np.linspace(0, len(train_set) - 1, min(len(train_set), AREA_IMAGES)).round().astype(int).tolist()

    def count(index: int) -> np.ndarray:
        maps = train_set.read(index)
        return class_areas(cfg.display(maps["image"]), maps["label"], cfg.numclasses)

    own = math.ceil(len(chosen) / group.world_size)
    bar = partial(progress_bar, total=own, title="spreading strokes", unit="image", enabled=group.is_main)
    counts = [item for item in group.map(count, chosen, bar) if item is not None]
    areas, strokes = np.sum(counts, axis=0)
    if not strokes.any():
        raise UserError(
            f"--class_weights areas: no image has strokes of two classes, of {len(counts)} training images: drop it"
        )
    shares = areas / areas.sum(), strokes / strokes.sum()
    return np.divide(*shares, out=np.ones(cfg.numclasses), where=strokes > 0).tolist()


def _saved_class_weights(cfg: Config, train_set: SegmentationDataset, saved: dict | None) -> list[float] | None:
    """Return the checkpoint's class weights if its training list, labels and classes are unchanged, else None."""
    flags = ("class_weights", "numclasses", "dataset", "train_path")
    if saved is None or any(saved["config"].get(name) != getattr(cfg, name) for name in flags):
        return None
    return saved.get("class_weights") if saved["listing"] == digest(train_set.listing) else None
