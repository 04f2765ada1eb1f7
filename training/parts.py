"""Build what trains a model, from the flags: the losses, the optimizer, and the state of a run."""

import logging

from torch import nn
from torch.optim import Optimizer

import models
from data.dataset import SegmentationDataset
from distributed.checks import digest
from distributed.group import Group
from distributed.precision import LossScaler
from flags import Config, changes
from losses.criterion import Criterion
from support.errors import UserError
from training.average import WeightAverage
from training.model import active_terms
from training.optimizers import make_optimizer, parameter_groups
from training.schedule import Schedule
from training.schema import Checkpoint
from training.state import TrainState

log = logging.getLogger("segtrain")


def get_criterion(
    cfg: Config, group: Group, raw_model: models.Segmenter, class_weights: list[float] | None = None
) -> Criterion:
    """Return the Criterion with the run's losses. Raises UserError if none tells the head which class is where."""
    weights = active_terms(cfg)
    if not set(weights) - {"lorm", "crf"}:
        raise UserError(
            f"--dataset {cfg.dataset} with these --l_* weights leaves no loss to train the head on: raise --l_seg or "
            "--l_pseudo"
        )
    rises = "; the weight of crf rises from 0 in the first half of the run" if "crf" in weights else ""
    log.info(f"losses: {' + '.join(f'{weight:g} {term}' for term, weight in weights.items())}{rises}")
    return Criterion(
        weights,
        label_smooth=cfg.label_smooth,
        class_weights=class_weights,
        lorm_terms=0 if cfg.lorm_scope == "all" else raw_model.backbone.channels[-1],
    )


def get_optimizer(cfg: Config, raw_model: models.Segmenter, group: Group, lr: float) -> Optimizer:
    """Return --optimizer over the trained parameters."""
    groups = parameter_groups(
        raw_model,
        weight_decay=cfg.wdecay,
        decay_norm_bias=cfg.decay_norm_bias,
        head_lr_factor=cfg.head_lr_factor,
    )
    factors = [part["lr_factor"] for part in groups]
    rates = f"{len(groups)} parameter group(s), lr x {min(factors):.3g} to x {max(factors):.3g}"
    log.log(logging.INFO if len(groups) > 1 else logging.DEBUG, f"optimizer: {cfg.optimizer}, {rates}")
    options = {"momentum": cfg.momentum} if cfg.optimizer == "sgd" else {"betas": cfg.betas}
    return make_optimizer(cfg.optimizer, groups, fused=group.device.type == "cuda", lr=lr, **options)


def get_state(
    cfg: Config,
    group: Group,
    raw_model: nn.Module,
    model: nn.Module,
    optimizer: Optimizer,
    schedule: Schedule,
    train_set: SegmentationDataset,
    resumed: Checkpoint | None = None,
) -> TrainState:
    """Return the TrainState of a new run, or of the Checkpoint that the run goes on from.

    Raises UserError if the checkpoint does not fit the model, or if --seed or the list has changed in mid-epoch.
    """
    scaler = LossScaler(group.device, enabled=cfg.amp == "fp16")
    ema = WeightAverage(raw_model, cfg.ema) if cfg.ema else None
    state = TrainState(raw_model, model, optimizer, scaler, ema, origin=schedule.origin)
    state.listing, state.clip_grad = digest(train_set.listing), cfg.clip_grad
    if resumed is None:
        return state
    changed = ["training list"] if resumed.listing != state.listing else []
    changed += [f"--{name}" for name in ("seed", "repeat") if resumed.config[name] != getattr(cfg, name)]
    if resumed.samples and changed and not cfg.reset_data_offset:
        raise UserError(
            f"--resume {cfg.resume}: the {changed[0]} has changed in the middle of an epoch: restore it, resume a "
            "checkpoint from between two epochs, or start a new run from these weights with --reset_data_offset"
        )
    if resumed.samples > len(train_set) * cfg.repeat:
        raise UserError(f"--resume {cfg.resume}: {resumed.samples} samples of the epoch are done, more than it has")
    log.info(f"flags changed since the checkpoint: {changes(resumed.config, cfg) or 'none'}")
    state.restore(resumed, group, optimizer=not cfg.reset_optimizer, position=not cfg.reset_data_offset)
    return state
