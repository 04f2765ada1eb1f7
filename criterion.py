"""Which losses a run has: from --dataset, --loss, the --l_* weights and --class_weights."""

from collections.abc import Callable
from functools import partial

import torch
from torch.utils.data import DataLoader

import models
from config import Config
from data import histogram
from distributed.checks import digest
from distributed.group import Group
from errors import UserError
from labels import MAPS
from losses.criterion import NEEDS, TERMS, Criterion
from losses.label_losses import PIXEL_LOSSES, parse_loss
from runs.run import Run


def active_terms(cfg: Config) -> dict[str, float]:
    """The losses that --dataset has maps for and whose weight is not 0: {term: weight}."""
    has_lorm = models.MODELS[cfg.model_type][1]
    return {
        term: weight
        for term in TERMS
        if (weight := getattr(cfg, f"l_{term}")) > 0
        and NEEDS[term] in MAPS[cfg.dataset]
        and (term != "lorm" or has_lorm)
    }


def get_criterion(
    cfg: Config, say: Callable[[str], None] = print, class_weights: list[float] | None = None
) -> Criterion:
    """The losses of the run, and a line on which these are. Raises UserError where none is left."""
    active = active_terms(cfg)
    off = [term for term in TERMS if term not in active]
    if not set(active) - {"lorm"}:  # LoRM alone would leave the head without a gradient
        raise UserError(f"--dataset {cfg.dataset} with these --l_* weights leaves no loss to train on")
    if "seg" in active:
        l_seg = active.pop("seg")
        active = {name: l_seg * factor for name, factor in parse_loss(cfg.loss).items()} | active
    said = ", ".join(f"{weight:g} * {term}" for term, weight in active.items())
    say(
        f"losses: {said}"
        + (f" (off for --dataset {cfg.dataset}, this model or weight 0: {', '.join(off)})" if off else "")
    )
    return Criterion(
        active, cfg.label_smooth, accuracy=cfg.report_training_batch_acc, class_weights=class_weights,
        focal_gamma=cfg.focal_gamma, ohem_fraction=cfg.ohem_fraction,
    )  # fmt: skip


def get_class_weights(
    cfg: Config, group: Group, loader: DataLoader, run: Run, saved: dict | None = None
) -> list[float] | None:
    """--class_weights as numbers, the same on all ranks, or None: each class has weight 1. Collective.

    loader: of the training list. For --class_weights balanced, each rank counts a share of its labels. saved: content
    of the resumed checkpoint, whose weights are used again if list, labels and classes are the same.
    """
    if cfg.class_weights == "none":
        return None
    if "seg" not in active_terms(cfg) or not set(parse_loss(cfg.loss)) & set(PIXEL_LOSSES):
        run.info(
            f"--class_weights {cfg.class_weights}: not used, as --loss has no ce, focal or ohem or there is no seg"
        )
        return None
    counted = _counted_before(cfg, loader, saved) if cfg.class_weights == "balanced" else None
    weights = counted or _class_weights(cfg, group, loader, run)
    weights = group.broadcast(weights)  # a file may differ from machine to machine
    values = ", ".join(f"{number}: {weight:.4g}" for number, weight in enumerate(weights))
    source = ", from the checkpoint" if counted else ""
    run.info(f"class weights (--class_weights {cfg.class_weights}{source}): {values}")
    return weights


def _class_weights(cfg: Config, group: Group, loader: DataLoader, run: Run) -> list[float]:
    weights = histogram.given_weights(cfg.class_weights, cfg.numclasses)
    if weights is None:
        own = [files["label"] for files in loader.dataset.files[group.rank :: group.world_size]]  # type: ignore[attr-defined]
        counts = histogram.count_labels(own, cfg.numclasses, partial(run.bar, total=len(own), title="counting labels"))
        weights = histogram.class_weights(group.sum(torch.from_numpy(counts)).numpy())
    return weights.tolist()


def _counted_before(cfg: Config, loader: DataLoader, saved: dict | None) -> list[float] | None:
    """The checkpoint's class weights if its training list, labels and classes are the same; else None."""
    flags = ("class_weights", "numclasses", "dataset", "train_path")
    if saved is None or any(saved["config"].get(name) != getattr(cfg, name) for name in flags):
        return None
    same_list = saved["listing"] == digest(loader.dataset.listing)  # type: ignore[attr-defined]
    return saved.get("class_weights") if same_list else None
