"""Batch norm in parts that an autograd function can call, so that fused.py can join it with what follows."""

import torch
from torch import Tensor, nn

aten = torch.ops.aten
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
Statistics = tuple[Tensor, ...]  # mean and 1 / standard deviation, each (C,); a subclass may add others


class BatchNorm2d(nn.BatchNorm2d):
    """nn.BatchNorm2d: same result, parameters and names, and the methods that models.layers.fused calls.

    The methods do not record gradients.
    """

    def uses_batch(self) -> bool:
        """Return whether the norm uses the batch's statistics, not the running ones."""
        return self.training or self.running_mean is None

    def normalise(self, x: Tensor) -> tuple[Tensor, Statistics]:
        """Return the normalised x (B, C, H, W), and the statistics used; update the running ones in training."""
        weights, mean, variance = (self.weight, self.bias), self.running_mean, self.running_var
        if not self.uses_batch():
            assert mean is not None
            assert variance is not None
            value = torch.native_batch_norm(x, *weights, mean, variance, False, 0.0, self.eps)[0]
            return value, (mean, (variance + self.eps).rsqrt())
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        assert self.momentum is not None
        value, *statistics = torch.native_batch_norm(x, *weights, mean, variance, True, self.momentum, self.eps)
        return value, tuple(statistics)

    def gradients(
        self, grad: Tensor, x: Tensor, weight: Tensor, statistics: Statistics, *, of_batch: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of x, weight and bias.

        grad: the gradient of the result. statistics: normalise()'s. of_batch: what uses_batch() was then.
        """
        mean, invstd = statistics
        running, mask = (mean, variance_of(invstd)), [True, True, True]
        return aten.native_batch_norm_backward(grad, x, weight, *running, mean, invstd, of_batch, 0.0, mask)

    def average(self, sums: Tensor, num_values: int, statistics: Statistics) -> Tensor:
        """Return means over all values that the statistics come from. Synchronised, these are of all processes.

        sums: 1-D, over this process's `num_values` values of a channel; may be overwritten. statistics: of a batch.
        """
        return sums / num_values


class BatchNormAct2d(BatchNorm2d):
    """timm's batch norm with dropout and activation: its attributes `drop` and `act`."""

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


def apply_statistics(x: Tensor, weight: Tensor, bias: Tensor, statistics: Statistics) -> Tensor:
    """Return x normalised by statistics that normalise() returned."""
    mean, invstd = statistics[:2]
    return torch.native_batch_norm(x, weight, bias, mean, variance_of(invstd), False, 0.0, 0.0)[0]


def variance_of(invstd: Tensor) -> Tensor:
    """Return the variance, with batch norm's epsilon in it."""
    return invstd.square().reciprocal()


def as_channels(values: Tensor) -> Tensor:
    """Reshape (C,) to (1, C, 1, 1)."""
    return values.view(1, -1, 1, 1)
