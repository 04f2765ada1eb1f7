"""The losses that --loss adds up: cross entropy, focal, OHEM, Dice and Lovasz-Softmax.

Each is a sum over the given images, divided by a count over the global batch. The count depends on labels only, so it
is known before the first backward pass. An image is never split over ranks or micro-batches, so the parts add up to
the loss of one process on the whole global batch, and their gradients too.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from support.labels import IGNORE

PIXEL_LOSSES = ("seg", "seg_focal", "seg_ohem")  # the ones with class weights
REGION_LOSSES = ("seg_dice", "seg_lovasz")
LABEL_LOSSES = (*PIXEL_LOSSES, *REGION_LOSSES)


class LabelLosses:
    """Sums and counts of the losses on labels (B, H, W), uint8: 0..C-1, and 255 = ignore.

    With p the probability of a pixel's label, w the weight of that class, CE = -ln p:

    - seg: sum of w CE / sum of w
    - seg_focal: sum of w (1 - p)^gamma CE / sum of w (arXiv:1708.02002)
    - seg_ohem: sum of w CE over the hardest pixels of each image, those with the highest w CE / sum over images of
      their number times the mean w of the image's labelled pixels. The sum of w over the hardest pixels would depend
      on the prediction, this count does not. The hardest are ohem_fraction of the image's labelled pixels, rounded up
      (arXiv:1604.03540); with all pixels this is seg.
    - seg_dice: sum over pairs of an image and a class in its labels of 1 - 2 sum(p g) / (sum(p) + sum(g)) / number of
      pairs. The inner sums are over labelled pixels, p is the class's probability, g is 1 if it is the label
      (arXiv:1606.04797)
    - seg_lovasz: sum over the same pairs of the Lovasz extension of 1 - IoU / number of pairs (arXiv:1705.08790)

    names: the losses to compute, from LABEL_LOSSES. class_weights: w of each class; None: all 1.
    """

    def __init__(
        self,
        names: Collection[str],
        class_weights: Sequence[float] | None = None,
        focal_gamma: float = 2.0,
        ohem_fraction: float = 0.25,
    ):
        self.names, self.focal_gamma, self.ohem_fraction = names, focal_gamma, ohem_fraction
        self.by_pixel = any(name in PIXEL_LOSSES for name in names)
        self.linear = [name for name in names if name in PIXEL_LOSSES] == ["seg"]  # in each pixel's cross entropy
        self.by_region = any(name in REGION_LOSSES for name in names)
        self.weight_of = torch.ones(256, dtype=torch.float64)  # by label value
        self.weight_of[IGNORE] = 0
        if class_weights is not None:
            self.weight_of[: len(class_weights)] = torch.as_tensor(class_weights, dtype=torch.float64)
        self.weighted = class_weights is not None
        self._on_device = self.weight_of

    def counts(self, histogram: Tensor) -> dict[str, Tensor]:
        """Return {loss: float64 scalar}, what these images add to each loss's divisor.

        histogram: the number of pixels of each label value in each image, (B, 256) int64.
        """
        num_labelled = histogram[:, :IGNORE].sum(1)
        weight = histogram.double() @ self.weight_of  # (B, 256) -> (B,)
        kept_weight = _num_hardest(num_labelled, self.ohem_fraction) * weight / num_labelled.clamp(min=1)
        num_pairs = torch.count_nonzero(histogram[:, :IGNORE]).double()
        counts = {"seg": weight.sum(), "seg_focal": weight.sum(), "seg_ohem": kept_weight.sum()}
        counts |= {"seg_dice": num_pairs, "seg_lovasz": num_pairs}
        return {name: counts[name] for name in self.names}

    def pixel_sums(self, cross_entropy: Tensor, label: Tensor) -> dict[str, Tensor]:
        """Return {pixel loss: scalar}, each summed over these images, not divided by its count; differentiable.

        cross_entropy: (B, H, W), with the label (B, H, W); its values at ignored pixels must be finite.
        """
        weight = self.weights(label, cross_entropy.dtype)
        sums = {}
        if "seg" in self.names:
            sums["seg"] = (cross_entropy * weight).sum()
        if "seg_focal" in self.names:
            # Stay above 0: a power below 1 has no derivative there.
            missed = -torch.expm1(-cross_entropy).clamp(max=-torch.finfo(cross_entropy.dtype).tiny)
            sums["seg_focal"] = (missed**self.focal_gamma * cross_entropy * weight).sum()
        if "seg_ohem" in self.names:
            sums["seg_ohem"] = _hardest_sum(cross_entropy * weight, label != IGNORE, self.ohem_fraction)
        return sums

    def weights(self, label: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weight of each pixel's class, 0 at ignored pixels, of the given dtype. label: (B, H, W)."""
        if not self.weighted:
            return (label != IGNORE).to(dtype)
        if (self._on_device.device, self._on_device.dtype) != (label.device, dtype):
            self._on_device = self.weight_of.to(label.device, dtype)  # only once: the CPU waits for the copy
        return self._on_device[label.long()]

    def region_sums(self, probs: Tensor, label: Tensor, histogram: Tensor) -> dict[str, Tensor]:
        """Return {region loss: scalar}, each summed over these images, not divided by its count; differentiable.

        probs: (B, C, H, W), float32 or float64. label: (B, H, W) uint8. histogram: the number of pixels of each label
        value in each image, (B, 256), in CPU memory.
        """
        classes = [row.nonzero().flatten().tolist() for row in histogram[:, :IGNORE]]
        parts: dict[str, list[Tensor]] = {name: [] for name in self.names if name in REGION_LOSSES}
        # Use unbind: the backward pass of an index would fill a tensor of all classes for each index.
        for planes, values, present in zip(probs.flatten(2).unbind(), label.flatten(1), classes, strict=True):
            if not present:
                continue
            by_class = planes.unbind()
            p = torch.stack([by_class[number] for number in present])
            inside = torch.stack([values == number for number in present])
            labelled = values != IGNORE
            if "seg_dice" in parts:
                parts["seg_dice"].append(dice_sum(p, inside, labelled))
            if "seg_lovasz" in parts:
                parts["seg_lovasz"].append(lovasz_sum(p, inside, labelled))
        nothing = probs[:0].sum() if not any(classes) else None  # 0 with a gradient: DDP waits for one
        return {name: torch.stack(found).sum() if nothing is None else nothing for name, found in parts.items()}


def _num_hardest(num_labelled: Tensor, fraction: float) -> Tensor:
    return (fraction * num_labelled.double()).ceil()


def _hardest_sum(loss: Tensor, labelled: Tensor, fraction: float) -> Tensor:
    """Sum the highest losses, a fraction of each image's labelled pixels. Both (B, H, W); ignored pixels have loss 0.

    Pixels tied at the lowest of these losses share the remaining places, so the order of pixels does not matter.
    """
    loss, labelled = loss.flatten(1), labelled.flatten(1)
    with torch.no_grad():
        num_hardest = _num_hardest(labelled.sum(1, keepdim=True), fraction)
        # Sort instead of topk: the number differs between images, and the CPU does not know it.
        last = (num_hardest.long() - 1).clamp(min=0)
        edge = loss.sort(dim=1, descending=True).values.gather(1, last)
        above, at_edge = loss > edge, loss == edge
        share = (num_hardest - above.sum(1, keepdim=True)) / at_edge.sum(1, keepdim=True)
        kept = torch.where(at_edge, share.to(loss.dtype), above.to(loss.dtype))
    return (loss * kept).sum()


def dice_sum(p: Tensor, inside: Tensor, labelled: Tensor) -> Tensor:
    """Return the sum of 1 - 2 sum(p g) / (sum(p) + sum(g)) over an image's P classes, a scalar.

    p: (P, N), probabilities of P classes in N pixels. inside: (P, N) bool, g: whether the label is that class; every
    class has at least one pixel. labelled: (N,) bool.
    """
    both = (p * inside).sum(1)
    return (1 - 2 * both / ((p * labelled).sum(1) + inside.sum(1))).sum()


def lovasz_sum(p: Tensor, inside: Tensor, labelled: Tensor) -> Tensor:
    """Return the sum of the Lovasz extension of 1 - IoU at the errors |g - p| over an image's P classes, a scalar.

    p: (P, N), probabilities of P classes in N pixels. inside: (P, N) bool, g: whether the label is that class; every
    class has at least one pixel. labelled: (N,) bool.

    Sort the errors in falling order. The extension is the sum of each error times the growth of 1 - IoU when its pixel
    becomes wrong after all pixels before it.
    """
    errors = torch.where(inside, 1 - p, p)
    with torch.no_grad():
        # Ignored pixels come last: all pixels of the class are missed by then, so they add 0.
        order = errors.masked_fill(~labelled, -1.0).sort(dim=1, descending=True, stable=True).indices
        missed = inside.gather(1, order)
        size = inside.sum(1, keepdim=True)
        num_missed = missed.cumsum(1, dtype=torch.int32)  # --deterministic refuses it for floats
        rank = torch.arange(1, p.shape[1] + 1, device=p.device)
        union = (size + rank - num_missed).to(p.dtype)
        # 1 - I / U grows by 1 / U when a pixel of the class is missed, and by I / (U - 1) - I / U when a pixel of
        # another class joins the union. Closed forms, because the difference would lose digits.
        grows = torch.where(missed, 1 / union, (size - num_missed) / (union * (union - 1)))
        slope = torch.empty_like(p).scatter_(1, order, grows)
    return (errors * slope).sum()
