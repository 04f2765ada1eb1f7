"""Checks of the flags of train.py against each other."""

import dataclasses
import importlib.util
import os
import re
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from flags.loss_weights import parse_loss, read_class_weights
from flags.shared import BACKBONE_FLAGS, HEAD_FLAGS, check_reading
from flags.training import DOWNLOADED, Config
from support.errors import UserError
from support.labels import MAPS
from support.shell import document, install_command
from support.user_code import is_code, is_own_network


def check(cfg: Config, *, is_final: bool = False) -> None:
    """Raise UserError if flags contradict each other or --loss, --class_weights, --dataset_path or --name is bad.

    is_final: the recipe has made its choices.
    """
    parse_loss(cfg.loss)
    if cfg.transform and not is_code(cfg.transform):
        raise UserError(f"--transform {cfg.transform}: give FILE.py:NAME or PACKAGE.MODULE:NAME, a function of yours")
    is_open = not is_final and "numclasses" not in cfg.given
    read_class_weights(cfg.class_weights, None if is_open else cfg.numclasses)
    # A checkpoint to resume, or a file of start weights, tells its network later.
    network_is_open = not is_final and bool(cfg.resume or cfg.start_file)
    is_timm = cfg.backbone != "resnet"
    optimizer_is_open = not is_final and (is_timm or network_is_open) and "optimizer" not in cfg.given
    typed = cfg.typed - ({"momentum", "betas"} if optimizer_is_open else set())
    typed -= {*BACKBONE_FLAGS, *HEAD_FLAGS} if network_is_open else set()
    if cfg.leaves_layout_open and not is_final:  # an effect with any --dataset will do
        idle = [idle_flags(dataclasses.replace(cfg, dataset=name), typed) for name in MAPS]
        typed = typed.intersection(*idle)
    check_effects(cfg, typed)
    check_backbone(cfg, is_final=not network_is_open)
    _check_numbers(cfg)
    if cfg.reset_data_offset and cfg.resume == "auto":
        raise UserError("--reset_data_offset with --resume auto: give a FILE, or each start begins at step 1")
    found = importlib.util.find_spec("wandb") if cfg.wandb else None
    if cfg.wandb and (found is None or found.origin is None):  # without an origin: a folder wandb/ of earlier runs
        raise UserError(f"--wandb needs the package wandb: {install_command('wandb')}")
    if not cfg.dataset_path:
        raise UserError(f"--dataset_path is not set: give the data set's root folder ({document('docs/your_data.md')})")
    parts = re.split(r"[/\\]", cfg.name)  # Windows divides paths at both, and D:a is a path on another disk
    is_below = not {"", ".", ".."} & set(parts) and not Path(cfg.name).drive
    if not is_below or not cfg.name.isprintable() or max(map(len, map(os.fsencode, parts))) > 200:
        raise UserError(f"--name {cfg.name[:200]}: must be a folder below --logdir, such as a or sweep/a")


def check_effects(flags: Any, names: Collection[str]) -> None:
    """Raise UserError if a flag among `names` has no effect with the other flags."""
    for name, needed in idle_flags(flags, names).items():
        raise UserError(f"--{name} has no effect without {needed}: add that, or drop --{name}")


def idle_flags(flags: Any, names: Collection[str]) -> dict[str, str]:
    """Return {flag: what it needs} of those among `names` that have no effect and are neither 0 nor the default."""
    idle = {}
    for item in fields(flags):
        if item.name in names and (declared := item.metadata["flag"]).needs:
            needed, has_effect = declared.needs
            value = getattr(flags, item.name)
            is_off = value == 0 and not isinstance(value, bool)  # --l_ds 0 asks for no effect
            if value != declared.default and not is_off and not has_effect(flags):
                idle[item.name] = needed
    return idle


def check_backbone(cfg: Config, *, is_final: bool = True) -> None:
    """Raise UserError if --backbone is not known or contradicts other flags. is_final: it will not change."""
    if cfg.backbone != "resnet" and not re.fullmatch(r"timm:.+", cfg.backbone):
        raise UserError(f"--backbone {cfg.backbone}: use resnet, with --layers, or timm:NAME, such as timm:resnet50")
    if is_code(cfg.model_type) and (cfg.backbone != "resnet" or cfg.output_stride):
        flag = f"--backbone {cfg.backbone}" if cfg.backbone != "resnet" else f"--output_stride {cfg.output_stride}"
        raise UserError(f"{flag}: --model_type {cfg.model_type} builds the whole network: use --model_args, or drop it")
    # A run's config.yaml has the default imagenet, although nobody has set it.
    is_set = "pretrained" in (cfg.typed if cfg.pretrained == "imagenet" else cfg.given)
    if is_own_network(cfg.model_type) and is_set and cfg.pretrained in DOWNLOADED:
        raise UserError(
            f"--pretrained {cfg.pretrained}: these are a ResNet's weights: drop it, as the function of --model_type "
            f"{cfg.model_type} may load weights itself; or give a FILE"
        )
    if is_final and cfg.backbone == "resnet" and cfg.output_stride not in (0, 8):
        raise UserError(
            f"--output_stride {cfg.output_stride}: torchvision's ResNet has 8: use --backbone timm:resnet{cfg.layers}"
        )
    if cfg.pretrained == "coco" and (
        cfg.model_type != "deeplabv3_torchvision" or cfg.backbone != "resnet" or cfg.layers not in (50, 101)
    ):
        raise UserError(
            f"--pretrained coco with --model_type {cfg.model_type} of {cfg.network}: torchvision has these weights for "
            "--model_type deeplabv3_torchvision, --backbone resnet and --layers 50 or 101"
        )


def _check_numbers(cfg: Config) -> None:
    """Raise UserError if --scale, --betas or --stretch has no two numbers, or if distances do not fit --long_side."""
    if len(cfg.scale) != 2 or cfg.scale[0] > cfg.scale[1]:
        given = " ".join(f"{value:g}" for value in cfg.scale)
        raise UserError(f"--scale {given}: give the least and the largest factor, such as --scale 0.5 2")
    if len(cfg.betas) != 2:
        raise UserError("--betas: give two numbers, such as --betas 0.9 0.999")
    check_reading((), (), cfg.stretch)
    for name in ("distancemap_s", "distancemap_c"):
        if getattr(cfg, name) and cfg.long_side:
            raise UserError(
                f"--{name} {getattr(cfg, name)} with --long_side {cfg.long_side}: the files have distances in pixels "
                f"of the original images: drop --{name}, and distances are computed after the resize"
            )
