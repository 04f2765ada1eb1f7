"""Batch norm, plain or over all processes, in parts that an autograd function can call.

torch's SyncBatchNorm masks processes without images, so the CPU waits three times per layer. Ours all have some.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from support.errors import UserError

aten = torch.ops.aten
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Mean and 1 / standard deviation, each (C,); over processes also the number of values of each process, (world_size,).
Statistics = tuple[Tensor, ...]


class BatchNorm2d(nn.BatchNorm2d):
    """nn.BatchNorm2d with the same result, parameters and names, and the methods that models.layers.fused calls.

    synchronized: training uses all processes' statistics, and normalise(), gradients() and average() are collective,
    except while frozen. The methods do not record gradients; they need running statistics, weights and a momentum.
    fused: models.layers.fused may compute this norm together with its neighbours (models.memory.choose_blocks).
    """

    synchronized = False
    fused = True
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def forward(self, x: Tensor) -> Tensor:
        self._check_size(x)
        return self.over_processes(x) if self.synchronized and self.training else super().forward(x)

    def _check_size(self, x: Tensor) -> None:
        """Raise UserError where nn.BatchNorm2d raises; native_batch_norm() would make the running variance nan."""
        if self.training and not self.synchronized and x.numel() == x.shape[1]:
            raise UserError("batch norm cannot train on one value a channel: raise --batchsize or --crop_size")

    def over_processes(self, x: Tensor) -> Tensor:
        """Return normalise()'s result, and record gradients."""
        return _Normalise.apply(x, self.weight, self.bias, self)

    def normalise(self, x: Tensor) -> tuple[Tensor, Statistics]:
        """Return the normalised x (B, C, H, W), and the statistics used; update the running ones in training."""
        weights, running = (self.weight, self.bias), (self.running_mean, self.running_var)
        if not self.training:
            value = torch.native_batch_norm(x, *weights, *running, False, 0.0, self.eps)[0]
            return value, (self.running_mean, (self.running_var + self.eps).rsqrt())
        self._check_size(x)
        self.num_batches_tracked.add_(1)
        if self.synchronized:
            return (_normalise_on_cuda if _has_kernels(x) else _normalise)(x, self)
        value, *statistics = torch.native_batch_norm(x, *weights, *running, True, self.momentum, self.eps)
        return value, tuple(statistics)

    def gradients(
        self, grad: Tensor, x: Tensor, weight: Tensor, statistics: Statistics, *, of_batch: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of x, weight and bias.

        grad: the gradient of the result. statistics: normalise()'s. of_batch: whether they are the batch's.
        """
        if len(statistics) == 3:
            return (_gradients_on_cuda if _has_kernels(x) else _gradients)(grad, x, weight, statistics, self)
        mean, invstd = statistics
        # With the batch's statistics, the kernel ignores the variance: any tensor will do, and saves two kernels.
        running, mask = (mean, invstd if of_batch else variance_of(invstd)), [True, True, True]
        return aten.native_batch_norm_backward(grad, x, weight, *running, mean, invstd, of_batch, 0.0, mask)

    def average(self, sums: Tensor, num_values: int, statistics: Statistics) -> Tensor:
        """Return means over all values that the statistics come from; these are all processes' values if synchronised.

        sums: 1-D, over this process's `num_values` values per channel; may be overwritten. statistics: a batch's.
        """
        if len(statistics) == 2:
            return sums / num_values
        dist.all_reduce(sums)
        return sums / statistics[2].sum()


class BatchNormAct2d(BatchNorm2d):
    """timm's batch norm with dropout and activation: its attributes `drop` and `act`."""

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


def synchronize_batch_norm(model: nn.Module, choice: str, device: torch.device) -> None:
    """Let the model's batch norms use the statistics of all processes in training. choice: "on", "off" or "auto"."""
    is_on = choice == "on" or (choice == "auto" and device.type == "cuda")  # gloo exchanges too slowly for a default
    for module in model.modules():
        if isinstance(module, BatchNorm2d):
            module.synchronized = is_on


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


def _normalise(x: Tensor, norm: BatchNorm2d) -> tuple[Tensor, Statistics]:
    """Normalise over processes by operations that every device has."""
    # The function also updates running statistics, whose type it takes. Ours are updated below.
    unused = torch.zeros_like(norm.running_mean), torch.zeros_like(norm.running_var)
    means, variances, counts = _gather(*torch.batch_norm_update_stats(x, *unused, norm.momentum), x)
    count = counts.sum()
    mean = (counts * means).sum(0) / count
    var = (counts * (variances + (means - mean).square())).sum(0) / count  # biased
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(var * (count / (count - 1).clamp(min=1)), norm.momentum)
    value = F.batch_norm(x, mean, var, norm.weight, norm.bias, training=False, eps=norm.eps)
    return value, (mean, (var + norm.eps).rsqrt(), counts.flatten())


def _normalise_on_cuda(x: Tensor, norm: BatchNorm2d) -> tuple[Tensor, Statistics]:
    """Normalise over processes by the CUDA kernels of torch's SyncBatchNorm."""
    x = _dense(x)
    means, invstds, counts = _gather(*torch.batch_norm_stats(x, norm.eps), x)
    counts, running = counts.flatten(), (norm.running_mean, norm.running_var)
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        x, means, invstds, *running, norm.momentum, norm.eps, counts.to(norm.weight.dtype)
    )
    return torch.batch_norm_elemt(x, norm.weight, norm.bias, mean, invstd, norm.eps), (mean, invstd, counts)


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, statistics: Statistics, norm: BatchNorm2d
) -> tuple[Tensor, Tensor, Tensor]:
    mean, invstd, _ = statistics
    # The local sums of grad and of grad * normalised x are the gradients of bias and weight.
    running, mask = (mean, variance_of(invstd)), [False, True, True]
    _, weight_grad, bias_grad = aten.native_batch_norm_backward(grad, x, weight, *running, None, None, False, 0.0, mask)
    sums = torch.cat([bias_grad, weight_grad])
    mean_grad, mean_product = norm.average(sums, x.numel() // x.shape[1], statistics).chunk(2)
    # weight * invstd * (grad - mean_grad - (x - mean) * invstd * mean_product), as one sum of three terms
    scale, slope = weight * invstd, -weight * invstd.square() * mean_product
    offset = -scale * mean_grad - slope * mean
    x_grad = torch.addcmul(as_channels(offset), grad, as_channels(scale)).addcmul_(x, as_channels(slope))
    return x_grad.to(x.dtype), weight_grad, bias_grad


def _gradients_on_cuda(
    grad: Tensor, x: Tensor, weight: Tensor, statistics: Statistics, norm: BatchNorm2d
) -> tuple[Tensor, Tensor, Tensor]:
    grad, x, (mean, invstd, counts) = _dense(grad), _dense(x), statistics
    _, _, weight_grad, bias_grad = torch.batch_norm_backward_reduce(grad, x, mean, invstd, weight, False, True, True)
    # average() does the same all_reduce: saves_time() may choose it on a rank whose images have another size.
    sums = torch.cat([bias_grad, weight_grad])
    dist.all_reduce(sums)
    sum_grad, sum_product = sums[: len(mean)], sums[len(mean) :] / invstd
    x_grad = torch.batch_norm_backward_elemt(grad, x, mean, invstd, weight, sum_grad, sum_product, counts.int())
    return x_grad, weight_grad, bias_grad


def _has_kernels(x: Tensor) -> bool:
    return x.is_cuda


def _gather(mean: Tensor, spread: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return all processes' mean and spread, (world_size, C), and values per channel, (world_size, 1). Collective.

    spread: variance or 1 / standard deviation. The sizes of x (B, C, H, W) may differ between processes.
    """
    row = torch.cat([mean, spread, mean.new_full((1,), x.numel() // x.shape[1])])
    rows = row.new_empty(dist.get_world_size() * len(row))
    # Newer versions of torch deprecate the second name.
    all_gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
    all_gather(rows, row)
    means, spreads, counts = rows.view(-1, len(row)).split([len(mean), len(mean), 1], dim=1)
    return means, spreads, counts.clone()  # kept for the backward pass: a view would keep all of `rows`


def _dense(x: Tensor) -> Tensor:
    """Return x in channels-last order if it is so already, else contiguous."""
    return x if x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()


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
