"""The optimizer and its learning rate, from --lr, --lr_scaling, --total_batchsize, --zero1 and the like."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from config import Config
from engine.distributed import Group
from engine.schedule import lr_factor
from errors import UserError


def get_optimizer(
    cfg: Config, raw_model: nn.Module, group: Group, steps_per_epoch: int, origin: dict[str, int],
    say: Callable[[str], None] = print,
) -> tuple[torch.optim.Optimizer, Callable[[float], float]]:  # fmt: skip
    """SGD, and its lr as a function of the step, from 0: linear warm-up, then cosine to 0.

    origin: {"world_size": processes that the run began with, "global_batch": its global batch then}. The lr is
    scaled by the world size; in a run that goes on with another global batch, as that batch is. With --total_batchsize
    it is not scaled.
    """
    lr = scaled_lr(cfg, group, steps_per_epoch, origin, say)
    parameters = [parameter for parameter in raw_model.parameters() if parameter.requires_grad]
    sharded = cfg.zero1 and group.backend
    make = partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.SGD) if sharded else torch.optim.SGD
    optimizer = make(parameters, lr=lr, momentum=cfg.momentum, weight_decay=cfg.wdecay)
    total_steps = cfg.max_steps or cfg.epochs * steps_per_epoch
    if cfg.warmup_steps >= 0:
        warmup_steps = cfg.warmup_steps
    else:
        warmup_steps = round(total_steps / 10 if cfg.warmup_epochs < 0 else cfg.warmup_epochs * steps_per_epoch)
    if warmup_steps >= total_steps:
        raise UserError(
            f"--warmup_steps {cfg.warmup_steps}, --warmup_epochs {cfg.warmup_epochs:g}: {warmup_steps} steps of warm-up in a run "
            f"of {total_steps}: the learning rate would never reach --lr"
        )
    return optimizer, lambda position: lr * lr_factor(position, total_steps, warmup_steps)


def scaled_lr(
    cfg: Config, group: Group, steps_per_epoch: int, origin: dict[str, int], say: Callable[[str], None]
) -> float:
    """The highest lr of the run, as get_optimizer() scales it, and a line on how it and the global batch come about."""
    global_batch = cfg.batchsize * cfg.accum_steps * group.world_size
    processes = f"{group.world_size} process(es)"
    if cfg.total_batchsize:
        lr = cfg.lr
        say(
            f"lr {lr:g}, as given: --total_batchsize {global_batch} does not grow with the processes; it is divided by {processes} "
            f"x --accum_steps {cfg.accum_steps}: --batchsize {cfg.batchsize}; {steps_per_epoch} steps an epoch"
        )
    else:
        size = origin["world_size"] * global_batch / origin["global_batch"]
        rule = {"linear": size, "sqrt": math.sqrt(size), "none": 1.0}[cfg.lr_scaling]
        lr = cfg.lr * rule
        say(
            f"lr {cfg.lr:g} x {rule:g} (--lr_scaling {cfg.lr_scaling}, {processes}) = {lr:g}; "
            f"global batch {global_batch} = --batchsize {cfg.batchsize} "
            f"x --accum_steps {cfg.accum_steps} x {processes}; {steps_per_epoch} steps an epoch"
        )
    if (group.world_size, global_batch) != (origin["world_size"], origin["global_batch"]):
        kept = "that batch is kept, and so are lr and result"
        if global_batch != origin["global_batch"]:
            follows = (
                f"the lr follows it by --lr_scaling {cfg.lr_scaling}; --accum_steps or --total_batchsize can keep it"
            )
            kept = f"now it is {global_batch}, and {'the lr stays' if cfg.total_batchsize else follows}"
        say(
            f"the run began with {origin['world_size']} process(es) and a global batch of {origin['global_batch']}; {kept}"
        )
    return lr
