"""Build the model from the flags, with its start weights."""

import dataclasses
import logging
from functools import partial

import torch
from torch import nn

import models
from config import Config
from config.losses import loss_weights
from config.training import has_lorm
from distributed.group import Group
from losses.terms import TERMS
from models import pretrained
from models.compiled import compile_blocks
from models.layers.norm import synchronize
from models.pretrained import StartWeights
from optimization.amp import resolve as amp_of_device
from runs import checkpoint
from support.labels import MAPS

log = logging.getLogger("segtrain")


def resolve_amp(amp: str, group: Group, saved: dict | None = None) -> str:
    """Return "none", "bf16" or "fp16" for --amp, equal on all ranks. Collective.

    auto is the precision of the checkpoint content `saved`, if there is one, else bf16 if every rank has it natively.
    """
    values = group.gather(amp_of_device(amp, group.device))
    native = "none" if "none" in values else values[0]
    if amp == "auto" and saved is not None:
        kept = saved["config"]["amp"]
        if kept != native:
            log.info(f"--amp {kept}, as in the checkpoint, so that the run stays the same; auto would be {native}")
        return kept
    if len(set(values)) > 1:
        ranks = [rank for rank, value in enumerate(values) if value == "none"]
        log.info(f"--amp {amp}: none, because devices of rank(s) {ranks} have no native bf16")
    elif amp == "auto" and native == "none" and group.device.type == "cuda":
        log.warning("--amp none: this GPU has no bf16; --amp fp16 takes half of the memory, and about half of the time")
    if native == "fp16" and group.device.type == "cpu":
        log.warning("--amp fp16: a CPU emulates it, more than ten times as slow: use --amp bf16 or none")
    return native


def get_start(cfg: Config, group: Group, saved: dict | None) -> tuple[Config, StartWeights | None]:
    """Return the flags, with amp and stride_in_1x1 resolved, and the start weights (rank 0 only, else None).

    --amp auto becomes a precision; stride_in_1x1 is set as the weights need. A run that resumes the checkpoint content
    `saved` keeps its values and has no start weights: None. Raises UserError if the start weights cannot be read or
    downloaded. Collective.
    """
    cfg = dataclasses.replace(cfg, amp=resolve_amp(cfg.amp, group, saved))
    if saved is not None:
        stride_in_1x1 = saved["config"]["stride_in_1x1"]
        if stride_in_1x1 != cfg.stride_in_1x1:
            log.info(f"--stride_in_1x1 is {'on' if stride_in_1x1 else 'off'}, as in the checkpoint")
        return dataclasses.replace(cfg, stride_in_1x1=stride_in_1x1), None
    if cfg.freeze_backbone and cfg.pretrained == "none":
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

    return read_timm_weights(build_model(cfg).backbone, cfg.pretrained, checkpoint.read)


def get_model(cfg: Config, group: Group, start: StartWeights | None = None) -> tuple[models.Segmenter, nn.Module]:
    """Return (model on this process's device, module to train: the model's DDP wrapper, or the model without a group).

    start: start weights, on rank 0 only; the wrapper broadcasts them. Raises UserError if none of the weights fits.
    """
    torch.manual_seed(cfg.seed)
    raw_model = build_model(cfg)
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
        compile_blocks(raw_model)
    return raw_model, group.wrap(raw_model)


def build_model(cfg: Config) -> models.Segmenter:
    model = models.build(
        cfg.model_type,
        **cfg.architecture,
        head_init=cfg.head_init,
        freeze_bn=cfg.freeze_bn,
        freeze_backbone=cfg.freeze_backbone,
        grad_checkpointing=cfg.grad_checkpointing,
        lorm_scope=cfg.lorm_scope,
    )
    model.backbone.freeze_unused(model.head)
    if model.lorm is not None and "lorm" not in active_terms(cfg):
        model.lorm.requires_grad_(False)  # DDP waits for the gradient of every parameter that requires one
    return model


def active_terms(cfg: Config) -> dict[str, float]:
    """Return {term: weight} of the losses with a weight above 0 whose maps --dataset has.

    "lorm" also needs a model with LoRM.
    """
    maps = ("image", *MAPS[cfg.dataset])
    return {
        name: weight
        for name, weight in loss_weights(cfg).items()
        if weight > 0 and TERMS[name].map in maps and (name != "lorm" or has_lorm(cfg))
    }
