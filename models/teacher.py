"""A teacher for consistency losses: the average of the weights predicts what the model should predict."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from models.amp import autocast
from models.average import WeightAverage


@dataclass
class Teacher:
    """The mean teacher (arXiv:1703.01780): the average of a model's weights, with batch norm's running statistics.

    amp: as --amp. threshold: a class of lower probability has no weight (FixMatch, arXiv:2001.07685). warmup_epochs:
    after these the weight of the others is 1. num_images: of an epoch.
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

        epoch, samples: epochs done, and samples of the next one, of which the weight is a function: it is the same in
        all micro-batches of a step, and in a resumed run.
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
    """Return exp(-5 (1 - t)^2), t being the share done of the warm-up; then 1 (arXiv:1610.02242)."""
    return 1.0 if epochs >= warmup_epochs else math.exp(-5 * (1 - epochs / warmup_epochs) ** 2)
