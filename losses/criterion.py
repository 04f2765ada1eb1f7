"""The training loss: a weighted sum of terms, each normalized over the global batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from losses.kernel_choice import find_kernel
from losses.own import OwnTerm
from losses.pixel_pass import CrossEntropy, PixelPass, add_gradient
from losses.terms import TERMS, CrossEntropyTerm, EntropyTerm, PixelTerm, RegionTerm, Settings
from support.batch import Batch
from support.labels import IGNORE


class Criterion:
    """The loss of a batch: each term adds weight * ramp * sum over the batch / count over the global batch.

    weights: {name in losses.terms.TERMS or in `own`: weight}. own: {name: source of an OwnTerm}. settings: fields of
    losses.terms.Settings.
    """

    def __init__(self, weights: Mapping[str, float], own: Mapping[str, str] | None = None, **settings: Any):
        self.weights = weights
        self.names = list(weights)  # the order of __call__'s parts: ranks add them up as one tensor
        own = own or {}
        self.terms = {
            name: OwnTerm(own[name]) if name in own else TERMS[name](Settings(**settings)) for name in weights
        }

    def counts(self, batch: Batch) -> Tensor:
        """Return this batch's count for each of `names`: float64 (len(names),), in CPU memory.

        Before an optimizer step's first backward pass, sum them over its micro-batches and ranks to get the `divisors`.
        The gradient then equals that of one process on the whole global batch.
        """
        # float64 is exact for counts of pixels up to 2**53, and float32 only up to 2**24: one batch may have more.
        return torch.tensor([float(term.count(batch)) for term in self.terms.values()], dtype=torch.float64)

    def __call__(
        self, outputs: dict[str, Tensor], batch: Batch, divisors: Sequence[float], progress: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return this batch's part of the total loss, and its part of each of `names`, detached and unweighted.

        outputs: {"logits": (B, C, h, w), "lorm" and "lorm_count": see LoRMTerm}. progress: share of the run's steps
        that are done, 0 to 1. divisors: counts() summed over the global batch, as numbers: reading a tensor on the GPU
        would make the CPU wait. The results are float32, or float64 if the logits are.
        """
        logits = outputs["logits"]
        # The losses need more digits than bf16 and fp16 have.
        logits = logits if logits.dtype == torch.float64 else logits.float()
        outputs = outputs | {"logits": logits}  # a new dict: the caller's keeps its own type
        # A count of 0 means that no pixel has a label, and the sum is 0 too; or that LoRMTerm.sum() has divided by
        # outputs["lorm_count"]. Dividing by 1 is right for both.
        safe_divisors = {name: divisor or 1.0 for name, divisor in zip(self.names, divisors, strict=True)}
        scales = {name: weight / safe_divisors[name] for name, weight in self._weights_at(progress).items()}
        # Autograd adds up the logits' gradients in the order of these lines; another order would round differently.
        pixel_terms = [term for term in self.terms.values() if isinstance(term, PixelTerm)]
        sums = {term.name: term.sum(outputs, batch) for term in pixel_terms if not term.uses_pixel_pass(batch)}
        in_pass = [term for term in pixel_terms if term.name not in sums]
        pass_sums, gradient = self._pass_sums(in_pass, logits, batch, scales)
        sums |= pass_sums | self._region_sums(logits, batch)
        sums |= {name: term.sum(outputs, batch) for name, term in self.terms.items() if name not in sums}
        parts = torch.stack([sums[name] / divisor for name, divisor in safe_divisors.items()])
        # The pass's sums have no graph, because it computes their gradient itself; attach this gradient here.
        return add_gradient(self.total(parts, progress), logits, gradient), parts.detach()

    @staticmethod
    def _pass_sums(
        terms: list[PixelTerm], logits: Tensor, batch: Batch, scales: dict[str, float]
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return {name: sum} of the terms, detached, and the gradient for add_gradient(), None without terms."""
        if not terms:
            return {}, None  # a pass over all pixels would compute nothing
        weights = {term.name: term.weights(batch, logits.dtype) for term in terms}
        # The pass returns one gradient for all terms, so it needs their weights and divisors beforehand, as slopes.
        targets = {
            term.name: CrossEntropy(batch.maps[term.map], scales[term.name] * weights[term.name], term.smooth)
            for term in terms
            if isinstance(term, CrossEntropyTerm)
        }
        entropies = [term.name for term in terms if isinstance(term, EntropyTerm)]
        # The entropy is the same for all terms that weight it, so the pass needs only the sum of their slopes.
        slopes = [scales[name] * weights[name] for name in entropies]
        entropy_slope = sum(slopes[1:], start=slopes[0]) if slopes else None  # 0 + map would read all pixels once more
        pixel_pass = PixelPass(logits, batch.image.shape[1:3], [*targets.values()], entropy_slope)
        maps = pixel_pass.run(find_kernel(logits))
        values = dict(zip(targets, maps.cross_entropies, strict=True))
        if maps.entropy is not None:
            values |= dict.fromkeys(entropies, maps.entropy)
        # Unlike the slopes, these sums are not divided yet: __call__ divides the sums of all terms alike.
        return {name: (values[name] * weight).sum() for name, weight in weights.items()}, maps.gradient

    def _region_sums(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return {name: sum} of the terms by region, differentiable. They share the probabilities of all pixels."""
        # In the order of TERMS, so that dice+lovasz and lovasz+dice round alike in the backward pass.
        terms = [term for name in TERMS if isinstance(term := self.terms.get(name), RegionTerm)]
        if not terms:
            return {}
        # One expression, so that the full-size logits are freed at once.
        probs = F.interpolate(logits, batch.image.shape[1:3], mode="bilinear", align_corners=True).softmax(1)
        # Read the counts in CPU memory, because finding the classes of a label on a GPU would make the CPU wait.
        classes = [row.nonzero().flatten().tolist() for row in batch.counts["label"][:, :IGNORE]]
        if not any(classes):
            return {term.name: probs[:0].sum() for term in terms}  # 0 with a gradient, which DDP waits for
        sums: dict[str, list[Tensor]] = {term.name: [] for term in terms}
        # Use unbind: the backward pass of an index would fill a tensor of all classes for each index.
        images = zip(probs.flatten(2).unbind(), batch.maps["label"].flatten(1), classes, strict=True)
        for planes, values, present in images:
            if present:
                by_class = planes.unbind()
                # Only the classes in the label: absent ones add nothing, and an image has few of 150 classes.
                p = torch.stack([by_class[number] for number in present])
                inside = torch.stack([values == number for number in present])
                for term in terms:
                    sums[term.name].append(term.image_sum(p, inside, values != IGNORE))
        return {name: torch.stack(values).sum() for name, values in sums.items()}

    def _weights_at(self, progress: float) -> dict[str, float]:
        # From the progress, not from a counter of calls, so that a resumed run has the same ramp.
        return {name: weight * self.terms[name].ramp(progress) for name, weight in self.weights.items()}

    def total(self, parts: Tensor, progress: float = 1.0) -> Tensor:
        """Return the weighted sum of the losses in `parts`, a scalar. parts: 1-D, in the order of `names`."""
        weights = self._weights_at(progress).values()
        return torch.stack([weight * part for weight, part in zip(weights, parts, strict=True)]).sum()

    def as_dict(self, parts: Tensor, progress: float = 1.0) -> dict[str, Tensor]:
        """Return {name: part} and, as "loss", the weighted total. parts: 1-D, in the order of `names`."""
        return dict(zip(self.names, parts, strict=True)) | {"loss": self.total(parts, progress)}
