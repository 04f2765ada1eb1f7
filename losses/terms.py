"""The terms of the training loss: each class has all that belongs to one term."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from losses.crf import RAMP, crf_sum
from losses.upsampling import sample
from support.batch import Batch
from support.labels import IGNORE

TERMS: dict[str, type["Term"]] = {}  # by name


class Settings(NamedTuple):
    """What terms are made from."""

    label_smooth: float = 0.0  # for PseudoLabel
    class_weights: Sequence[float] | None = None  # for Label; None: all 1
    lorm_terms: int = 0  # squares in LoRM's sum per position of the foreground; 0: see LoRMTerm


class Term:
    """A term: its sum over this batch, divided by its count over the global batch; 0 if the count is 0.

    name: the name in the log. --l_NAME sets its weight, or --loss names it (flags/loss_weights.py). map: the field of a
    Batch that it needs. A class with a name registers itself in TERMS.
    """

    name: str
    map: str

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            TERMS[cls.name] = cls

    def __init__(self, settings: Settings):
        self.settings = settings

    def count(self, batch: Batch) -> float | Tensor:
        """Return the batch's part of the sum's divisor. It depends only on labels, whose counts are in CPU memory."""
        raise NotImplementedError

    def sum(self, outputs: dict[str, Tensor], batch: Batch) -> Tensor:
        """Return the sum, a differentiable scalar. outputs: the model's, with "logits" in float32 or float64."""
        raise NotImplementedError

    def ramp(self, progress: float) -> float:
        """Return the factor of the weight at this share of the run, 0 to 1."""
        return 1.0


class PixelTerm(Term):
    """A term that sums weight * value over pixels. One PixelPass computes all such terms, and their gradient."""

    def uses_pixel_pass(self, batch: Batch) -> bool:
        """Return whether PixelPass computes the term for this batch; if not, sum() does."""
        return True

    def weights(self, batch: Batch, dtype: torch.dtype) -> Tensor:
        """Return the weight of each pixel, (B, H, W)."""
        raise NotImplementedError


class CrossEntropyTerm(PixelTerm):
    """The value is the cross entropy with (1 - smooth) * one-hot + smooth / C."""

    smooth = 0.0

    def weights(self, batch: Batch, dtype: torch.dtype) -> Tensor:
        return (batch.maps[self.map] != IGNORE).to(dtype)


class EntropyTerm(PixelTerm):
    """The value is the entropy of the softmax. Weight: d / 255, where d is the map. Count: pixels with d > 0."""

    def count(self, batch: Batch) -> Tensor:
        return batch.counts[self.map].sum()

    def weights(self, batch: Batch, dtype: torch.dtype) -> Tensor:
        return batch.maps[self.map].to(dtype) / 255


class RegionTerm(Term):
    """A term that compares regions with probabilities: a sum over images and over the classes in their labels.

    Count: pairs of image and class. An image is never split over ranks or micro-batches, so its sums add up.
    """

    map = "label"

    def image_sum(self, p: Tensor, inside: Tensor, labelled: Tensor) -> Tensor:
        """Return the sum over an image's P classes, a scalar.

        p: (P, N), their probabilities in N pixels. inside: (P, N) bool, g: the label's pixels, at least one per class.
        labelled: (N,) bool.
        """
        raise NotImplementedError

    def count(self, batch: Batch) -> Tensor:
        return torch.count_nonzero(batch.counts["label"][:, :IGNORE])


class Label(CrossEntropyTerm):
    """Cross entropy with scribbles or dense masks. Weight: the class's weight. Count: the sum of the weights."""

    name, map = "seg", "label"

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.weight_of = torch.ones(256, dtype=torch.float64)  # by label value
        self.weight_of[IGNORE] = 0
        if settings.class_weights is not None:
            self.weight_of[: len(settings.class_weights)] = torch.as_tensor(settings.class_weights, dtype=torch.float64)
        self._on_device = self.weight_of

    def count(self, batch: Batch) -> Tensor:
        return (batch.counts["label"].double() @ self.weight_of).sum()

    def weights(self, batch: Batch, dtype: torch.dtype) -> Tensor:
        if self.settings.class_weights is None:
            return super().weights(batch, dtype)
        label = batch.maps["label"]
        if (self._on_device.device, self._on_device.dtype) != (label.device, dtype):
            self._on_device = self.weight_of.to(label.device, dtype)  # only once: the CPU waits for the copy
        return self._on_device[label.long()]

    def uses_pixel_pass(self, batch: Batch) -> bool:
        return batch.points is None

    def sum(self, outputs: dict[str, Tensor], batch: Batch) -> Tensor:
        # Few pixels are labelled, so upsample the logits only there.
        label, points = batch.maps["label"], batch.points
        assert points is not None
        classes = label.flatten().index_select(0, points).long()
        values = F.cross_entropy(sample(outputs["logits"], label.shape[1:], points), classes, reduction="none")
        cross_entropy = values.new_zeros(label.numel()).index_copy(0, points, values).view(label.shape)
        return (cross_entropy * self.weights(batch, values.dtype)).sum()


class Dice(RegionTerm):
    """1 - soft Dice (arXiv:1606.04797): 1 - 2 sum(p g) / (sum(p) + sum(g))."""

    name = "seg_dice"

    def image_sum(self, p: Tensor, inside: Tensor, labelled: Tensor) -> Tensor:
        both = (p * inside).sum(1)
        return (1 - 2 * both / ((p * labelled).sum(1) + inside.sum(1))).sum()


class Lovasz(RegionTerm):
    """Lovasz-Softmax (arXiv:1705.08790): the Lovasz extension of 1 - IoU at the errors |g - p|.

    With errors in falling order, it sums each error times the growth of 1 - IoU when its pixel becomes wrong.
    """

    name = "seg_lovasz"

    def image_sum(self, p: Tensor, inside: Tensor, labelled: Tensor) -> Tensor:
        errors = torch.where(inside, 1 - p, p)
        with torch.no_grad():
            # Ignored pixels come last: all pixels of the class are missed by then, so they add 0.
            order = falling_order(errors.masked_fill(~labelled, -1.0))
            missed = inside.gather(1, order)
            size = inside.sum(1, keepdim=True, dtype=torch.int32)
            num_missed = missed.cumsum(1, dtype=torch.int32)  # --deterministic refuses it for floats
            rank = torch.arange(1, p.shape[1] + 1, device=p.device, dtype=torch.int32)
            union = (size + rank - num_missed).to(p.dtype)
            # 1 - I / U grows by 1 / U when a pixel of the class is missed, and by I / (U - 1) - I / U when a pixel of
            # another class joins the union. Closed forms, because the difference would lose digits.
            grows = torch.where(missed, 1 / union, (size - num_missed) / (union * (union - 1)))
            slope = torch.empty_like(p).scatter_(1, order, grows)
        return (errors * slope).sum()


def falling_order(values: Tensor) -> Tensor:
    """Return the indices (P, N) that sort each row of `values` from the largest to the least; equal ones keep theirs.

    values: (P, N), each >= 0 or -1.
    """
    if values.device.type != "cpu" or values.dtype != torch.float32:
        return values.sort(dim=1, descending=True, stable=True).indices
    # NumPy sorts integers in an eighth of the time of torch's sort on a CPU. The bits of a float >= 0 are an integer
    # that rises with it. They become the upper half of a key, and the index becomes the lower half.
    infinity = 0x7F800000
    bits = values.contiguous().view(torch.int32).clamp(min=-1).long()
    keys = ((infinity - bits) << 32) | torch.arange(values.shape[1])
    keys.numpy().sort(axis=1)
    return keys & 0xFFFFFFFF


class PseudoLabel(CrossEntropyTerm):
    """Cross entropy with pseudo-labels, smoothed. Count: labelled pixels."""

    name, map = "pseudo", "pseudo"

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.smooth = settings.label_smooth

    def count(self, batch: Batch) -> Tensor:
        return batch.counts["pseudo"][:, :IGNORE].sum()


class LoRMTerm(Term):
    """The sum that the model's LoRM outputs. Count: the number of squares in that sum.

    With --lorm_scope all, this number depends on the features: the outputs have it as "lorm_count", and the count is 0.
    """

    name, map = "lorm", "pseudo"

    def count(self, batch: Batch) -> float:
        assert batch.foreground is not None
        return self.settings.lorm_terms * sum(batch.foreground.counts)

    def sum(self, outputs: dict[str, Tensor], batch: Batch) -> Tensor:
        total = outputs["lorm"]
        return total / outputs["lorm_count"].clamp(min=1) if "lorm_count" in outputs else total


class ScribbleEntropy(EntropyTerm):
    """Entropy near the scribble."""

    name, map = "ds", "distance_s"


class ContourEntropy(EntropyTerm):
    """Entropy away from the contour of the pseudo-label."""

    name, map = "dc", "distance_c"


class CRF(Term):
    """The CRF loss (losses.crf). Count: images."""

    name, map = "crf", "image"

    def count(self, batch: Batch) -> float:
        return len(batch.image)

    def sum(self, outputs: dict[str, Tensor], batch: Batch) -> Tensor:
        return crf_sum(outputs["logits"], batch.image)

    def ramp(self, progress: float) -> float:
        # At full weight from the start, it merges classes of similar colour (benchmarks/RESULTS.md).
        return min(1.0, progress / RAMP)
