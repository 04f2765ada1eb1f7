"""Exponential moving average of weights."""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class WeightAverage:
    """An exponential moving average of a model's weights: average = decay * average + (1 - decay) * weights.

    module: a copy of the model with the averaged weights. Its buffers, such as batch norm's statistics, are those of
    the model. The first update copies the weights.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.module = copy.deepcopy(model)
        self._average = get_ema_multi_avg_fn(decay)
        self.num_updates = 0
        # TinyViT and EfficientViT keep tables, in evaluation, that they computed from their weights.
        self._caching: list = [part for part in self.module.modules() if hasattr(part, "attention_bias_cache")]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Update the average with the weights of `model`, in a few operations for all tensors. Waits for no GPU."""
        averages: list[Tensor] = list(self.module.parameters())
        weights: list[Tensor] = list(model.parameters())
        if self.num_updates:
            self._average(averages, weights, None)
        else:
            _copy(averages, weights)
        for kept, new in zip(_by_kind(self.module.buffers()), _by_kind(model.buffers()), strict=True):
            _copy(kept, new)
        for part in self._caching:
            part.attention_bias_cache.clear()
        self.num_updates += 1


def _copy(averages: list[Tensor], values: list[Tensor]) -> None:
    """Copy values to averages in one kernel, or one by one in a torch without the private function."""
    if averages and hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(averages, values)
        return
    for average, value in zip(averages, values, strict=True):
        average.copy_(value)


def _by_kind(buffers: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return (floating-point buffers, other buffers): lists of one type are copied in one kernel."""
    buffers = list(buffers)
    floating = [buffer for buffer in buffers if buffer.is_floating_point()]
    return floating, [buffer for buffer in buffers if not buffer.is_floating_point()]
