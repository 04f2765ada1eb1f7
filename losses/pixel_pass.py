"""One pass over the upsampled logits, in bands of rows: cross entropies, entropy, and their gradient.

The full-size logits never exist. Upsampling is linear and separable, so a band of rows is the product of two small
matrices with the logits; the transposed products take the band's gradient back to low resolution. No sum depends on
timing, so results repeat bit for bit, on CUDA too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from losses.upsampling import Axis

# Bytes of a band: on the CPU it stays in the cache; on a GPU each operation costs a launch.
CPU_BAND, GPU_BAND = 2**20, 2**26
MIN_ROWS = 8  # with fewer, matrix products are slow


@dataclass
class CrossEntropy:
    """Cross entropy of each pixel with the target (1 - smooth) * one-hot + smooth / C.

    label: (B, H, W) uint8; values from C on, such as 255, stand for class C - 1. slope: (B, H, W), the derivative of
    the loss by each pixel's cross entropy, 0 at ignored pixels; None: the loss does not depend on it.
    """

    label: Tensor
    slope: Tensor | None = None
    smooth: float = 0.0


class PixelPass:
    """The maps (B, H, W) of logits upsampled as by F.interpolate's bilinear mode, and their gradient. Call run() once.

    Nothing is differentiable, and nothing makes the CPU wait for a GPU. Call it outside of torch.autocast.

    logits: (B, C, h, w), float32 or float64. size: (H, W). entropy_slope: (B, H, W); None: no entropy.
    cross_entropies: one map for each of `targets`. entropy: of the softmax. predicted: classes, int64, if `predict`.
    gradient: (B, C, h, w), of the sum over pixels of slope * cross entropy and entropy_slope * entropy.
    """

    def __init__(
        self,
        logits: Tensor,
        size: Sequence[int],
        targets: Sequence[CrossEntropy] = (),
        entropy_slope: Tensor | None = None,
        *,
        predict: bool = False,
        align_corners: bool = True,
    ):
        self.logits, self.targets, self.entropy_slope = logits.detach(), targets, entropy_slope
        self.num_images, self.num_classes, low_height, low_width = logits.shape
        (self.height, self.width), self.last_class = size, min(self.num_classes - 1, 255)
        self.down, across = Axis(low_height, self.height, align_corners), Axis(low_width, self.width, align_corners)
        self.row_weights, self.column_weights = self.down.matrix(logits), across.matrix(logits)  # (H, h), (W, w)

        def new_map(dtype: torch.dtype = logits.dtype) -> Tensor:
            return logits.new_empty((self.num_images, *size), dtype=dtype)

        self.cross_entropies = [new_map() for _ in targets]
        self.entropy = None if entropy_slope is None else new_map()
        self.predicted = new_map(torch.int64) if predict else None
        self.gradient: Tensor | None = None

    @torch.no_grad()
    def run(self, *, gradient: bool = True) -> "PixelPass":
        """Fill the maps, and compute the gradient if wanted."""
        row_bytes = self.num_classes * self.width * self.logits.element_size()
        band_bytes = CPU_BAND if self.logits.device.type == "cpu" else GPU_BAND
        num_rows = min(max(band_bytes // row_bytes, MIN_ROWS), self.height)
        buffers = self.logits.new_empty(2, num_rows, self.num_classes, self.width)
        if gradient:
            self.gradient = self._smoothing_gradient()
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
                self._band(z, work, (image, rows), gradient=gradient)
                if gradient:
                    wide_gradient[inputs].addmm_(weights.T, work.flatten(1))
            if self.gradient is not None:
                low = wide_gradient.view(-1, self.width) @ self.column_weights
                self.gradient[image] += low.unflatten(0, (-1, self.num_classes)).transpose(0, 1)
        return self

    def _band(self, z: Tensor, work: Tensor, place: tuple[int, slice], *, gradient: bool) -> None:
        """Fill a band of one image's maps from its logits z (rows, C, W), which are overwritten.

        Then `work` is the gradient of the loss by these logits, without label smoothing's part. With p the softmax, it
        is slope * (p - target) for cross entropy, and -slope * p * (ln p + entropy) = slope * p * (mean - z) for the
        entropy, where mean is that of z by p.
        """
        labels = [target.label[place].clamp(max=self.last_class).long().unsqueeze(1) for target in self.targets]
        z -= z.amax(1, keepdim=True)
        if self.predicted is not None:
            self.predicted[place] = z.argmax(1)
        total = torch.exp(z, out=work).sum(1, keepdim=True)
        log_sum = total.log()
        for target, label, values in zip(self.targets, labels, self.cross_entropies, strict=True):
            value = z.gather(1, label).mul_(target.smooth - 1).add_(log_sum)
            if target.smooth:
                value.sub_(z.mean(1, keepdim=True), alpha=target.smooth)
            values[place] = value.squeeze(1)
        slopes = [target.slope[place].unsqueeze(1) for target in self.targets if target.slope is not None]
        factor = sum(slopes[1:], start=slopes[0]) if slopes else torch.zeros_like(total)
        if self.entropy is not None and self.entropy_slope is not None:
            mean = z.mul_(work).sum(1, keepdim=True).div_(total)
            self.entropy[place] = (log_sum - mean).squeeze(1)
            if gradient:
                slope = self.entropy_slope[place].unsqueeze(1)
                work.mul_(mean.mul_(slope).add_(factor).div_(total)).addcmul_(z, slope / total, value=-1)
        elif gradient:
            work.mul_(factor / total)
        if gradient:
            for target, label, slope in zip(self.targets, labels, slopes, strict=True):
                work.scatter_add_(1, label, slope * (target.smooth - 1))

    def _smoothing_gradient(self) -> Tensor:
        """Return the gradient of label smoothing by the logits: -smooth / C * slope for each class of a pixel."""
        gradient = torch.zeros_like(self.logits)
        for target in self.targets:
            if target.smooth and target.slope is not None:
                low = self.row_weights.T @ target.slope @ self.column_weights  # (B, H, W) -> (B, h, w)
                gradient -= (target.smooth / self.num_classes * low).unsqueeze(1)
        return gradient
