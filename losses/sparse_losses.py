"""Losses for sparse labels: gated CRF, absent classes, and consistency with a teacher.

Each is a sum over the given images, divided by a count over the global batch. The count depends on labels and sizes
only, so it is known before the first backward pass.
"""

from collections.abc import Callable, Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from losses.gated_crf import gated_crf_sum
from losses.upsampling import average_down
from support.labels import IGNORE

SPARSE_LOSSES = ("crf", "absent", "consistency")  # each has a weight, --l_NAME
RGB_SCALE = ((0.0, 255.0),) * 3  # image_stats.colour_scale(None)


class SparseLosses:
    """Sums and counts of losses at the logits' resolution. With p the softmax of the logits at a position:

    - crf: sum of losses.gated_crf / number of positions (arXiv:1906.04651)
    - absent: sum of -ln(1 - p_c) over positions and the classes c without a label in the position's image / number
      of these pairs. It is the second term of the image-level loss of arXiv:1506.02106, over all positions and not at
      the highest p_c alone. An image without any label lacks no class.
    - consistency: sum of w -ln p_t over unlabelled positions / number of unlabelled positions, t being the class that a
      teacher predicts (arXiv:1703.01780), and w its weight: 0 where the teacher's probability is below a threshold
      (arXiv:2001.07685, equation 4)

    Positions count by the share of their pixels that lie inside the image, and are unlabelled for consistency: padding
    has no weight. So that a divisor depends on labels and sizes alone, the number of positions is the number of such
    pixels times hw / HW.

    names: the losses to compute, from SPARSE_LOSSES. colour_scale: of each channel of the images, (the value that
    becomes 0, the difference that becomes 1), for the colours of crf.
    """

    def __init__(self, names: Collection[str], colour_scale: Sequence[tuple[float, float]] = RGB_SCALE):
        self.names, self.colour_scale = names, colour_scale

    def counts(self, histogram: Callable[[], Tensor], inside: Tensor, present: Tensor | None) -> dict[str, Tensor]:
        """Return {loss: float64 scalar}, what these images add to each loss's divisor, in pixels.

        histogram: returns the number of pixels of each label value in each image, (B, 256). inside: the number of
        pixels inside each image, (B,). present: as in the batch; only for "absent".
        """
        counts = {"crf": inside.sum()} if "crf" in self.names else {}
        if "absent" in self.names:
            assert present is not None
            counts["absent"] = (inside * _absent(present).sum(1)).sum()
        if "consistency" in self.names:
            counts["consistency"] = inside.sum() - histogram()[:, :IGNORE].sum()
        return {name: count.double() for name, count in counts.items()}

    def sums(self, logits: Tensor, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return {loss: scalar}, each summed over these images, not divided by its count; differentiable.

        logits: (B, C, h, w), float32 or float64. batch: "image" (B, H, W, channels), "inside" (B, H, W) uint8, 1 inside
        the image; for absent, "present" (B, C) uint8, 1 for a class in the labels of the image; for consistency,
        "label" (B, H, W) uint8, "teacher_class" (B, h, w) int64 and "teacher_weight" (B, h, w).
        """
        if not self.names:
            return {}
        size = logits.shape[2:]
        inside = batch["inside"].to(logits.dtype)
        share = average_down(inside, size)
        sums = {}
        if "crf" in self.names:
            colours = self._colours(batch["image"], inside, share)
            sums["crf"] = gated_crf_sum(logits.softmax(1), colours, share)
        if "absent" in self.names:
            weight = _absent(batch["present"]).to(logits.dtype)
            sums["absent"] = -torch.einsum("bc,bchw,bhw->", weight, log_complement(logits), share)
        if "consistency" in self.names:
            unlabelled = average_down(inside * (batch["label"] == IGNORE), size)
            cross_entropy = F.cross_entropy(logits, batch["teacher_class"], reduction="none")
            sums["consistency"] = (cross_entropy * unlabelled * batch["teacher_weight"]).sum()
        pixels = inside[0].numel() / (size[0] * size[1])  # that a position stands for
        return {name: pixels * value for name, value in sums.items()}

    def _colours(self, images: Tensor, inside: Tensor, share: Tensor) -> Tensor:
        """Return the mean colour (B, channels, h, w) of each position's pixels inside the image, by colour_scale.

        One channel at a time: images (B, H, W, channels) would be large in floating point. A value that is not finite
        counts as the channel's zero, as the model has it.
        """
        planes = []
        for plane, (zero, unit) in zip(images.unbind(-1), self.colour_scale, strict=True):
            values = plane.to(inside.dtype) - zero
            values = torch.where(values.isfinite(), values, 0) * inside
            planes.append(average_down(values, share.shape[1:]) / unit)
        return torch.stack(planes, 1) / share.unsqueeze(1).clamp(min=torch.finfo(share.dtype).eps)


def log_complement(logits: Tensor) -> Tensor:
    """Return ln(1 - p), p being the softmax of logits (B, C, ...), for each class; exact also where p rounds to 1.

    Where p > 1/2, ln(1 - p) is the logarithm of the sum of the other classes' probabilities.
    """
    log_p = logits.log_softmax(1)
    probs = log_p.exp()
    most = probs > 0.5  # of one class at most
    others = log_p.masked_fill(most, -torch.inf).logsumexp(1, keepdim=True)
    return torch.where(most, others, torch.log1p(-probs.masked_fill(most, 0)))


def _absent(present: Tensor) -> Tensor:
    """Return which classes an image lacks, (B, C) bool; none if it has no label. present: (B, C) uint8."""
    return (present == 0) & present.any(1, keepdim=True)
