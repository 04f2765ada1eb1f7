"""The gradients of depthwise convolutions, faster on the CPU.

oneDNN has fast code for every forward pass, but not for the backward pass of a kernel that is dilated, strided or
larger than 3x3. Forward convolutions compute both gradients up to 15 times as fast (benchmarks/RESULTS.md).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

Pair = tuple[int, ...]  # of heights and widths


def depthwise_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, *geometry: Pair, wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of x (B, C, H, W) and weight (C, 1, k, k), each None if not `wanted`.

    grad: the gradient of F.conv2d(x, weight, None, *geometry, groups=C). geometry: stride, padding, dilation.
    """
    grad_x = _input_gradient(grad, x, weight, *geometry) if wanted[0] else None
    return grad_x, _weight_gradient(grad, x, weight, *geometry) if wanted[1] else None


def _input_gradient(grad: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """Return x's gradient: `grad`, spread with zeros in between for a stride, convolved by the mirrored kernel."""
    num_channels, size = x.shape[1], weight.shape[2:]
    reach = [step * (length - 1) for step, length in zip(dilation, size, strict=True)]
    outer = [far - pad for far, pad in zip(reach, padding, strict=True)]
    if min(outer) < 0 or (max(stride) > 1 and x.dtype != torch.bfloat16):  # a stride is fast in these types
        geometry = stride, padding, dilation, False, [0, 0], num_channels
        return torch.ops.aten.convolution_backward(grad, x, weight, None, *geometry, [True, False, False])[0]
    if tuple(stride) != (1, 1):
        # As long as the output of stride 1, so that the result is as long as x.
        lengths = [n + 2 * pad - far for n, pad, far in zip(x.shape[2:], padding, reach, strict=True)]
        spread = grad.new_zeros((grad.shape[0], *lengths, num_channels)).permute(0, 3, 1, 2)  # channels last
        spread[:, :, :: stride[0], :: stride[1]] = grad
        grad = spread
    return F.conv2d(grad, weight.flip(2, 3), None, 1, outer, dilation, num_channels)


def _weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """Return the weight's gradient. It sums, over images, x convolved by `grad` with stride and dilation exchanged."""
    num_channels, _, *size = weight.shape
    if max(size) <= 3 and max(dilation) == 1:
        geometry = stride, padding, dilation, False, [0, 0], num_channels
        return torch.ops.aten.convolution_backward(grad, x, weight, None, *geometry, [False, True, False])[1]
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    total = torch.zeros((1, num_channels, *size), dtype=dtype, device=x.device)
    for image, kernel in zip(x.split(1), grad.split(1), strict=True):
        kernel = kernel.transpose(0, 1)  # (1, C, H, W) -> (C, 1, H, W)
        # A stride may leave out the last rows and columns of x, which here give further values.
        total += F.conv2d(image, kernel, None, dilation, padding, stride, num_channels)[:, :, : size[0], : size[1]]
    return total.transpose(0, 1).to(weight.dtype)
