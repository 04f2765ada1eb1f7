"""A 1x1 convolution and batch norm as one step of autograd, which keeps the convolution's input but not its output.

Let z be the input minus c, its mean over this process's N pixels, (N, C); W the kernel, (C_out, C); d = W c - m, with m
the mean of the statistics, so that the output minus m is z W^T + d; g the gradient at the norm's result, (N, C_out);
s = 1 / deviation; a = s gamma. Then gamma's gradient is s (sum(g^T z * W) over C + d sum(g)), and the output's gradient
is a (g - g') - e (z W^T + d), with e = a s h'. Here g' and h' are the averages of g and of g times the normalised
output; their sums are the gradients of beta and gamma. They average all values that the statistics come from, which
are all processes' values if batch norm is synchronised. The products of the output's gradient with z and W need only
g^T z, z^T z and W^T e W. So no tensor of C_out channels per pixel is computed.
"""

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from models.layers.convolution import convolution_gradients, convolve
from models.layers.norm import BatchNorm2d, Statistics, apply_statistics, as_channels, aten


def saves_time(x: Tensor, conv: nn.Conv2d) -> bool:
    """Return whether to use these functions for this input x (B, C, H, W) of the convolution.

    With few pixels, products such as W^T e W cost more than they save. In fp16, z^T z overflows at any loss scale.
    """
    num_pixels = x.numel() // x.shape[1] // (conv.stride[0] * conv.stride[1])
    return num_pixels > 2 * conv.out_channels and x.dtype != torch.float16


def conv_norm(x: Tensor, conv: nn.Conv2d, norm: BatchNorm2d) -> Tensor:
    """Return norm(conv(x)); keep x. x: (B, C, H, W). conv: 1x1, without bias. Autocast computes in its own type."""
    device = x.device.type
    if device != "meta" and torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        x = x.to(torch.get_autocast_dtype(device))
    rows, columns = conv.stride
    kernel = conv.weight.to(x.dtype)
    return _ConvNorm.apply(x[:, :, ::rows, ::columns], kernel, norm.weight, norm.bias, norm)


def norm_relu_conv_norm_add_relu(
    x: Tensor, norm: BatchNorm2d, conv: nn.Conv2d, last_norm: BatchNorm2d, shortcut: Tensor
) -> Tensor:
    """Return relu(last_norm(conv(relu(norm(x)))) + shortcut), in x's type; keep x and the result.

    x: (B, C, H, W). conv: 1x1, with stride 1, without bias. shortcut: (B, C_out, H, W).
    """
    weights = norm.weight, norm.bias, conv.weight.to(x.dtype), last_norm.weight, last_norm.bias
    return _BottleneckEnd.apply(x, shortcut, *weights, norm, last_norm)


class _ConvNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, kernel: Tensor, gamma: Tensor, beta: Tensor, norm: BatchNorm2d) -> Tensor:
        value, statistics = norm.normalise(convolve(x, kernel))
        ctx.save_for_backward(x, kernel, gamma, *statistics)
        ctx.norm, ctx.of_batch = norm, norm.training
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel, gamma, *statistics = ctx.saved_tensors
        for_x = ctx.needs_input_grad[0]  # not above a frozen part of the backbone
        grads = _gradients(grad, x, kernel, gamma, statistics, ctx.norm, of_batch=ctx.of_batch, for_x=for_x)
        return *grads, None


class _BottleneckEnd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shortcut, weight, bias, kernel, gamma, beta, norm, last_norm):
        middle, statistics = norm.normalise(x)
        value, last_statistics = last_norm.normalise(convolve(middle.relu_(), kernel))
        result = value.add_(shortcut).relu_()
        ctx.save_for_backward(x, weight, bias, result, kernel, gamma, *statistics, *last_statistics)
        ctx.num_statistics = len(statistics)
        ctx.norms, ctx.of_batch = (norm, last_norm), (norm.training, last_norm.training)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, result, kernel, gamma, *saved = ctx.saved_tensors
        statistics, last_statistics = saved[: ctx.num_statistics], saved[ctx.num_statistics :]
        (norm, last_norm), (of_batch, last_of_batch) = ctx.norms, ctx.of_batch
        grad_shortcut = aten.threshold_backward(grad, result, 0)
        middle = apply_statistics(x, weight, bias, statistics).relu_()
        grad_middle, *last_grads = _gradients(
            grad_shortcut, middle, kernel, gamma, last_statistics, last_norm, of_batch=last_of_batch
        )
        assert grad_middle is not None
        grad = aten.threshold_backward(grad_middle, middle, 0)
        del middle
        grad_x, *grads = norm.gradients(grad, x, weight, statistics, of_batch=of_batch)
        return grad_x, grad_shortcut, *grads, *last_grads, None, None


def _gradients(
    grad: Tensor,
    x: Tensor,
    kernel: Tensor,
    gamma: Tensor,
    statistics: Statistics,
    norm: BatchNorm2d,
    *,
    of_batch: bool,
    for_x: bool = True,
) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """Return the gradients of x, kernel, gamma and beta of norm(conv(x)), by the formulas of this file.

    grad: (B, C_out, H, W). x: (B, C, H, W). kernel: (C_out, C, 1, 1). statistics: those of conv(x). of_batch: they
    depend on x. for_x: without it the gradient of x is None.
    """
    mean, invstd = statistics[:2]
    dtype, num_values = gamma.dtype, grad.numel() // grad.shape[1]
    w, a = kernel.flatten(1).to(dtype), gamma * invstd
    offset = -mean
    # With stored statistics x is not centred, to save time. In bf16, gamma's gradient then has 1.4 times the rounding
    # error of the separate modules where a channel's mean is ten times its deviation.
    if of_batch:
        centre = x.mean((0, 2, 3), dtype=dtype)
        x, offset = (x - as_channels(centre)).to(x.dtype), w @ centre - mean
    grad_x, product = _products(grad, x, a.unsqueeze(1) * w, for_x)
    grad_beta = grad.sum((0, 2, 3), dtype=dtype)
    grad_gamma = invstd * ((product * w).sum(1) + offset * grad_beta)
    grad_w = a.unsqueeze(1) * product
    if of_batch:
        mean_grad, mean_product = norm.average(torch.cat([grad_beta, grad_gamma]), num_values, statistics).chunk(2)
        slope = a * invstd * mean_product  # e
        constant = a * mean_grad + slope * offset
        weighted = slope.unsqueeze(1) * w
        correction, squares = _products(x, x, w.T @ weighted, for_x)
        if correction is not None and grad_x is not None:
            grad_x = grad_x.sub_(correction).sub_(as_channels(constant @ w).to(grad_x.dtype))
        grad_w = (grad_w - weighted @ squares).addr_(a * grad_beta - num_values * constant, centre)
    # DDP copies, and warns of, gradients whose strides are not the parameter's.
    grad_kernel = grad_w.to(kernel.dtype).as_strided(kernel.shape, kernel.stride())
    return grad_x, grad_kernel, grad_gamma, grad_beta


def _products(g: Tensor, x: Tensor, w: Tensor, for_x: bool) -> tuple[Tensor | None, Tensor]:
    """Return (g w, g^T x) over pixels: (B, C, H, W), or None without for_x, and (C_out, C).

    g: (B, C_out, H, W). x: (B, C, H, W). As gradients of a convolution, they have its precision: TF32 on CUDA.
    """
    geometry = (1, 1), (0, 0), (1, 1)
    grad_x, grad_w = convolution_gradients(g, x, w.to(x.dtype)[:, :, None, None], *geometry, wanted=[for_x, True])
    assert grad_w is not None
    return grad_x, grad_w.flatten(1).to(w.dtype)
