"""The training losses, normalised over the global batch."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORE = 255
TERMS = ("seg", "pseudo", "lorm", "ds", "dc")
# The map of a batch that each term needs.
NEEDS = {"seg": "label", "pseudo": "pseudo", "lorm": "pseudo", "ds": "distance_s", "dc": "distance_c"}


class Criterion:
    """CDSP's five losses, each a sum over this batch divided by a count over the global batch.

    weights: {term: weight} of the terms to compute, from TERMS:

    - seg: cross entropy with "label" (scribble or dense), over pixels that are not 255
    - pseudo: cross entropy with "pseudo", smoothed by `label_smooth`, over pixels that are not 255
    - lorm: the model's LoRM loss over its terms (models.lorm)
    - ds, dc: sum of (d / 255) * entropy(softmax) over pixels with d > 0, d = "distance_s" or "distance_c"

    The counts are summed over ranks and over the micro-batches of an optimizer step before the first
    backward pass. So the gradient is that of one process on the whole global batch, and a term whose
    count is 0 is 0.
    """

    def __init__(self, weights: dict[str, float], label_smooth: float = 0.0):
        assert set(weights) <= set(TERMS), weights
        self.weights, self.label_smooth = weights, label_smooth

    def counts(self, batch: dict[str, Tensor], lorm_terms) -> Tensor:
        """How many pixels (LoRM: terms) each loss sums over in this batch: float64, one entry a term of `weights`.

        batch: maps as in __call__. lorm_terms: function from a pseudo-label to its number of LoRM terms.
        """
        count = {
            "seg": lambda label: (label != IGNORE).sum(),
            "pseudo": lambda label: (label != IGNORE).sum(),
            "lorm": lorm_terms,
            "ds": torch.count_nonzero,
            "dc": torch.count_nonzero,
        }
        return torch.stack([count[term](batch[NEEDS[term]]).double() for term in self.weights])

    def __call__(self, outputs: dict[str, Tensor], batch: dict[str, Tensor], counts: Sequence[float]) -> Tensor:
        """This batch's part of each loss, unweighted, in the order of `weights`: float32 or float64.

        outputs: {"logits": (B, C, h, w), "lorm": scalar sum}. batch: {"image": (B, H, W, 3), for its size;
        "label", "pseudo": (B, H, W) uint8 classes, 255 = ignore; "distance_s", "distance_c": (B, H, W)
        uint8}. counts: as counts(), summed over the global batch, as plain numbers.
        """
        size = batch["image"].shape[1:3]
        logits = outputs["logits"]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        log_probs = F.log_softmax(F.interpolate(logits, size=size, mode="bilinear", align_corners=True), dim=1)
        sums = []
        entropy = None
        for term in self.weights:
            if term == "lorm":
                sums.append(outputs["lorm"])
            elif term in ("ds", "dc"):
                if entropy is None:
                    entropy = -(log_probs.exp() * log_probs).sum(1)  # (B, C, H, W) -> (B, H, W)
                sums.append((batch[NEEDS[term]] / 255 * entropy).sum())
            else:
                smooth = self.label_smooth if term == "pseudo" else 0.0
                sums.append(_cross_entropy_sum(log_probs, batch[NEEDS[term]], smooth))
        # Plain numbers, as a tensor on its way to the GPU would make the CPU wait for it.
        return torch.stack([part / max(count, 1.0) for part, count in zip(sums, counts, strict=True)])

    def total(self, parts: Tensor) -> Tensor:
        """The weighted sum of the losses that __call__ returns."""
        return torch.stack([weight * part for weight, part in zip(self.weights.values(), parts, strict=True)]).sum()

    def named(self, parts: Tensor) -> dict[str, Tensor]:
        """The losses that __call__ returns by name, and their weighted sum as "loss"."""
        return dict(zip(self.weights, parts, strict=True)) | {"loss": self.total(parts)}


def _cross_entropy_sum(log_probs: Tensor, label: Tensor, smooth: float) -> Tensor:
    """Sum of -log p over labelled pixels, the target being (1 - smooth) * one-hot + smooth / C."""
    labelled = label != IGNORE
    # F.nll_loss does the same, but not for maps under --deterministic on CUDA.
    picked = log_probs.gather(1, label.masked_fill(~labelled, 0).long().unsqueeze(1)).squeeze(1)
    loss = -(picked * labelled).sum()  # (B, C, H, W) -> (B, H, W) -> scalar
    if smooth:
        loss = (1 - smooth) * loss - smooth * (log_probs.mean(1) * labelled).sum()
    return loss
