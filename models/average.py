"""Exponential moving average of weights."""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn


class WeightAverage:
    """An exponential moving average of a model's weights: average = decay * average + (1 - decay) * weights.

    module: a copy of the model with the averaged weights. Its buffers, such as batch norm's statistics, are those of
    the model. The first update copies the weights.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.module = copy.deepcopy(model)
        self.decay = decay
        self.num_updates = 0
        # TinyViT and EfficientViT keep tables, in evaluation, that they computed from their weights.
        self._caching: list = [part for part in self.module.modules() if hasattr(part, "attention_bias_cache")]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Update the average with the weights of `model`, in a few operations for all tensors. Waits for no GPU."""
        averages: list[Tensor] = list(self.module.parameters())
        weights: list[Tensor] = list(model.parameters())
        if self.num_updates:
            torch._foreach_lerp_(averages, weights, 1 - self.decay)
        else:
            torch._foreach_copy_(averages, weights)
        for kept, new in zip(_by_kind(self.module.buffers()), _by_kind(model.buffers()), strict=True):
            if kept:
                torch._foreach_copy_(kept, new)
        for part in self._caching:
            part.attention_bias_cache.clear()
        self.num_updates += 1


def _by_kind(buffers: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return (floating-point buffers, other buffers): lists of one type are copied in one kernel."""
    buffers = list(buffers)
    floating = [buffer for buffer in buffers if buffer.is_floating_point()]
    return floating, [buffer for buffer in buffers if not buffer.is_floating_point()]
