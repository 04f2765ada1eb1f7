"""The optimizer's state in a checkpoint."""

from copy import copy

from torch.optim import Optimizer

from distributed.group import Group
from support.errors import UserError

RESET = "or start without the optimizer's state by --reset_optimizer"


def capture_optimizer(optimizer: Optimizer, group: Group) -> dict:
    """Return the optimizer's state dict for all parameters; with --zero1, {} on all ranks but 0. Collective."""
    if hasattr(optimizer, "consolidate_state_dict"):  # ZeroRedundancyOptimizer, whose import takes a second
        optimizer.consolidate_state_dict(to=0)
        return optimizer.state_dict() if group.is_main else {}
    return optimizer.state_dict()


def restore_optimizer(optimizer: Optimizer, saved: dict) -> None:
    """Load the state from what capture_optimizer() returned, but no settings, such as momentum.

    Raises UserError if the state belongs to another optimizer or to other parameter groups.
    """
    groups, saved_groups = optimizer.param_groups, saved["param_groups"]
    kinds = ["adamw" if "betas" in part[0] else "sgd" for part in (saved_groups, groups)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"--optimizer {kinds[1]}: the checkpoint has the state of {kinds[0]}: use --optimizer {kinds[0]}, {RESET}"
        )
    sizes = [" + ".join(str(len(group["params"])) for group in part) for part in (saved_groups, groups)]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"the checkpoint's optimizer has groups of {sizes[0]} parameters, but this run's has {sizes[1]}: use the "
            "losses, --freeze_backbone, --layer_decay, --head_lr_factor and --no_decay_norm_bias of its config.yaml, "
            f"{RESET}"
        )
    # With the new settings, since torch converts a state to what its group's settings, such as fused, need.
    settings = [
        {name: value for name, value in group.items() if name != "params"}
        | {"params": part["params"], "lr": part["lr"]}
        for group, part in zip(groups, saved_groups, strict=True)
    ]
    # Copied: ZeroRedundancyOptimizer deletes other ranks' state from the dict it gets.
    optimizer.load_state_dict({"state": copy(saved["state"]), "param_groups": settings})
