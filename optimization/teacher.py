"""A teacher for the consistency loss: a model with averaged weights, whose predictions are targets for the model."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from optimization.amp import autocast
from optimization.average import WeightAverage


@dataclass
class Teacher:
    """The mean teacher (arXiv:1703.01780): the average of a model's weights, with batch norm's running statistics.

    amp: as --amp. threshold: predictions of lower probability have weight 0 (FixMatch, arXiv:2001.07685).
    warmup_epochs: after these, the other predictions have weight 1. num_images: images per epoch.
    """

    average: WeightAverage
    amp: str
    threshold: float
    warmup_epochs: float
    num_images: int

    def __post_init__(self) -> None:
        self.average.module.eval()

    @torch.no_grad()
    def __call__(self, images: Tensor, epoch: int, samples: int) -> dict[str, Tensor]:
        """Return what the teacher predicts for images (B, H, W, C), as targets() does.

        epoch, samples: completed epochs, and samples done in the current one. The weight depends on nothing else, so it
        is the same in all micro-batches of a step, and in a resumed run.
        """
        with autocast(self.amp, images.device):
            logits = self.average.module(images)["logits"]
        return targets(logits, self.threshold, ramp(epoch + samples / self.num_images, self.warmup_epochs))


def targets(logits: Tensor, threshold: float, weight: float) -> dict[str, Tensor]:
    """Return {"teacher_class": (B, h, w) int64, "teacher_weight": (B, h, w)} of a teacher's logits (B, C, h, w).

    The weight is `weight` where the class has at least the probability `threshold`, else 0.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    confidence, label = logits.softmax(1).max(1)
    return {"teacher_class": label, "teacher_weight": weight * (confidence >= threshold).to(logits.dtype)}


def ramp(epochs: float, warmup_epochs: float) -> float:
    """Return exp(-5 (1 - t)^2), t being the fraction of the warm-up that is done; 1 after it (arXiv:1610.02242)."""
    return 1.0 if epochs >= warmup_epochs else math.exp(-5 * (1 - epochs / warmup_epochs) ** 2)
