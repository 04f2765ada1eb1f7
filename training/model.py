"""Build the model from the flags."""

import logging

import torch
from torch import nn

import models
from distributed.group import Group
from flags import Config
from flags.losses import loss_weights
from flags.training import has_lorm
from losses.terms import TERMS
from models import pretrained
from models.compiled import compile_blocks
from models.layers.norm import synchronize
from models.pretrained import StartWeights
from support.labels import MAPS

log = logging.getLogger("segtrain")


def get_model(
    cfg: Config, group: Group, start_weights: StartWeights | None = None
) -> tuple[models.Segmenter, nn.Module]:
    """Return (model on this process's device, module to train: the model's DDP wrapper, or the model without a group).

    start_weights: on rank 0 only; the wrapper broadcasts them. Raises UserError if none of the weights fits.
    """
    torch.manual_seed(cfg.seed)
    raw_model = build_model(cfg)
    if start_weights is not None:
        line = pretrained.load_start_weights(raw_model, start_weights, cfg.layers)
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
