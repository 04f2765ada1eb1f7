"""Batch norm, ReLU and convolution as one step of autograd, which keeps half of what the separate modules keep.

With the modules, autograd keeps the input of each batch norm and the output of the ReLU after it. These functions keep
only the input, which is the previous convolution's output. The backward pass recomputes the ReLU's output from it,
element by element (the idea of arXiv:1712.02616). A bottleneck of width C keeps 6 C channels instead of 12 C, because
models.layers.conv_norm does not keep the output of its last convolution either.

Each function computes what its modules compute, with float32 statistics if the input is bf16 or fp16. It updates the
running statistics as nn.BatchNorm2d does. There is no double backward. is_fusable() says when they may be used.
"""

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
    return _NormReLUThen.apply(x, norm.weight, norm.bias, None, norm, ())


def norm_relu_conv(x: Tensor, norm: BatchNorm2d, conv: nn.Conv2d, kernel: Tensor | None = None) -> Tensor:
    """Return conv(relu(norm(x))), in x's type; keep x. conv has no bias. kernel: its weights; None: all of conv's."""
    kernel = (conv.weight if kernel is None else kernel).to(x.dtype)
    geometry = conv.stride, conv.padding, conv.dilation
    return _NormReLUThen.apply(x, norm.weight, norm.bias, kernel, norm, geometry)


def norm_relu_pool(x: Tensor, norm: BatchNorm2d, pool: nn.MaxPool2d) -> Tensor:
    """Return pool(relu(norm(x))); keep x."""
    geometry = [pool.kernel_size] * 2, [pool.stride] * 2, [pool.padding] * 2, [pool.dilation] * 2, pool.ceil_mode
    return _NormReLUThen.apply(x, norm.weight, norm.bias, None, norm, geometry)


class _NormReLUThen(torch.autograd.Function):
    """relu(norm(x)), then a convolution if there is a kernel, a max pool if there is only a geometry, else nothing.

    geometry: (stride, padding, dilation) of the convolution, or (kernel size, stride, padding, dilation, ceil mode) of
    the pool, as torch takes them, or ().
    """

    @staticmethod
    def forward(
        ctx,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        kernel: Tensor | None,
        norm: BatchNorm2d,
        geometry: tuple,
    ) -> Tensor:
        value, statistics = norm.normalise(x)
        ctx.save_for_backward(x, weight, bias, kernel, *statistics)
        ctx.norm, ctx.of_batch, ctx.geometry = norm, norm.training, geometry
        value.relu_()
        if kernel is not None:
            return convolve(value, kernel, *geometry)
        return aten.max_pool2d_with_indices(value, *geometry)[0] if geometry else value

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, kernel, *statistics = ctx.saved_tensors
        value, grad_kernel = apply_statistics(x, weight, bias, statistics).relu_(), None
        if kernel is not None:
            wanted = [True, ctx.needs_input_grad[3]]
            grad_value, grad_kernel = convolution_gradients(grad, value, kernel, *ctx.geometry, wanted=wanted)
        elif ctx.geometry:
            pool = aten.max_pool2d_with_indices_backward
            grad_value = pool(grad, value, *ctx.geometry, aten.max_pool2d_with_indices(value, *ctx.geometry)[1])
        else:
            grad_value = grad
        grad = aten.threshold_backward(grad_value, value, 0)
        del value, grad_value
        grads = ctx.norm.gradients(grad, x, weight, statistics, of_batch=ctx.of_batch)
        return *grads, grad_kernel, None, None
