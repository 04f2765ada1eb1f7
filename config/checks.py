"""Checks of the flags of train.py against each other."""

import re
from dataclasses import fields

from config.losses import parse_loss, read_class_weights
from config.training import AugmentationFlags, Config
from support.errors import UserError
from support.shell import document


def check(cfg: Config) -> None:
    """Raise UserError if flags contradict each other or --loss, --class_weights, --dataset_path or --name is bad."""
    try:
        parse_loss(cfg.loss)
    except ValueError as error:
        raise UserError(f"--loss {cfg.loss}: {error}") from None
    read_class_weights(cfg.class_weights, cfg.numclasses)
    _check_effects(cfg)
    check_backbone(cfg)
    _check_numbers(cfg)
    if cfg.reset_data_offset and cfg.resume == "auto":
        raise UserError("--reset_data_offset with --resume auto: give a FILE, or each start begins at step 1")
    if not cfg.dataset_path:
        raise UserError(f"--dataset_path is not set: give the data set's root folder ({document('docs/your_data.md')})")
    if "/" in cfg.name or cfg.name in (".", ".."):
        raise UserError(f"--name {cfg.name}: must be a folder name without '/'; --logdir is its parent folder")


def _check_effects(cfg: Config) -> None:
    """Raise UserError if a flag is set that has no effect with the others."""
    needs: dict[str, tuple[object, str]] = {  # flag: (whether it has an effect, what it needs for that)
        item.name: (cfg.augment, "--augment") for item in fields(AugmentationFlags)[1:]
    }
    needs |= dict.fromkeys(("reset_optimizer", "reset_data_offset"), (cfg.resume, "--resume FILE"))
    needs |= {
        "momentum": (cfg.optimizer == "sgd", "--optimizer sgd"),
        "betas": (cfg.optimizer == "adamw", "--optimizer adamw"),
        "patience": (
            cfg.val_epoch_frequency or cfg.val_step_frequency,
            "--val_epoch_frequency or --val_step_frequency above 0",
        ),
        "stride_in_1x1": (cfg.backbone == "resnet" and cfg.layers >= 50, "--backbone resnet of 50 --layers or more"),
    }
    for name, (has_effect, needed) in needs.items():
        if not has_effect and getattr(cfg, name) != getattr(Config, name):
            raise UserError(f"--{name} has no effect without {needed}: add that, or drop --{name}")


def check_backbone(cfg: Config) -> None:
    """Raise UserError if --backbone is not known or contradicts other flags."""
    if cfg.backbone != "resnet" and not re.fullmatch(r"timm:.+", cfg.backbone):
        raise UserError(f"--backbone {cfg.backbone}: use resnet, with --layers, or timm:NAME, such as timm:resnet50")
    if cfg.backbone == "resnet" and cfg.output_stride not in (0, 8):
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
    """Raise UserError if --scale or --betas has no two numbers, or if distances do not fit --long_side."""
    if len(cfg.scale) != 2 or cfg.scale[0] > cfg.scale[1]:
        given = " ".join(f"{value:g}" for value in cfg.scale)
        raise UserError(f"--scale {given}: give the least and the largest factor, such as --scale 0.5 2")
    if len(cfg.betas) != 2:
        raise UserError("--betas: give two numbers, such as --betas 0.9 0.999")
    for name in ("distancemap_s", "distancemap_c"):
        if getattr(cfg, name) and cfg.long_side:
            raise UserError(
                f"--{name} {getattr(cfg, name)} with --long_side {cfg.long_side}: the files have distances in pixels "
                f"of the original images: drop --{name}, and distances are computed after the resize"
            )
