"""Exponential moving average of weights."""

import copy

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class WeightAverage:
    """An exponential moving average of a model's weights: average = decay * average + (1 - decay) * weights.

    module: a copy of the model with the averaged weights. Its buffers, such as batch norm's statistics, are those of
    the model. The first update copies the weights. torch's AveragedModel would copy its step count to a GPU each time.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.module = copy.deepcopy(model)
        self._average = get_ema_multi_avg_fn(decay)
        self.num_updates = 0
        # TinyViT and EfficientViT keep tables, in evaluation, that they computed from their weights.
        self._caching: list = [part for part in self.module.modules() if hasattr(part, "attention_bias_cache")]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Update the average with the weights of `model`. Waits for no GPU."""
        averages: list[Tensor] = list(self.module.parameters())
        weights: list[Tensor] = list(model.parameters())
        copied = list(zip(self.module.buffers(), model.buffers(), strict=True))
        if self.num_updates:
            self._average(averages, weights, None)
        else:
            copied += zip(averages, weights, strict=True)
        for average, value in copied:
            average.copy_(value)
        for part in self._caching:
            part.attention_bias_cache.clear()
        self.num_updates += 1
