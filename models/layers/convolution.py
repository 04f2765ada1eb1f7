"""Convolutions whose backward pass is faster on the CPU, and timm's padding "same"."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Pair = tuple[int, ...]  # of heights and widths


class Conv2d(nn.Conv2d):
    """nn.Conv2d with a faster backward pass on the CPU, for 1x1, dilated and depthwise kernels without bias.

    oneDNN's weight gradient of a dilated convolution also multiplies the padding: with a dilation of 24 on 25x25
    features, seven eighths of its products. weight_gradient() needs one matrix product per tap, without the padding.
    For depthwise kernels, oneDNN has fast code for every forward pass, but not for the backward pass if the kernel is
    dilated, strided or larger than 3x3. depthwise_gradients() computes both gradients by forward convolutions, up to 15
    times as fast (benchmarks/RESULTS.md). On the CPU there is no double backward for these kernels.
    """

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        depthwise = self.groups == self.in_channels == self.out_channels > 1
        simple = self.bias is None and self.padding_mode == "zeros" and not isinstance(self.padding, str)
        if (
            not (simple and (self.groups == 1 or depthwise))
            or x.device.type != "cpu"
            or not torch.is_grad_enabled()
            or torch.compiler.is_compiling()
        ):
            return super().forward(x)
        if torch.is_autocast_enabled("cpu") and x.dtype != torch.float64:  # as autocast does
            dtype = torch.get_autocast_dtype("cpu")
            x, weight = x.to(dtype), weight.to(dtype)
        return _Convolution.apply(x, weight, self.stride, self.padding, self.dilation)


class Conv2dSame(Conv2d):
    """timm's Conv2dSame: padded as in TensorFlow, with more at the end, so that ceil(size / stride) places remain."""

    def forward(self, x: Tensor) -> Tensor:
        pads: list[int] = []
        for axis in (1, 0):  # F.pad begins with the last dimension
            size, stride = x.shape[2 + axis], self.stride[axis]
            reach = self.dilation[axis] * (self.kernel_size[axis] - 1)
            total = reach + 1 - stride + -size % stride
            total = total if reach + 1 >= stride else max(0, total)  # torch.export is slow with max()
            pads += [total // 2, total - total // 2]
        return super().forward(F.pad(x, pads))


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, *geometry: tuple[int, ...]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        return convolve(x, weight, *geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradients = depthwise_gradients if weight.shape[1] < x.shape[1] else convolution_gradients
        return *gradients(grad, x, weight, *ctx.geometry, wanted=list(ctx.needs_input_grad[:2])), None, None, None


def convolve(
    x: Tensor, weight: Tensor, stride: Pair = (1, 1), padding: Pair = (0, 0), dilation: Pair = (1, 1)
) -> Tensor:
    """Return the convolution of x (B, C, H, W) by weight (C_out, C, kh, kw), or (C, 1, kh, kw) if depthwise."""
    groups = x.shape[1] // weight.shape[1]
    dilation = dilation if groups > 1 else for_onednn(x, weight, dilation)
    return F.conv2d(x, weight, None, stride, padding, dilation, groups)


def convolution_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair, *, wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of x and weight, each None if not `wanted`. grad: (B, C_out, H', W'), of convolve()."""
    step, reach = dilation[0], dilation[0] * (weight.shape[2] // 2)
    square = weight.shape[2] == weight.shape[3] and weight.shape[2] % 2 == 1
    keeps_size = square and (*stride, *padding, *dilation) == (1, 1, reach, reach, step, step)
    by_taps = wanted[1] and x.device.type == "cpu" and keeps_size and taps_are_faster(weight, step, x)
    grad_x = grad_weight = None
    if wanted[0] or not by_taps:
        geometry = stride, padding, for_onednn(x, weight, dilation), False, [0, 0], 1
        mask = [wanted[0], wanted[1] and not by_taps, False]
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(grad, x, weight, None, *geometry, mask)
    return grad_x, weight_gradient(grad, x, weight, step) if by_taps else grad_weight


def taps_are_faster(weight: Tensor, dilation: int, x: Tensor) -> bool:
    """Return whether weight_gradient() takes less time than oneDNN, from measurements (benchmarks/RESULTS.md).

    oneDNN skips padding in the other passes only. With few outputs, copies of the input cost more than the products.
    """
    size, num_outputs, (height, width) = weight.shape[2], weight.shape[0], x.shape[2:]
    if size == 1:
        return True
    # The share of the products that do not multiply padding.
    shifts = [abs(place - size // 2) * dilation for place in range(size)]
    rows, columns = (sum(max(0, length - shift) for shift in shifts) for length in (height, width))
    return rows * columns / (size**2 * height * width) < 0.4 or (dilation >= 4 and num_outputs >= 64)


def weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, dilation: int) -> Tensor:
    """Return the weight gradient (C_out, C, k, k) of a convolution with stride 1 that keeps height and width.

    grad: (B, C_out, H, W), the output's. x: (B, C, H, W). Each tap sums grad^T x where the tap is inside the map.
    """
    size, height, width = weight.shape[2], *x.shape[2:]
    grad, x = grad.permute(0, 2, 3, 1), x.permute(0, 2, 3, 1)  # (B, C, H, W) -> (B, H, W, C)
    result = torch.zeros_like(weight)
    for row in range(size):
        for column in range(size):
            down, right = ((place - size // 2) * dilation for place in (row, column))
            if abs(down) < height and abs(right) < width:
                out = grad[:, _overlap(height, -down), _overlap(width, -right)].flatten(0, 2)
                inside = x[:, _overlap(height, down), _overlap(width, right)].flatten(0, 2)
                result[:, :, row, column] = out.T @ inside
    return result


def _overlap(size: int, shift: int) -> slice:
    """Return the positions of a row that stay in it when moved by -shift."""
    return slice(max(0, shift), size + min(0, shift))


def for_onednn(x: Tensor, weight: Tensor, dilation: Pair) -> Pair:
    """Return the dilation, or 2 for a 1x1 kernel on the CPU: the same result, but torch then chooses oneDNN.

    torch's choice on one thread is slower for float32 1x1 convolutions that are not dilated.
    """
    return (2, 2) if weight.shape[2:] == (1, 1) and x.device.type == "cpu" else dilation


def depthwise_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, *geometry: Pair, wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of x (B, C, H, W) and weight (C, 1, k, k), each None if not `wanted`.

    grad: the gradient of F.conv2d(x, weight, None, *geometry, groups=C). geometry: stride, padding, dilation.
    """
    grad_x = _depthwise_input(grad, x, weight, *geometry) if wanted[0] else None
    return grad_x, _depthwise_weight(grad, x, weight, *geometry) if wanted[1] else None


def _depthwise_input(grad: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
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


def _depthwise_weight(grad: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
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
