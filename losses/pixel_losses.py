"""The losses that are sums over pixels, from low-resolution logits to their gradient."""

from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from losses.pixel_pass import CrossEntropy, PixelPass
from losses.upsampling import sample
from support.labels import IGNORE, POINTS

ACCURACY = "batch_acc"  # the metric of Criterion(accuracy=True)
ENTROPIES = {"ds": "distance_s", "dc": "distance_c"}  # the map that weights the entropy


class PixelLosses:
    """Sums over pixels: Criterion's seg, pseudo, ds, dc and ACCURACY. Other names are left out.

    weight_of: the weight in seg of each label value, (256,) float64, 0 at 255. accuracy_map: the label map of ACCURACY.
    """

    def __init__(
        self,
        names: Collection[str],
        class_weights: Sequence[float] | None,
        label_smooth: float,
        accuracy_map: str,
    ):
        self.names = [name for name in names if name in ("seg", "pseudo", *ENTROPIES, ACCURACY)]
        self.label_smooth, self.accuracy_map = label_smooth, accuracy_map
        self.weight_of = torch.ones(256, dtype=torch.float64)
        self.weight_of[IGNORE] = 0
        self.weighted = class_weights is not None
        if class_weights is not None:
            self.weight_of[: len(class_weights)] = torch.as_tensor(class_weights, dtype=torch.float64)
        self._on_device = self.weight_of

    def __call__(
        self, logits: Tensor, batch: dict[str, Tensor], scales: dict[str, float]
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return {name: sum over pixels, a scalar}, and a gradient for add_gradient().

        logits: (B, C, h, w), float32 or float64. batch: as for Criterion. The gradient is that of the total, the sum
        over names of scales[name] * sums[name], by the logits; the sums are detached. If seg is the only name and the
        batch has labels.POINTS, the sum is differentiable instead, and the gradient is None. It is also None without a
        name.
        """
        if not self.names:
            return {}, None
        if POINTS in batch and self.names == ["seg"]:
            return {"seg": self._sum_at(batch[POINTS], logits, batch["label"])}, None
        return self._sums_of_all(logits, batch, scales)

    def _sum_at(self, points: Tensor, logits: Tensor, label: Tensor) -> Tensor:
        """Return seg of a label (B, H, W) whose labelled pixels are at `points`, places in the flat label."""
        classes = label.flatten().index_select(0, points).long()
        values = F.cross_entropy(sample(logits, label.shape[1:], points), classes, reduction="none")
        cross_entropy = values.new_zeros(label.numel()).index_copy(0, points, values).view(label.shape)
        return (cross_entropy * self._weights(label, values.dtype)).sum()

    def _sums_of_all(
        self, logits: Tensor, batch: dict[str, Tensor], scales: dict[str, float]
    ) -> tuple[dict[str, Tensor], Tensor]:
        dtype, targets, weights = logits.dtype, [], {}
        if "seg" in self.names:
            weights["seg"] = self._weights(batch["label"], dtype)
            targets.append(CrossEntropy(batch["label"], scales["seg"] * weights["seg"]))
        if "pseudo" in self.names:
            weights["pseudo"] = (batch["pseudo"] != IGNORE).to(dtype)
            targets.append(CrossEntropy(batch["pseudo"], scales["pseudo"] * weights["pseudo"], self.label_smooth))
        entropy_weights = {name: batch[ENTROPIES[name]].to(dtype) / 255 for name in ENTROPIES if name in self.names}
        slopes = [scales[name] * weight for name, weight in entropy_weights.items()]
        entropy_slope = sum(slopes[1:], start=slopes[0]) if slopes else None

        size, predict = batch["image"].shape[1:3], ACCURACY in self.names
        maps = PixelPass(logits, size, targets, entropy_slope, predict=predict).run()
        sums = {
            name: (values * weight).sum()
            for (name, weight), values in zip(weights.items(), maps.cross_entropies, strict=True)
        }
        if maps.entropy is not None:
            sums |= {name: (maps.entropy * weight).sum() for name, weight in entropy_weights.items()}
        if maps.predicted is not None:
            sums[ACCURACY] = torch.count_nonzero(maps.predicted == batch[self.accuracy_map])
        return sums, maps.gradient

    def _weights(self, label: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weight of each pixel's class, 0 at ignored pixels, of the given dtype. label: (B, H, W)."""
        if not self.weighted:
            return (label != IGNORE).to(dtype)
        if (self._on_device.device, self._on_device.dtype) != (label.device, dtype):
            self._on_device = self.weight_of.to(label.device, dtype)  # only once: the CPU waits for the copy
        return self._on_device[label.long()]


def add_gradient(loss: Tensor, logits: Tensor, gradient: Tensor | None) -> Tensor:
    """Return the loss, a scalar, such that its backward pass also adds `gradient` to that of the logits.

    The result has no second derivative: the gradient is a constant, as torch's linear_cross_entropy has it.
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
