"""A 1x1 convolution and batch norm as one step of autograd, which keeps the convolution's input but not its output.

Let z be the input with its mean over the N pixels taken off, (N, C); W the kernel, (C_out, C); g the gradient at the
norm's result, (N, C_out); s = 1 / deviation; a = s gamma. The normalised output is s z W^T. So gamma's gradient is
s sum(g^T z * W) over C, and the output's gradient is a (g - mean(g)) - e z W^T with e = a s gamma' / N, gamma' being
gamma's gradient. Its products with z and W need only g^T z, z^T z and W^T e W, and nothing of C_out channels is
computed for each pixel.
"""

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from models.convolution import convolution_gradients, convolve
from models.fused import aten, norm_gradients, normalise, relu_again, uses_batch


def has_many_pixels(x: Tensor, conv: nn.Conv2d) -> bool:
    """Return whether the functions here cost no more time than the modules. On few pixels the kernel's products do."""
    return x.numel() // x.shape[1] // (conv.stride[0] * conv.stride[1]) > 2 * conv.out_channels


def conv_norm(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
    """Return norm(conv(x)); keep x. x: (B, C, H, W). conv: 1x1, without bias. Autocast computes in its own type."""
    device = x.device.type
    if device != "meta" and torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        x = x.to(torch.get_autocast_dtype(device))
    rows, columns = conv.stride
    kernel = conv.weight.to(x.dtype)
    return _ConvNorm.apply(x[:, :, ::rows, ::columns], kernel, norm.weight, norm.bias, norm)


def norm_relu_conv_norm_add_relu(
    x: Tensor, norm: nn.BatchNorm2d, conv: nn.Conv2d, last_norm: nn.BatchNorm2d, shortcut: Tensor
) -> Tensor:
    """Return relu(last_norm(conv(relu(norm(x)))) + shortcut), in x's type; keep x and the result.

    x: (B, C, H, W). conv: 1x1, with stride 1, without bias. shortcut: (B, C_out, H, W).
    """
    weights = norm.weight, norm.bias, conv.weight.to(x.dtype), last_norm.weight, last_norm.bias
    return _BottleneckEnd.apply(x, shortcut, *weights, norm, last_norm)


class _ConvNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, kernel: Tensor, gamma: Tensor, beta: Tensor, norm: nn.BatchNorm2d) -> Tensor:
        value, mean, invstd = normalise(convolve(x, kernel), norm)
        ctx.save_for_backward(x, kernel, gamma, mean, invstd)
        ctx.of_batch = uses_batch(norm)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_gradients(grad, *ctx.saved_tensors, of_batch=ctx.of_batch), None


class _BottleneckEnd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shortcut, weight, bias, kernel, gamma, beta, norm, last_norm):
        middle, *statistics = normalise(x, norm)
        value, *last_statistics = normalise(convolve(middle.relu_(), kernel), last_norm)
        result = value.add_(shortcut).relu_()
        ctx.save_for_backward(x, weight, bias, *statistics, result, kernel, gamma, *last_statistics)
        ctx.of_batch, ctx.last_of_batch = uses_batch(norm), uses_batch(last_norm)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, invstd, result, *last = ctx.saved_tensors
        grad_shortcut = aten.threshold_backward(grad, result, 0)
        middle = relu_again(x, weight, bias, mean, invstd)
        grad, *last_grads = _gradients(grad_shortcut, middle, *last, of_batch=ctx.last_of_batch)
        grad = aten.threshold_backward(grad, middle, 0)
        del middle
        grad_x, *grads = norm_gradients(grad, x, weight, mean, invstd, of_batch=ctx.of_batch)
        return grad_x, grad_shortcut, *grads, *last_grads, None, None


def _gradients(
    grad: Tensor,
    x: Tensor,
    kernel: Tensor,
    gamma: Tensor,
    mean: Tensor,
    invstd: Tensor,
    *,
    of_batch: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, kernel, gamma and beta of norm(conv(x)), by the formulas of this file.

    grad: (B, C_out, H, W). x: (B, C, H, W). kernel: (C_out, C, 1, 1). mean, invstd: (C_out,), the statistics of
    conv(x). of_batch: they depend on x.
    """
    dtype, num_pixels = gamma.dtype, grad.numel() // grad.shape[1]
    w, a = kernel.flatten(1).to(dtype), gamma * invstd
    scaled = a.unsqueeze(1) * w
    if of_batch:
        x = (x - x.mean((0, 2, 3), keepdim=True, dtype=dtype)).to(x.dtype)
    grad_x, product = _products(grad, x, scaled)
    grad_beta = grad.sum((0, 2, 3), dtype=dtype)
    moment = (product * w).sum(1)  # sum over pixels of g times conv(x), without its mean if of_batch
    grad_gamma = invstd * (moment if of_batch else moment - mean * grad_beta)
    grad_w = a.unsqueeze(1) * product
    if of_batch:
        weighted = (a * invstd * grad_gamma / num_pixels).unsqueeze(1) * w  # e W
        correction, squares = _products(x, x, w.T @ weighted)
        constant = (grad_beta / num_pixels) @ scaled
        grad_x = grad_x.sub_(correction).sub_(constant.to(grad_x.dtype).view(1, -1, 1, 1))
        grad_w = grad_w - weighted @ squares
    # DDP copies, and warns of, gradients whose strides are not the parameter's.
    grad_kernel = grad_w.to(kernel.dtype).as_strided(kernel.shape, kernel.stride())
    return grad_x, grad_kernel, grad_gamma, grad_beta


def _products(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return (g w, g^T x) over pixels: (B, C, H, W) and (C_out, C). g: (B, C_out, H, W). x: (B, C, H, W).

    These are a convolution's gradients, so that they have its precision: on CUDA, TF32 as for other convolutions.
    """
    geometry = (1, 1), (0, 0), (1, 1)
    grad_x, grad_w = convolution_gradients(g, x, w.to(x.dtype)[:, :, None, None], *geometry, wanted=[True, True])
    assert grad_x is not None
    assert grad_w is not None
    return grad_x, grad_w.flatten(1).to(w.dtype)
