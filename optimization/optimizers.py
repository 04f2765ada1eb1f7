"""The optimizers of --optimizer; on CUDA they update all parameters in one kernel."""

import torch
from torch.optim import SGD, AdamW, Optimizer


class FusedSGD(SGD):
    """torch's SGD with one kernel for all parameters. With a LossScaler, the CPU does not wait for the GPU in a step.

    The state dict is SGD's. Momentum starts at 0, and an update adds the gradient to it, as in SGD. torch's fused SGD
    leaves the momentum uninitialized if the first step is skipped because of an overflow.
    """

    def __init__(self, params, **options):
        super().__init__(params, fused=True, **options)
        self.register_step_pre_hook(_start_momentum)


def make_optimizer(name: str, groups: list[dict], *, fused: bool, **options) -> Optimizer:
    """Return the optimizer "sgd" or "adamw" over parameter groups. options: arguments of torch's class.

    fused: update in one kernel, as on CUDA. On the CPU torch's fused SGD rounds differently, and saves less than 1 % of
    a step.
    """
    if name == "adamw":
        return AdamW(groups, fused=fused or None, **options)
    return FusedSGD(groups, **options) if fused else SGD(groups, **options)


def _start_momentum(optimizer: Optimizer, *_) -> None:
    """Give each parameter that has a gradient but no momentum a momentum of 0."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            state = optimizer.state[parameter]
            if parameter.grad is not None and state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)
