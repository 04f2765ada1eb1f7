"""Batch norm, ReLU and convolution as one step of autograd, which keeps half of what the separate modules keep.

With the modules, autograd keeps the input of each batch norm and the output of the ReLU after it. These functions keep
only the input, which is the previous convolution's output. The backward pass recomputes the ReLU's output from it,
element by element (the idea of arXiv:1712.02616). A bottleneck of width C keeps 6 C channels instead of 12 C, because
models.layers.conv_norm does not keep the output of its last convolution either.

Each function computes what its modules compute, with float32 statistics if the input is bf16 or fp16. It updates the
running statistics as nn.BatchNorm2d does. There is no double backward. is_fusable() says when they may be used.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from models.layers.convolution import convolution_gradients, convolve
from models.layers.norm import BatchNorm2d, apply_statistics, aten


def is_fusable(*norms: nn.Module) -> bool:
    """Return whether this file's functions may replace the modules. (A compiler recomputes by itself.)"""
    ours = all(
        isinstance(norm, BatchNorm2d)
        and norm.fused
        and norm.affine
        and norm.track_running_stats
        and norm.momentum is not None
        for norm in norms
    )
    return ours and torch.is_grad_enabled() and not torch.compiler.is_compiling()


def norm_relu(x: Tensor, norm: BatchNorm2d) -> Tensor:
    """Return relu(norm(x)); keep x. x: (B, C, H, W), as in all functions here."""
    return _NormReLUThen.apply(x, norm.weight, norm.bias, None, norm, None)


def norm_relu_conv(x: Tensor, norm: BatchNorm2d, conv: nn.Conv2d, kernel: Tensor | None = None) -> Tensor:
    """Return conv(relu(norm(x))), in x's type; keep x. conv has no bias. kernel: its weights; None: all of conv's."""
    then = _Conv((conv.stride, conv.padding, conv.dilation))
    kernel = (conv.weight if kernel is None else kernel).to(x.dtype)
    return _NormReLUThen.apply(x, norm.weight, norm.bias, kernel, norm, then)


def norm_relu_pool(x: Tensor, norm: BatchNorm2d, pool: nn.MaxPool2d) -> Tensor:
    """Return pool(relu(norm(x))); keep x."""
    then = _Pool(([pool.kernel_size] * 2, [pool.stride] * 2, [pool.padding] * 2, [pool.dilation] * 2, pool.ceil_mode))
    return _NormReLUThen.apply(x, norm.weight, norm.bias, None, norm, then)


class _NormReLUThen(torch.autograd.Function):
    """An operation on relu(norm(x)), or only that. kernel: the operation's weights, or None."""

    @staticmethod
    def forward(
        ctx,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        kernel: Tensor | None,
        norm: BatchNorm2d,
        then: "_Conv | _Pool | None",
    ) -> Tensor:
        value, statistics = norm.normalise(x)
        ctx.save_for_backward(x, weight, bias, kernel, *statistics)
        ctx.norm, ctx.of_batch, ctx.then = norm, norm.training, then
        value.relu_()
        return value if then is None else then.compute(value, kernel)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, kernel, *statistics = ctx.saved_tensors
        value, grad_kernel = apply_statistics(x, weight, bias, statistics).relu_(), None
        if ctx.then is not None:
            grad, grad_kernel = ctx.then.gradients(grad, value, kernel, ctx.needs_input_grad[3])
        grad = aten.threshold_backward(grad, value, 0)
        del value
        grads = ctx.norm.gradients(grad, x, weight, statistics, of_batch=ctx.of_batch)
        return *grads, grad_kernel, None, None


@dataclass
class _Conv:
    geometry: tuple  # stride, padding, dilation

    def compute(self, x: Tensor, kernel: Tensor | None) -> Tensor:
        assert kernel is not None
        return convolve(x, kernel, *self.geometry)

    def gradients(self, grad: Tensor, x: Tensor, kernel: Tensor, for_kernel: bool) -> tuple[Tensor | None, ...]:
        """Return the gradients of x and, if asked for, of the kernel."""
        return convolution_gradients(grad, x, kernel, *self.geometry, wanted=[True, for_kernel])


@dataclass
class _Pool:
    geometry: tuple  # torch's arguments: kernel size, stride, padding, dilation, ceil mode

    def compute(self, x: Tensor, kernel: Tensor | None) -> Tensor:
        return aten.max_pool2d_with_indices(x, *self.geometry)[0]

    def gradients(self, grad: Tensor, x: Tensor, kernel: None, for_kernel: bool) -> tuple[Tensor, None]:
        places = aten.max_pool2d_with_indices(x, *self.geometry)[1]
        return aten.max_pool2d_with_indices_backward(grad, x, *self.geometry, places), None
