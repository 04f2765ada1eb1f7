"""The optimizer and its learning rate, from --lr, --lr_scaling, --total_batchsize, --zero1 and the like."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from config import Config
from distributed.group import Group
from errors import UserError
from schedule import lr_factor


def begin(cfg: Config, world_size: int, steps_per_epoch: int) -> dict[str, float]:
    """The origin of a new run: what determines its learning rate after every resume. Checkpoints keep it.

    "global_batch" is the batch that the run starts with; there --lr is multiplied by "lr_factor".
    """
    return {
        "world_size": world_size,
        "global_batch": _global_batch(cfg, world_size),
        "steps_per_epoch": steps_per_epoch,
        "lr_factor": 1.0 if cfg.total_batchsize else _rule(cfg.lr_scaling, world_size),
    }


def saved_origin(saved: dict, num_images: int) -> dict[str, float]:
    """The origin in a checkpoint's content. num_images: in the training list, for older checkpoints."""
    origin, flags = dict(saved["origin"]), saved["config"]
    if "lr_factor" not in origin:  # a file from before 2026-11-22: its flags tell how its lr was scaled
        total = flags.get("total_batchsize")
        scaling = flags.get("lr_scaling", "linear")
        origin["lr_factor"] = (
            1 / _rule(scaling, total / origin["global_batch"]) if total else _rule(scaling, origin["world_size"])
        )
        origin["steps_per_epoch"] = max(1, num_images // origin["global_batch"])  # the list may be shorter now
    return origin


def get_optimizer(
    cfg: Config, raw_model: nn.Module, group: Group, steps_per_epoch: int, origin: dict[str, float],
    say: Callable[[str], None] = print,
) -> tuple[torch.optim.Optimizer, Callable[[float], float]]:  # fmt: skip
    """SGD, and its lr as a function of the step, from 0: linear warm-up, then cosine to 0.

    origin: begin() of a new run, saved_origin() of a resumed one. Raises UserError if the warm-up fills the run.
    """
    lr = scaled_lr(cfg, group, steps_per_epoch, origin, say)
    parameters = [parameter for parameter in raw_model.parameters() if parameter.requires_grad]
    sharded = cfg.zero1 and group.backend
    make = partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.SGD) if sharded else torch.optim.SGD
    optimizer = make(parameters, lr=lr, momentum=cfg.momentum, weight_decay=cfg.wdecay)
    total_steps = cfg.max_steps or cfg.epochs * steps_per_epoch
    warmup_steps = _warmup_steps(cfg, steps_per_epoch, origin)
    if warmup_steps >= total_steps:
        raise UserError(
            f"--warmup_steps {cfg.warmup_steps}, --warmup_epochs {cfg.warmup_epochs:g}: {warmup_steps:g} steps of warm-up in a "
            f"run of {total_steps}: the learning rate would never reach --lr"
        )
    return optimizer, lambda position: lr * lr_factor(position, total_steps, warmup_steps)


def scaled_lr(
    cfg: Config, group: Group, steps_per_epoch: int, origin: dict[str, float], say: Callable[[str], None]
) -> float:
    """The peak lr of the run. Logs how it and the global batch are computed.

    It depends on --lr, the origin and the global batch only: the same batch has the same lr, whichever flags and
    processes make it, and another batch has the lr of the origin scaled by --lr_scaling.
    """
    global_batch, processes = _global_batch(cfg, group.world_size), f"{group.world_size} process(es)"
    change = _rule(cfg.lr_scaling, global_batch / origin["global_batch"])
    factor = origin["lr_factor"] * change
    lr = cfg.lr * factor
    split = (
        f"--batchsize {cfg.batchsize} x --accum_steps {cfg.accum_steps} x {processes}; {steps_per_epoch} steps an epoch"
    )
    start = begin(cfg, group.world_size, steps_per_epoch)
    if any(start[key] != origin[key] for key in ("world_size", "global_batch", "lr_factor")):
        if global_batch == origin["global_batch"]:
            now = "the batch is the same, so the factor is kept"
        elif cfg.lr_scaling == "none":
            now = f"the batch is now {global_batch}, and --lr_scaling none keeps the factor"
        else:
            now = f"the batch is now {global_batch}, so --lr_scaling {cfg.lr_scaling} multiplies the lr by {change:g}"
        say(f"lr {cfg.lr:g} x {factor:g} = {lr:g}; global batch {global_batch} = {split}")
        say(
            f"the run began with {origin['world_size']} process(es), a global batch of {origin['global_batch']} and --lr x "
            f"{origin['lr_factor']:g}; {now}"
        )
    elif cfg.total_batchsize:
        say(
            f"lr {lr:g}, as given: --total_batchsize {global_batch} does not grow with the processes; it is divided by {processes} "
            f"x --accum_steps {cfg.accum_steps}: --batchsize {cfg.batchsize}; {steps_per_epoch} steps an epoch"
        )
    else:
        say(
            f"lr {cfg.lr:g} x {factor:g} (--lr_scaling {cfg.lr_scaling}, {processes}) = {lr:g}; "
            f"global batch {global_batch} = {split}"
        )
    return lr


def _global_batch(cfg: Config, world_size: int) -> int:
    return cfg.batchsize * cfg.accum_steps * world_size


def _rule(scaling: str, size: float) -> float:
    """What --lr_scaling multiplies the lr by for a batch `size` times as large."""
    return {"linear": float(size), "sqrt": math.sqrt(size), "none": 1.0}[scaling]


def _warmup_steps(cfg: Config, steps_per_epoch: int, origin: dict[str, float]) -> float:
    """The warm-up's length in the unit of a run's position (train.py), such that it keeps its place after a resume.

    With --max_steps the position counts optimizer steps, whatever their batch. Otherwise it follows the epochs. The
    length is rounded to steps of the batch at the beginning.
    """
    steps = cfg.warmup_steps
    if steps < 0 and cfg.warmup_epochs < 0:
        steps = round((cfg.max_steps or cfg.epochs * origin["steps_per_epoch"]) / 10)
    elif steps < 0:
        steps = round(cfg.warmup_epochs * origin["steps_per_epoch"])
    return steps * (1 if cfg.max_steps else steps_per_epoch / origin["steps_per_epoch"])
