"""Batch norm over the images of all processes, on CUDA and on the CPU, without waiting for a GPU.

torch's SyncBatchNorm drops processes without images by a mask, whose size the CPU must wait for: three times a layer.
Here every process has images.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class SyncBatchNorm(nn.BatchNorm2d):
    """BatchNorm2d whose training statistics are those of all processes of the group. Use synchronize() to make one.

    In evaluation, and while frozen, it is BatchNorm2d. A channel with one value in all processes together becomes its
    bias, and adds 0 to the running variance.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        normalize = _CudaBatchNorm if x.is_cuda else _PlainBatchNorm
        return normalize.apply(x, self.weight, self.bias, self.running_mean, self.running_var, self.momentum, self.eps)


def synchronize(model: nn.Module) -> None:
    """Turn each BatchNorm2d of the model, in place, into a SyncBatchNorm with the same name, parameters and buffers."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.__class__ = SyncBatchNorm


class _PlainBatchNorm(torch.autograd.Function):
    """Synchronized batch norm by operations that every device has."""

    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, momentum, eps):
        # The function also updates running statistics, whose type it takes. Ours are updated below.
        unused = torch.zeros_like(running_mean), torch.zeros_like(running_var)
        mean, var = torch.batch_norm_update_stats(x, *unused, momentum)  # the variance is biased
        rows = _gather(mean, var, x)
        means, variances, counts = rows[:, : len(mean)], rows[:, len(mean) : -1], rows[:, -1:]
        count = counts.sum()
        mean = (counts * means).sum(0) / count
        var = (counts * (variances + (means - mean).square())).sum(0) / count
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var * (count / (count - 1).clamp(min=1)), momentum)
        ctx.save_for_backward(x, weight, mean, var, count)
        ctx.eps = eps
        return F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight, mean, var, count = ctx.saved_tensors
        # The local sums of grad and of grad * normalized x are the gradients of bias and weight.
        _, weight_grad, bias_grad = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight, mean, var, None, None, False, ctx.eps, [False, True, True]
        )
        sums = torch.cat([bias_grad, weight_grad])
        dist.all_reduce(sums)
        mean_grad, mean_product = (sums / count).chunk(2)
        invstd = (var + ctx.eps).rsqrt()
        # weight * invstd * (grad - mean_grad - (x - mean) * invstd * mean_product), as one sum of three terms
        scale, slope = weight * invstd, -weight * invstd.square() * mean_product
        offset = -scale * mean_grad - slope * mean
        x_grad = torch.addcmul(_channels(offset), grad, _channels(scale)).addcmul_(x, _channels(slope))
        return x_grad.to(x.dtype), weight_grad, bias_grad, None, None, None, None


class _CudaBatchNorm(torch.autograd.Function):
    """Synchronized batch norm by the CUDA kernels of torch's SyncBatchNorm."""

    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, momentum, eps):
        x = _dense(x)
        rows = _gather(*torch.batch_norm_stats(x, eps), x)
        means, invstds, counts = rows.split([x.shape[1], x.shape[1], 1], dim=1)
        mean, invstd = torch.batch_norm_gather_stats_with_counts(
            x, means, invstds, running_mean, running_var, momentum, eps, counts.flatten().to(running_mean.dtype)
        )
        ctx.save_for_backward(x, weight, mean, invstd, counts.to(torch.int32))
        return torch.batch_norm_elemt(x, weight, bias, mean, invstd, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight, mean, invstd, counts = ctx.saved_tensors
        grad = _dense(grad)
        sum_grad, sum_product, weight_grad, bias_grad = torch.batch_norm_backward_reduce(
            grad, x, mean, invstd, weight, True, True, True
        )
        sums = torch.cat([sum_grad, sum_product])
        dist.all_reduce(sums)
        x_grad = torch.batch_norm_backward_elemt(grad, x, mean, invstd, weight, *sums.chunk(2), counts)
        return x_grad, weight_grad, bias_grad, None, None, None, None


def _gather(mean: Tensor, spread: Tensor, x: Tensor) -> Tensor:
    """Return the rows (world_size, 2C + 1) of all processes: mean (C), spread (C), and values per channel. Collective.

    The sizes of x (B, C, H, W) may differ between processes.
    """
    row = torch.cat([mean, spread, mean.new_full((1,), x.numel() // x.shape[1])])
    rows = row.new_empty(dist.get_world_size() * len(row))
    dist.all_gather_into_tensor(rows, row)
    return rows.view(-1, len(row))


def _channels(values: Tensor) -> Tensor:
    """Reshape (C,) to (1, C, 1, 1)."""
    return values.view(1, -1, 1, 1)


def _dense(x: Tensor) -> Tensor:
    """Return x in channels-last order if it is so already, else contiguous."""
    return x if x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()
