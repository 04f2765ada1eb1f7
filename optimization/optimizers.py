"""The optimizers of --optimizer, with variants for CUDA that update all parameters in one kernel."""

import torch
from torch.optim import SGD, AdamW, Optimizer


class FusedSGD(SGD):
    """torch's SGD with one kernel for all parameters. With a LossScaler, the CPU does not wait for the GPU in a step.

    Inside a ZeroRedundancyOptimizer it waits, because GradScaler cannot see that this class skips steps by itself.

    The state dict is SGD's. Momentum starts at 0, and an update adds the gradient to it, as in SGD. torch's fused SGD
    leaves the momentum uninitialized if the first step is skipped because of an overflow.
    """

    def __init__(self, params, **options):
        super().__init__(params, fused=True, **options)
        self.register_step_pre_hook(_start_momentum)


class FusedAdamW(AdamW):
    """torch's AdamW with one kernel for all parameters, which waits for the GPU where FusedSGD does.

    The state dict is AdamW's. The kernel needs the step counts on the parameters' device, but AdamW and a resumed
    ZeroRedundancyOptimizer have them on the CPU.
    """

    def __init__(self, params, **options):
        super().__init__(params, fused=True, **options)
        self.register_step_pre_hook(_move_step_counts)


KINDS: dict[str, tuple[type[Optimizer], type[Optimizer]]] = {"sgd": (SGD, FusedSGD), "adamw": (AdamW, FusedAdamW)}


def make_optimizer(name: str, groups: list[dict], *, fused: bool, sharded: bool, **options) -> Optimizer:
    """Return the optimizer "sgd" or "adamw" over parameter groups. options: arguments of torch's class.

    fused: update in one kernel, as on CUDA. On the CPU torch's fused SGD rounds differently, and saves less than 1 % of
    a step. sharded: divide the state over the processes of the group.
    """
    kind = KINDS[name][fused]
    if not sharded:
        return kind(groups, **options)
    from torch.distributed.optim import ZeroRedundancyOptimizer  # imported here because it takes a second

    return ZeroRedundancyOptimizer(groups, optimizer_class=kind, **options)


def _start_momentum(optimizer: Optimizer, *_) -> None:
    """Give each parameter that has a gradient but no momentum a momentum of 0."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            state = optimizer.state[parameter]
            if parameter.grad is not None and state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)


def _move_step_counts(optimizer: Optimizer, *_) -> None:
    """Move each parameter's step count to its device."""
    for parameter, state in optimizer.state.items():
        if state and state["step"].device != parameter.device:
            state["step"] = state["step"].to(parameter.device)
