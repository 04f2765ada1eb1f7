"""SGD for CUDA."""

import torch
from torch.optim import SGD, Optimizer


class FusedSGD(SGD):
    """torch's SGD with one kernel for all parameters. With a LossScaler, the CPU does not wait for the GPU in a step.

    Inside a ZeroRedundancyOptimizer it does: that hides from GradScaler that this class skips steps by itself.

    The state dict is SGD's. Momentum starts at 0, and an update adds the gradient to it, as in SGD. torch's fused SGD
    leaves the momentum uninitialized if the first step is skipped because of an overflow.
    """

    def __init__(self, params, **options):
        super().__init__(params, fused=True, **options)
        self.register_step_pre_hook(_start_momentum)


def _start_momentum(optimizer: Optimizer, *_) -> None:
    """Give each parameter that has a gradient but no momentum a momentum of 0."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            state = optimizer.state[parameter]
            if parameter.grad is not None and state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)
