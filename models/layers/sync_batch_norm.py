"""Batch norm over the images of all processes, on CUDA and on the CPU, without waiting for a GPU.

torch's SyncBatchNorm drops processes without images by a mask, whose size the CPU must wait for: three times a layer.
Here every process has images.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from models.layers.norm import BatchNorm2d, BatchNormAct2d, Statistics, as_channels, aten, variance_of


class SyncBatchNorm(BatchNorm2d):
    """BatchNorm2d whose training statistics are those of all processes of the group. Use synchronize() to make one.

    In evaluation, and while frozen, it is BatchNorm2d. In training, normalise(), gradients() and average() are
    collective, and the statistics have a third part: the number of values of each process, (world_size,).
    """

    synchronized = True  # the processes' statistics are equal, and distributed/checks.py compares them

    def forward(self, x: Tensor) -> Tensor:
        return _Normalise.apply(x, self.weight, self.bias, self) if self.training else super().forward(x)

    def normalise(self, x: Tensor) -> tuple[Tensor, Statistics]:
        if not self.training:
            return super().normalise(x)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return (self._normalise_on_cuda if _has_kernels(x) else self._normalise)(x)

    def _normalise(self, x: Tensor) -> tuple[Tensor, Statistics]:
        """Normalise by operations that every device has."""
        assert self.momentum is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        # The function also updates running statistics, whose type it takes. Ours are updated below.
        unused = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        means, variances, counts = _gather(*torch.batch_norm_update_stats(x, *unused, self.momentum), x)
        count = counts.sum()
        mean = (counts * means).sum(0) / count
        var = (counts * (variances + (means - mean).square())).sum(0) / count  # biased
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var * (count / (count - 1).clamp(min=1)), self.momentum)
        value = F.batch_norm(x, mean, var, self.weight, self.bias, training=False, eps=self.eps)
        return value, (mean, (var + self.eps).rsqrt(), counts.flatten())

    def _normalise_on_cuda(self, x: Tensor) -> tuple[Tensor, Statistics]:
        """Normalise by the CUDA kernels of torch's SyncBatchNorm."""
        x = _dense(x)
        assert self.momentum is not None
        means, invstds, counts = _gather(*torch.batch_norm_stats(x, self.eps), x)
        counts, running = counts.flatten(), (self.running_mean, self.running_var)
        mean, invstd = torch.batch_norm_gather_stats_with_counts(
            x, means, invstds, *running, self.momentum, self.eps, counts.to(self.weight.dtype)
        )
        return torch.batch_norm_elemt(x, self.weight, self.bias, mean, invstd, self.eps), (mean, invstd, counts)

    def gradients(
        self, grad: Tensor, x: Tensor, weight: Tensor, statistics: Statistics, *, of_batch: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        if not of_batch:
            return super().gradients(grad, x, weight, statistics, of_batch=of_batch)
        mean, invstd, counts = statistics
        if _has_kernels(x):
            grad, x = _dense(grad), _dense(x)
            _, _, weight_grad, bias_grad = torch.batch_norm_backward_reduce(
                grad, x, mean, invstd, weight, False, True, True
            )
            # The same sums as in average(), because a rank with another image size may call that for this layer.
            sums = torch.cat([bias_grad, weight_grad])
            dist.all_reduce(sums)
            sum_grad, sum_product = sums[: len(mean)], sums[len(mean) :] / invstd
            x_grad = torch.batch_norm_backward_elemt(grad, x, mean, invstd, weight, sum_grad, sum_product, counts.int())
            return x_grad, weight_grad, bias_grad
        # The local sums of grad and of grad * normalised x are the gradients of bias and weight.
        running, mask = (mean, variance_of(invstd)), [False, True, True]
        _, weight_grad, bias_grad = aten.native_batch_norm_backward(
            grad, x, weight, *running, None, None, False, 0.0, mask
        )
        sums = torch.cat([bias_grad, weight_grad])
        mean_grad, mean_product = self.average(sums, x.numel() // x.shape[1], statistics).chunk(2)
        # weight * invstd * (grad - mean_grad - (x - mean) * invstd * mean_product), as one sum of three terms
        scale, slope = weight * invstd, -weight * invstd.square() * mean_product
        offset = -scale * mean_grad - slope * mean
        x_grad = torch.addcmul(as_channels(offset), grad, as_channels(scale)).addcmul_(x, as_channels(slope))
        return x_grad.to(x.dtype), weight_grad, bias_grad

    def average(self, sums: Tensor, num_values: int, statistics: Statistics) -> Tensor:
        dist.all_reduce(sums)
        return sums / statistics[2].sum()


class SyncBatchNormAct(SyncBatchNorm):
    """BatchNormAct2d whose training statistics are those of all processes."""

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


def synchronize(model: nn.Module) -> None:
    """Turn each BatchNorm2d of the model, in place, into a SyncBatchNorm with the same name, parameters and buffers."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.__class__ = SyncBatchNormAct if isinstance(module, BatchNormAct2d) else SyncBatchNorm


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, norm: BatchNorm2d) -> Tensor:
        value, statistics = norm.normalise(x)
        ctx.save_for_backward(x, weight, *statistics)
        ctx.norm = norm
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *statistics = ctx.saved_tensors
        return *ctx.norm.gradients(grad, x, weight, statistics, of_batch=True), None


def _has_kernels(x: Tensor) -> bool:
    return x.is_cuda


def _gather(mean: Tensor, spread: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return all processes' mean and spread, (world_size, C), and values per channel, (world_size, 1). Collective.

    spread: variance or 1 / standard deviation.

    The sizes of x (B, C, H, W) may differ between processes.
    """
    row = torch.cat([mean, spread, mean.new_full((1,), x.numel() // x.shape[1])])
    rows = row.new_empty(dist.get_world_size() * len(row))
    dist.all_gather_into_tensor(rows, row)
    means, spreads, counts = rows.view(-1, len(row)).split([len(mean), len(mean), 1], dim=1)
    return means, spreads, counts


def _dense(x: Tensor) -> Tensor:
    """Return x in channels-last order if it is so already, else contiguous."""
    return x if x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()
