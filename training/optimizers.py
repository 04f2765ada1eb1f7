"""The optimizers of --optimizer, and the parameter groups that they get."""

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from models.segmenter import Segmenter


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
        return AdamW(groups, fused=fused or None, **options)  # None: torch's default, which may be another loop
    return FusedSGD(groups, **options) if fused else SGD(groups, **options)


def _start_momentum(optimizer: Optimizer, *_) -> None:
    """Give each parameter that has a gradient but no momentum a momentum of 0."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            state = optimizer.state[parameter]
            if parameter.grad is not None and state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)


def parameter_groups(
    model: Segmenter, *, weight_decay: float, decay_norm_bias: bool = True, head_lr_factor: float = 1.0
) -> list[dict]:
    """Return the trained parameters in groups for an optimizer, each with its "lr_factor" and "weight_decay".

    The learning rate of a parameter is the run's times lr_factor: head_lr_factor for the head and LoRM, 1 for the
    backbone. decay_norm_bias: if False, weight decay is 0 for norms, biases and the parameters of the backbone's
    no_weight_decay(), such as position embeddings. With the defaults there is one group, in the order of
    model.parameters().
    """
    exempt = {f"backbone.{name}" for name in model.backbone.no_weight_decay()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            in_backbone = name.startswith("backbone.") and not model.backbone.is_head(name.removeprefix("backbone."))
            lr_factor = 1.0 if in_backbone else head_lr_factor
            is_exempt = not decay_norm_bias and (parameter.ndim <= 1 or name in exempt)
            settings = lr_factor, 0.0 if is_exempt else weight_decay
            groups.setdefault(settings, []).append(parameter)
    return [
        {"params": parameters, "lr_factor": lr_factor, "weight_decay": decay}
        for (lr_factor, decay), parameters in groups.items()
    ]
