"""One pass over the upsampled logits, in bands of rows, computes cross entropies, the entropy, and their gradient.

The full-size logits never exist. Upsampling is linear and separable, so a band of rows is the product of two small
matrices with the logits; the transposed products take the band's gradient back to low resolution. Results repeat bit
for bit, because no sum depends on timing.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from losses.upsampling import Axis

# Bytes of a band: on the CPU it stays in the cache; on a GPU each operation costs a launch.
CPU_BAND, GPU_BAND = 2**20, 2**26
MIN_ROWS = 8  # with fewer, matrix products are slow


class CrossEntropy(NamedTuple):
    """Cross entropy of each pixel with the target (1 - smooth) * one-hot + smooth / C.

    label: (B, H, W) uint8; values from C on, such as 255, stand for class C - 1. slope: (B, H, W), the derivative of
    the loss by each pixel's cross entropy, 0 at ignored pixels.
    """

    label: Tensor
    slope: Tensor
    smooth: float = 0.0


class PixelPass:
    """The maps (B, H, W) of logits upsampled as by F.interpolate's bilinear mode, and their gradient. Call run() once.

    Nothing is differentiable, and nothing makes the CPU wait for a GPU. Call it outside torch.autocast.

    logits: (B, C, h, w), float32 or float64. size: (H, W). entropy_slope: (B, H, W); None: no entropy.
    cross_entropies: one map per item of `targets`. entropy: the softmax's. gradient: (B, C, h, w), the derivative of
    slope * cross entropy + entropy_slope * entropy, summed over pixels.
    """

    def __init__(
        self,
        logits: Tensor,
        size: Sequence[int],
        targets: Sequence[CrossEntropy] = (),
        entropy_slope: Tensor | None = None,
    ):
        self.logits, self.targets, self.entropy_slope = logits.detach(), targets, entropy_slope
        self.num_images, self.num_classes, low_height, low_width = logits.shape
        (self.height, self.width), self.last_class = size, min(self.num_classes - 1, 255)
        self.down, self.across = Axis(low_height, size[0]), Axis(low_width, size[1])
        self.row_weights, self.column_weights = self.down.matrix(logits), self.across.matrix(logits)  # (H, h), (W, w)

        shape = self.num_images, *size
        self.cross_entropies = [self.logits.new_empty(shape) for _ in targets]
        self.entropy = None if entropy_slope is None else self.logits.new_empty(shape)
        self.gradient: Tensor

    @torch.no_grad()
    def run(self, kernel: Callable[["PixelPass"], Tensor] | None = None) -> "PixelPass":
        """Fill the maps, and compute the gradient. kernel: used in place of run_bands(), if given."""
        self.gradient = (kernel(self) if kernel else self.run_bands()) + self._smoothing_gradient()
        return self

    def run_bands(self) -> Tensor:
        """Fill the maps; return the gradient (B, C, h, w) without label smoothing's part."""
        row_bytes = self.num_classes * self.width * self.logits.element_size()
        band_bytes = CPU_BAND if self.logits.device.type == "cpu" else GPU_BAND
        num_rows = min(max(band_bytes // row_bytes, MIN_ROWS), self.height)
        buffers = self.logits.new_empty(2, num_rows, self.num_classes, self.width)
        collected = torch.empty_like(self.logits)
        for image, logits in enumerate(self.logits):
            # (C, h, w) -> (h, C, W): classes lie between rows and columns, where sums over them are fast
            low = logits.transpose(0, 1).flatten(0, 1)
            wide = (low @ self.column_weights.T).view(-1, self.num_classes * self.width)
            wide_gradient = torch.zeros_like(wide)
            for first in range(0, self.height, num_rows):
                rows = slice(first, min(first + num_rows, self.height))
                inputs = self.down.inputs(rows.start, rows.stop)
                weights = self.row_weights[rows, inputs]
                z, work = buffers[:, : len(weights)]  # (rows, C, W)
                torch.mm(weights, wide[inputs], out=z.flatten(1))
                self._band(z, work, (image, rows))
                wide_gradient[inputs].addmm_(weights.T, work.flatten(1))
            low = wide_gradient.view(-1, self.width) @ self.column_weights
            collected[image] = low.unflatten(0, (-1, self.num_classes)).transpose(0, 1)
        return collected

    def _band(self, z: Tensor, work: Tensor, place: tuple[int, slice]) -> None:
        """Fill a band of one image's maps from its logits z (rows, C, W), which are overwritten.

        Then `work` is the gradient of the loss by these logits, without label smoothing's part. Let p be the softmax.
        Cross entropy adds slope * (p - target). The entropy adds -slope * p * (ln p + entropy), which equals
        slope * p * (mean - z), where mean is sum(p * z).
        """
        labels = [target.label[place].clamp(max=self.last_class).long().unsqueeze(1) for target in self.targets]
        z -= z.amax(1, keepdim=True)
        total = torch.exp(z, out=work).sum(1, keepdim=True)
        log_sum = total.log()
        for target, label, values in zip(self.targets, labels, self.cross_entropies, strict=True):
            value = z.gather(1, label).mul_(target.smooth - 1).add_(log_sum)
            if target.smooth:
                value.sub_(z.mean(1, keepdim=True), alpha=target.smooth)
            values[place] = value.squeeze(1)
        slopes = [target.slope[place].unsqueeze(1) for target in self.targets]
        factor = sum(slopes[1:], start=slopes[0]) if slopes else torch.zeros_like(total)
        if self.entropy is not None and self.entropy_slope is not None:
            mean = z.mul_(work).sum(1, keepdim=True).div_(total)
            self.entropy[place] = (log_sum - mean).squeeze(1)
            slope = self.entropy_slope[place].unsqueeze(1)
            work.mul_(mean.mul_(slope).add_(factor).div_(total)).addcmul_(z, slope / total, value=-1)
        else:
            work.mul_(factor / total)
        for target, label, slope in zip(self.targets, labels, slopes, strict=True):
            work.scatter_add_(1, label, slope * (target.smooth - 1))

    def _smoothing_gradient(self) -> Tensor:
        """Return the gradient of label smoothing, equal for all classes: -smooth / C * slope; (B, 1, h, w)."""
        low = self.logits.new_zeros(self.num_images, 1, *self.logits.shape[2:])
        for target in self.targets:
            if target.smooth:
                slope = self.row_weights.T @ target.slope @ self.column_weights  # (B, H, W) -> (B, h, w)
                low -= (target.smooth / self.num_classes * slope).unsqueeze(1)
        return low


def add_gradient(loss: Tensor, logits: Tensor, gradient: Tensor | None) -> Tensor:
    """Return the scalar loss; its backward pass adds `gradient`, times the upstream gradient, to the logits' gradient.

    `gradient` is a constant, so there is no second derivative (as in torch's linear_cross_entropy).
    """
    return loss if gradient is None else _AddGradient.apply(loss, logits, gradient)


class _AddGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss: Tensor, logits: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return upstream, upstream * gradient, None
