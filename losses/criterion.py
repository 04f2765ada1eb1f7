"""The training losses, normalised over the global batch."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from labels import IGNORE
from losses.label_losses import LABEL_LOSSES, LabelLosses, histograms, pick

ACCURACY = "batch_acc"  # a term that is only looked at
TERMS = ("seg", "pseudo", "lorm", "ds", "dc")  # each has a weight, --l_TERM
# The map of a batch that each term needs.
NEEDS = {"seg": "label", "pseudo": "pseudo", "lorm": "pseudo", "ds": "distance_s", "dc": "distance_c"}


class Criterion:
    """CDSP's losses and those of --loss, each a sum over this batch divided by a count over the global batch.

    weights: {term: weight} of the terms to compute, from TERMS and losses.label_losses:

    - seg: cross entropy with "label" (scribble or dense), over pixels that are not 255
    - seg_focal, seg_ohem, seg_dice, seg_lovasz: other losses on "label"; `options` are those of LabelLosses
    - pseudo: cross entropy with "pseudo", smoothed by `label_smooth`, over pixels that are not 255
    - lorm: the model's LoRM loss over its number of terms (models.lorm)
    - ds, dc: sum of (d / 255) * entropy(softmax) over pixels with d > 0, d = "distance_s" or "distance_c"

    accuracy: also find the share of labelled pixels that are predicted right, as the last term, of weight 0, named
    ACCURACY; the labels are "label", or "pseudo" where there are no others.

    The counts are summed over ranks and over the micro-batches of an optimizer step before the first
    backward pass. So the gradient is that of one process on the whole global batch, and a term whose
    count is 0 is 0.

    LoRM's scope "all" is the exception: its count depends on the features, so each forward pass outputs it as
    "lorm_terms". The caller sums that over ranks and multiplies it by the number of micro-batches. Each micro-batch is
    thus divided by its own count over all ranks, and the loss is the mean over micro-batches. That is exact without
    accumulation. With it, all micro-batches weigh the same, whereas one global batch would weigh them by their counts.
    """

    def __init__(self, weights: dict[str, float], label_smooth: float = 0.0, *, accuracy: bool = False, **options):
        names = [term for term in weights if term in LABEL_LOSSES.values()]
        assert set(weights) <= {*TERMS, *names}, weights
        self.weights, self.label_smooth = weights | ({ACCURACY: 0.0} if accuracy else {}), label_smooth
        self.needs = NEEDS | {ACCURACY: "label" if names else "pseudo"}
        self.label_losses = LabelLosses(names, **options)

    def counts(self, batch: dict[str, Tensor], lorm_terms) -> Tensor:
        """What divides each loss, of this batch: float64, one entry a term of `weights`.

        batch: maps as in __call__. lorm_terms: function from a pseudo-label to its number of LoRM terms.
        """
        count = {
            "pseudo": lambda label: histograms(label)[:, :IGNORE].sum(),
            "lorm": lorm_terms,
            "ds": torch.count_nonzero,
            "dc": torch.count_nonzero,
            ACCURACY: lambda label: torch.count_nonzero(label != IGNORE),
        }
        counts = {term: count[term](batch[self.needs[term]]).double() for term in self.weights if term in count}
        if self.label_losses.names:
            counts |= self.label_losses.counts(batch["label"])
        return torch.stack([counts[term] for term in self.weights])

    def classes(self, batch: dict[str, Tensor]) -> list[list[int]] | None:
        """The classes in each image's labels, for __call__, of a batch in CPU memory; None where no loss needs them."""
        return self.label_losses.classes(batch["label"]) if self.label_losses.by_region else None

    def __call__(
        self,
        outputs: dict[str, Tensor],
        batch: dict[str, Tensor],
        counts: Sequence[float],
        classes: list[list[int]] | None = None,
    ) -> Tensor:
        """This batch's part of each loss, unweighted, in the order of `weights`: float32 or float64.

        outputs: {"logits": (B, C, h, w), "lorm": scalar sum, "lorm_terms": its count where `counts` lacks it}.
        batch: {"image": (B, H, W, 3), for its size; "label", "pseudo": (B, H, W) uint8 classes, 255 = ignore;
        "distance_s", "distance_c": (B, H, W) uint8}. counts: as counts(), summed over the global batch, as plain
        numbers. classes: as classes(batch); without them the CPU waits for the GPU.
        """
        size = batch["image"].shape[1:3]
        logits = outputs["logits"]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        log_probs = F.log_softmax(F.interpolate(logits, size=size, mode="bilinear", align_corners=True), dim=1)
        sums = self.label_losses.sums(log_probs, batch["label"], classes) if self.label_losses.names else {}
        if "pseudo" in self.weights:
            sums["pseudo"] = _smoothed_cross_entropy_sum(log_probs, batch["pseudo"], self.label_smooth)
        if "lorm" in self.weights:
            sums["lorm"] = outputs["lorm"]
        entropies = [term for term in ("ds", "dc") if term in self.weights]
        if entropies:
            entropy = -(log_probs.exp() * log_probs).sum(1)  # (B, C, H, W) -> (B, H, W)
            sums |= {term: (batch[NEEDS[term]] / 255 * entropy).sum() for term in entropies}
        if ACCURACY in self.weights:
            sums[ACCURACY] = torch.count_nonzero(log_probs.argmax(1) == batch[self.needs[ACCURACY]])
        # Plain numbers: reading a tensor on the GPU would make the CPU wait for it.
        divisors: dict[str, float | Tensor]
        divisors = {term: count or 1.0 for term, count in zip(self.weights, counts, strict=True)}
        if "lorm_terms" in outputs and "lorm" in divisors:
            divisors["lorm"] = outputs["lorm_terms"].clamp(min=1)
        return torch.stack([sums[term] / divisor for term, divisor in divisors.items()])

    def total(self, parts: Tensor) -> Tensor:
        """The weighted sum of the losses that __call__ returns."""
        return torch.stack([weight * part for weight, part in zip(self.weights.values(), parts, strict=True)]).sum()

    def named(self, parts: Tensor) -> dict[str, Tensor]:
        """The losses that __call__ returns by name, and their weighted sum as "loss"."""
        return dict(zip(self.weights, parts, strict=True)) | {"loss": self.total(parts)}


def _smoothed_cross_entropy_sum(log_probs: Tensor, label: Tensor, smooth: float) -> Tensor:
    """Sum of -log p over labelled pixels, the target being (1 - smooth) * one-hot + smooth / C."""
    log_p, labelled = pick(log_probs, label)
    loss = -(log_p * labelled).sum()  # (B, H, W) -> scalar
    if smooth:
        loss = (1 - smooth) * loss - smooth * (log_probs.mean(1) * labelled).sum()
    return loss
