"""Batch norm, ReLU and convolution as one step of autograd, which keeps half of what the separate modules keep.

The modules keep two tensors for each convolution: its input, which ReLU returns, and its output, which batch norm
reads. These functions keep the second only. The backward pass computes the first from it again, element by element (the
idea of arXiv:1712.02616). A bottleneck of width C keeps 6 C channels instead of 12 C, because models.conv_norm does not
keep the output of its last convolution either.

Each function computes what its modules compute, with statistics in float32 if the input is bf16 or fp16, and updates
the running statistics as nn.BatchNorm2d does. There is no double backward. can_fuse() says when they may be used.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from models.convolution import convolution_gradients, convolve

aten = torch.ops.aten


def can_fuse(*norms: nn.Module) -> bool:
    """Return whether the functions of this file may replace these modules: in a forward pass that records gradients.

    Synchronised batch norm and other subclasses have a forward() of their own. A compiler recomputes by itself.
    """
    plain = all(type(norm) is nn.BatchNorm2d and norm.affine and norm.momentum is not None for norm in norms)
    return plain and torch.is_grad_enabled() and not torch.compiler.is_compiling()


def norm_relu(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """Return relu(norm(x)); keep x. x: (B, C, H, W), as in all functions here."""
    return _NormReLUThen.apply(x, norm.weight, norm.bias, None, norm, _Nothing())


def norm_relu_conv(x: Tensor, norm: nn.BatchNorm2d, conv: nn.Conv2d, kernel: Tensor | None = None) -> Tensor:
    """Return conv(relu(norm(x))), in x's type; keep x. conv has no bias. kernel: its weights; None: all of conv's."""
    assert not isinstance(conv.padding, str)
    then = _Conv(conv.stride, conv.padding, conv.dilation)
    kernel = (conv.weight if kernel is None else kernel).to(x.dtype)
    return _NormReLUThen.apply(x, norm.weight, norm.bias, kernel, norm, then)


def norm_relu_pool(x: Tensor, norm: nn.BatchNorm2d, pool: nn.MaxPool2d) -> Tensor:
    """Return pool(relu(norm(x))); keep x."""
    then = _Pool(([pool.kernel_size] * 2, [pool.stride] * 2, [pool.padding] * 2, [pool.dilation] * 2, pool.ceil_mode))
    return _NormReLUThen.apply(x, norm.weight, norm.bias, None, norm, then)


class Normalised(NamedTuple):
    """The result of batch norm, and the mean and 1 / deviation, each (C,), that it normalised by."""

    value: Tensor
    mean: Tensor
    invstd: Tensor


def uses_batch(norm: nn.BatchNorm2d) -> bool:
    """Return whether the norm uses the batch's statistics, not the running ones."""
    return norm.training or norm.running_mean is None


def normalise(x: Tensor, norm: nn.BatchNorm2d) -> Normalised:
    """Return the norm of x, and update the running statistics in training."""
    weights, mean, variance = (norm.weight, norm.bias), norm.running_mean, norm.running_var
    if not uses_batch(norm):
        assert mean is not None
        assert variance is not None
        value = torch.native_batch_norm(x, *weights, mean, variance, False, 0.0, norm.eps)[0]
        return Normalised(value, mean, (variance + norm.eps).rsqrt())
    if norm.training and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    assert norm.momentum is not None
    return Normalised(*torch.native_batch_norm(x, *weights, mean, variance, True, norm.momentum, norm.eps))


def relu_again(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, invstd: Tensor) -> Tensor:
    """Return relu of the normalised x, from the statistics of the forward pass."""
    return torch.native_batch_norm(x, weight, bias, mean, _variance(invstd), False, 0.0, 0.0)[0].relu_()


def norm_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, invstd: Tensor, *, of_batch: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias of batch norm. of_batch: mean and invstd depend on x."""
    running = mean, _variance(invstd)
    mask = [True, True, True]
    return aten.native_batch_norm_backward(grad, x, weight, *running, mean, invstd, of_batch, 0.0, mask)


def _variance(invstd: Tensor) -> Tensor:
    return invstd.square().reciprocal()


class _NormReLUThen(torch.autograd.Function):
    """An operation on relu(norm(x)). kernel: its weights, or None."""

    @staticmethod
    def forward(
        ctx, x: Tensor, weight: Tensor, bias: Tensor, kernel: Tensor | None, norm: nn.BatchNorm2d, then: "_Operation"
    ) -> Tensor:
        value, *statistics = normalise(x, norm)
        ctx.save_for_backward(x, weight, bias, kernel, *statistics)
        ctx.of_batch, ctx.then = uses_batch(norm), then
        return then.compute(value.relu_(), kernel)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, kernel, *statistics = ctx.saved_tensors
        value = relu_again(x, weight, bias, *statistics)
        grad, grad_kernel = ctx.then.gradients(grad, value, kernel, ctx.needs_input_grad[3])
        grad = aten.threshold_backward(grad, value, 0)
        del value
        return *norm_gradients(grad, x, weight, *statistics, of_batch=ctx.of_batch), grad_kernel, None, None


class _Operation(Protocol):
    def compute(self, x: Tensor, kernel: Tensor | None) -> Tensor:
        """Return the operation's result."""

    def gradients(
        self, grad: Tensor, x: Tensor, kernel: Tensor | None, for_kernel: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of x and, if asked for, of the kernel."""


class _Nothing:
    def compute(self, x: Tensor, kernel: None) -> Tensor:
        return x

    def gradients(self, grad: Tensor, x: Tensor, kernel: None, for_kernel: bool) -> tuple[Tensor, None]:
        return grad, None


class _Conv(NamedTuple):
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def compute(self, x: Tensor, kernel: Tensor) -> Tensor:
        return convolve(x, kernel, *self)

    def gradients(
        self, grad: Tensor, x: Tensor, kernel: Tensor, for_kernel: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        return convolution_gradients(grad, x, kernel, *self, wanted=[True, for_kernel])


class _Pool(NamedTuple):
    geometry: tuple  # torch's arguments: kernel size, stride, padding, dilation, ceil mode

    def compute(self, x: Tensor, kernel: None) -> Tensor:
        return aten.max_pool2d_with_indices(x, *self.geometry)[0]

    def gradients(self, grad: Tensor, x: Tensor, kernel: None, for_kernel: bool) -> tuple[Tensor, None]:
        places = aten.max_pool2d_with_indices(x, *self.geometry)[1]
        return aten.max_pool2d_with_indices_backward(grad, x, *self.geometry, places), None
