"""The losses that are sums over pixels, from low-resolution logits to their gradient."""

from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from losses.label_losses import PIXEL_LOSSES, LabelLosses
from losses.pixel_pass import CrossEntropy, PixelPass
from losses.points import sample
from support.labels import IGNORE, POINTS

ACCURACY = "batch_acc"  # the metric of Criterion(accuracy=True)
ENTROPIES = {"ds": "distance_s", "dc": "distance_c"}  # the map that weights the entropy


class PixelLosses:
    """Sums over pixels: the pixel losses of LabelLosses, and Criterion's pseudo, ds, dc and ACCURACY.

    names: the ones to compute, others are left out. accuracy_map: the label map of ACCURACY.
    """

    def __init__(self, names: Collection[str], label_losses: LabelLosses, label_smooth: float, accuracy_map: str):
        self.names = [name for name in names if name in (*PIXEL_LOSSES, "pseudo", *ENTROPIES, ACCURACY)]
        self.label_losses, self.label_smooth, self.accuracy_map = label_losses, label_smooth, accuracy_map

    def __call__(
        self, logits: Tensor, batch: dict[str, Tensor], scales: dict[str, float]
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return {name: sum over pixels, a scalar}, and a gradient for add_gradient().

        logits: (B, C, h, w), float32 or float64. batch: as for Criterion. The gradient is that of the total, the sum
        over names of scales[name] * sums[name], by the logits; the sums are detached. If all losses are on "label" and
        the batch has labels.POINTS, the sums are differentiable instead, and the gradient is None. It is also None if
        the logits need none, or without a pixel loss.
        """
        if not self.names:
            return {}, None
        if POINTS in batch and set(self.names) <= set(PIXEL_LOSSES):
            return self._sums_at(batch[POINTS], logits, batch["label"]), None
        return self._sums_of_all(logits, batch, scales)

    def _sums_at(self, points: Tensor, logits: Tensor, label: Tensor) -> dict[str, Tensor]:
        """Return the losses on a label (B, H, W) whose labelled pixels are at `points`, places in the flat label."""
        classes = label.flatten().index_select(0, points).long()
        values = F.cross_entropy(sample(logits, label.shape[1:], points), classes, reduction="none")
        cross_entropy = values.new_zeros(label.numel()).index_copy(0, points, values)
        return self.label_losses.pixel_sums(cross_entropy.view(label.shape), label)

    def _sums_of_all(
        self, logits: Tensor, batch: dict[str, Tensor], scales: dict[str, float]
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        dtype, targets, weights = logits.dtype, {}, {}
        sums: dict[str, Tensor] = {}
        if self.label_losses.linear:
            weights["seg"] = self.label_losses.weights(batch["label"], dtype)
            targets["seg"] = CrossEntropy(batch["label"], scales["seg"] * weights["seg"])
        elif self.label_losses.by_pixel:
            sums, slope = self._on_label(logits, batch["label"], scales)
            targets["label"] = CrossEntropy(batch["label"], slope)
        if "pseudo" in self.names:
            weights["pseudo"] = (batch["pseudo"] != IGNORE).to(dtype)
            targets["pseudo"] = CrossEntropy(batch["pseudo"], scales["pseudo"] * weights["pseudo"], self.label_smooth)
        entropy_weights = {name: batch[ENTROPIES[name]].to(dtype) / 255 for name in ENTROPIES if name in self.names}
        slopes = [scales[name] * weight for name, weight in entropy_weights.items()]
        entropy_slope = sum(slopes[1:], start=slopes[0]) if slopes else None

        size, predict = batch["image"].shape[1:3], ACCURACY in self.names
        maps = PixelPass(logits, size, list(targets.values()), entropy_slope, predict=predict)
        maps.run(gradient=logits.requires_grad)
        cross_entropies = dict(zip(targets, maps.cross_entropies, strict=True))
        sums |= {name: (cross_entropies[name] * weight).sum() for name, weight in weights.items()}
        if maps.entropy is not None:
            sums |= {name: (maps.entropy * weight).sum() for name, weight in entropy_weights.items()}
        if maps.predicted is not None:
            sums[ACCURACY] = torch.count_nonzero(maps.predicted == batch[self.accuracy_map])
        return sums, maps.gradient

    def _on_label(self, logits: Tensor, label: Tensor, scales: dict[str, float]) -> tuple[dict[str, Tensor], Tensor]:
        """Return {loss on the label: sum}, and the slope of their weighted sum by each pixel's cross entropy.

        Focal loss and OHEM are no weighted sum of cross entropies, so these come first, in a pass of their own.
        """
        maps = PixelPass(logits, label.shape[1:], [CrossEntropy(label)]).run(gradient=False)
        with torch.enable_grad():
            cross_entropy = maps.cross_entropies[0].requires_grad_()
            sums = self.label_losses.pixel_sums(cross_entropy, label)
            total = torch.stack([scales[name] * value for name, value in sums.items()]).sum()
        [slope] = torch.autograd.grad(total, cross_entropy)
        return {name: value.detach() for name, value in sums.items()}, slope


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
