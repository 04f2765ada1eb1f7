"""Build what train.py trains from its flags: the model, the losses, the optimizer, and the state of a run."""

import dataclasses
import logging
import math
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

import config
import models
from config import Config
from config.losses import parse_loss
from data.dataset import SegmentationDataset
from data.loader import EvalLoader
from distributed.batch_norm import SyncBatchNorm, synchronize
from distributed.checks import digest
from distributed.group import Group
from errors import UserError
from image_stats import colour_scale
from labels import MAPS
from losses.criterion import NEEDS, TERMS, Criterion
from losses.sparse_losses import SPARSE_LOSSES
from models import pretrained
from models.amp import LossScaler
from models.average import WeightAverage
from models.compiled import compile_blocks
from models.norm import BATCH_NORMS
from models.optimizers import make_optimizer
from models.parameter_groups import parameter_groups
from models.pretrained import StartWeights
from models.teacher import Teacher
from runs import checkpoint
from runs.state import TrainState
from runs.summary import Summary, summarize
from runs.validation_memory import measure_validation
from utils import resolve_amp

log = logging.getLogger("segtrain")


def get_start(cfg: Config, group: Group, saved: dict | None) -> tuple[Config, StartWeights | None]:
    """Return the flags, with amp and stride_in_1x1 resolved, and the start weights (rank 0 only, else None).

    --amp auto becomes a precision; stride_in_1x1 is set as the weights need. A run that resumes the checkpoint content
    `saved` keeps its values and has no start weights: None. Raises UserError if the start weights cannot be read or
    downloaded. Collective.
    """
    cfg = dataclasses.replace(cfg, amp=resolve_amp(cfg.amp, group, saved))
    if saved is not None:
        stride_in_1x1 = saved["config"].get("stride_in_1x1", False)
        if stride_in_1x1 != cfg.stride_in_1x1:
            log.info(f"--stride_in_1x1 is {'on' if stride_in_1x1 else 'off'}, as in the checkpoint")
        return dataclasses.replace(cfg, stride_in_1x1=stride_in_1x1), None
    if cfg.freeze_backbone and cfg.pretrained == "none":
        with torch.device("meta"):
            _build(cfg)  # refuses a number of parts that the backbone does not have
        log.warning(f"--freeze_backbone {cfg.freeze_backbone} with --pretrained none: frozen weights stay random")
    read = partial(_read_start_weights, cfg)
    start, needed = group.on_main(read, f"loading --pretrained {cfg.pretrained}"), False
    if start is not None:
        path = f"--pretrained {start.source}"
        needed = pretrained.needs_stride_in_1x1(start.state_dict, path, cfg.model_type) and cfg.layers >= 50
    # Only rank 0 reads the file, but every rank builds the model.
    if group.broadcast(needed) and not cfg.stride_in_1x1:
        log.info(pretrained.STRIDE_IS_SET.format(path=f"--pretrained {cfg.pretrained}"))
        cfg = dataclasses.replace(cfg, stride_in_1x1=True)
    return cfg, start


def _read_start_weights(cfg: Config) -> StartWeights:
    if cfg.backbone == models.RESNET:
        return pretrained.read_start_weights(cfg.pretrained, cfg.layers, checkpoint.read)
    from models.timm_weights import read_timm_weights

    return read_timm_weights(_build(cfg).backbone, cfg.pretrained, checkpoint.read)


def get_model(cfg: Config, group: Group, start: StartWeights | None = None) -> tuple[models.Segmenter, nn.Module]:
    """Return (model on this process's device, module to train: the model's DDP wrapper, or the model without a group).

    start: start weights, on rank 0 only; the wrapper broadcasts them. Raises UserError if none of the weights fits.
    """
    torch.manual_seed(cfg.seed)
    raw_model = _build(cfg)
    if start is not None:
        line = pretrained.load_start_weights(raw_model, start, cfg.layers)
        usual = cfg.pretrained in ("none", "imagenet", "imagenet_v1")
        log.log(logging.DEBUG if usual else logging.INFO, line)
    synchronized = cfg.sync_bn == "on" or (cfg.sync_bn == "auto" and group.device.type == "cuda")
    if synchronized and group.world_size > 1 and not cfg.freeze_bn:
        synchronize(raw_model)
    # Images arrive as (B, H, W, 3), which is channels-last order; convolutions are faster in it too.
    raw_model = raw_model.to(group.device).to(memory_format=torch.channels_last)
    if cfg.grad_checkpointing and not raw_model.backbone.blocks():
        log.warning(f"--grad_checkpointing saves no memory: {cfg.backbone} has no sequence of blocks to recompute")
    if cfg.compile:
        compile_blocks(raw_model, eager=(SyncBatchNorm,))
    return raw_model, group.wrap(raw_model, static_graph=cfg.static_graph, find_unused=cfg.find_unused_parameters)


def _build(cfg: Config) -> models.Segmenter:
    model = models.build(
        cfg.model_type,
        **cfg.architecture,
        head_init=cfg.head_init,
        freeze_bn=cfg.freeze_bn,
        freeze_backbone=cfg.freeze_backbone,
        grad_checkpointing=cfg.grad_checkpointing,
        lorm_scope=cfg.lorm_scope,
        background=cfg.background_class,
    )
    if cfg.stats is not None:
        model.set_images(getattr(torch, cfg.stats.dtype), cfg.stats.mean, cfg.stats.std)
    models.freeze_unused(model)
    if model.lorm is not None and "lorm" not in active_terms(cfg):
        model.lorm.requires_grad_(False)  # DDP waits for the gradient of every parameter that requires one
    return model


def active_terms(cfg: Config) -> dict[str, float]:
    """Return {term: weight} of the losses with a weight above 0 and label maps in --dataset.

    "lorm" also needs a model with LoRM.
    """
    has_lorm = models.MODELS[cfg.model_type].has_lorm
    return {
        term: weight
        for term in TERMS
        if (weight := getattr(cfg, f"l_{term}")) > 0
        and NEEDS[term] in MAPS[cfg.dataset]
        and (term != "lorm" or has_lorm)
    }


def get_criterion(
    cfg: Config, group: Group, raw_model: models.Segmenter, class_weights: list[float] | None = None
) -> Criterion:
    """Return the Criterion with the run's losses. Raises UserError if no loss trains the head."""
    weights = active_terms(cfg)
    weights |= {term: weight for term in SPARSE_LOSSES if (weight := getattr(cfg, f"l_{term}")) > 0}
    off = [term for term in TERMS if term not in weights]
    if not set(weights) - {"lorm", *SPARSE_LOSSES}:  # no other tells the head which class is where
        raise UserError(
            f"--dataset {cfg.dataset} with these --l_* weights leaves no loss to train on: raise one of its weights"
        )
    if "seg" in weights:
        l_seg = weights.pop("seg")
        weights = {name: l_seg * factor for name, factor in parse_loss(cfg.loss).items()} | weights
    log.info(f"losses: {' + '.join(f'{weight:g} {term}' for term, weight in weights.items())}")
    if off:
        log.debug(f"losses that --dataset {cfg.dataset}, the model or a weight of 0 turns off: {', '.join(off)}")
    return Criterion(
        weights,
        cfg.label_smooth,
        lorm_terms=raw_model.lorm_terms,
        sum_lorm_terms=lambda count: group.sum(count) * cfg.accum_steps,
        accuracy=cfg.report_training_batch_acc,
        colour_scale=colour_scale(cfg.stats),
        class_weights=class_weights,
        focal_gamma=cfg.focal_gamma,
        ohem_fraction=cfg.ohem_fraction,
    )


def get_optimizer(cfg: Config, raw_model: models.Segmenter, group: Group, lr: float) -> Optimizer:
    """Return --optimizer over the trained parameters; with --zero1 its state is sharded over the processes."""
    groups = parameter_groups(
        raw_model,
        weight_decay=cfg.wdecay,
        decay_norm_bias=cfg.decay_norm_bias,
        layer_decay=cfg.layer_decay,
        head_lr_factor=cfg.head_lr_factor,
    )
    factors = [part["lr_factor"] for part in groups]
    rates = f"{len(groups)} parameter group(s), lr x {min(factors):.3g} to x {max(factors):.3g}"
    log.log(logging.INFO if len(groups) > 1 else logging.DEBUG, f"optimizer: {cfg.optimizer}, {rates}")
    options = {"momentum": cfg.momentum} if cfg.optimizer == "sgd" else {"betas": cfg.betas}
    on_cuda, sharded = group.device.type == "cuda", bool(cfg.zero1 and group.backend)
    return make_optimizer(cfg.optimizer, groups, fused=on_cuda, sharded=sharded, lr=lr, **options)


def get_state(
    cfg: Config,
    group: Group,
    raw_model: nn.Module,
    model: nn.Module,
    optimizer: Optimizer,
    saved: dict | None,
    origin: dict[str, float],
    train_set: SegmentationDataset,
    class_weights: list[float] | None,
) -> TrainState:
    """Return the TrainState of a new run, or of the checkpoint content `saved`. origin: LearningRate.origin.

    Raises UserError if the content does not fit the model, or if --seed or the list has changed in mid-epoch.
    """
    scaler = LossScaler(group.device, enabled=cfg.amp == "fp16")
    ema = WeightAverage(raw_model, cfg.ema) if cfg.ema else None
    state = TrainState(raw_model, model, optimizer, scaler, ema, origin=origin, class_weights=class_weights)
    state.listing, state.clip_grad = digest(train_set.listing), cfg.clip_grad
    if cfg.l_consistency and ema:
        how = {"threshold": cfg.consistency_threshold, "warmup_epochs": cfg.consistency_warmup}
        state.teacher = Teacher(ema, cfg.amp, num_images=len(train_set) * cfg.repeat, **how)
    if saved is None:
        return state
    before = {"training list": saved["listing"], "--seed": saved["config"]["seed"]}
    before["--repeat"] = saved["config"].get("repeat", 1)
    now = {"training list": state.listing, "--seed": cfg.seed, "--repeat": cfg.repeat}
    changed = [name for name in now if now[name] != before[name]]
    if saved["samples"] and changed and not cfg.reset_data_offset:
        raise UserError(
            f"--resume {cfg.resume}: the {changed[0]} has changed in the middle of an epoch: restore it, resume a "
            "checkpoint from between two epochs, or start a new run from these weights with --reset_data_offset"
        )
    log.info(f"flags changed since the checkpoint: {config.changes(saved['config'], cfg) or 'none'}")
    state.restore(saved, group, optimizer=not cfg.reset_optimizer, position=not cfg.reset_data_offset)
    return state


def get_summary(cfg: Config, group: Group, criterion: Criterion, val_loader: EvalLoader) -> Summary:
    """Return the Summary of the model and of one process that trains with these losses, counted on the meta device.

    Raises UserError if batch norm has one value only.
    """
    with torch.device("meta"):
        model = _build(cfg)
    trained = not cfg.freeze_bn and any(isinstance(part, BATCH_NORMS) for part in model.modules())
    if trained and cfg.batchsize == math.prod(model.backbone.feature_size(cfg.crop_size, cfg.crop_size)) == 1:
        raise UserError(
            f"--batchsize 1 with --crop_size {cfg.crop_size}: the deepest features have one position, which batch norm "
            "cannot train on: raise either"
        )
    return summarize(
        model,
        criterion,
        batchsize=cfg.batchsize,
        crop_size=cfg.crop_size,
        amp=cfg.amp,
        ema=cfg.ema > 0,
        optimizer_states=2 if cfg.optimizer == "adamw" else int(cfg.momentum > 0),
        momentum_shards=group.world_size if cfg.zero1 else 1,
        validation=measure_validation(model, cfg, val_loader.batch_sampler.sizes, group.device),
    )
