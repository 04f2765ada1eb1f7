"""The training losses, normalized over the global batch."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from losses.crf import crf_sum
from losses.pixel_pass import CrossEntropy, PixelPass, add_gradient
from losses.region_losses import REGION_LOSSES, region_sums
from losses.upsampling import sample
from support.labels import COUNTS, FOREGROUND, IGNORE, POINTS

TERMS = ("seg", "pseudo", "lorm", "ds", "dc", "crf")  # each has a weight, --l_TERM; all but the last are CDSP's
# The map of a batch that each term needs.
NEEDS = {"seg": "label", "pseudo": "pseudo", "lorm": "pseudo", "ds": "distance_s", "dc": "distance_c", "crf": "image"}
BY_PIXEL = ("seg", "pseudo", "ds", "dc")  # the ones that are sums over pixels


class Criterion:
    """CDSP's losses, those of --loss and the CRF loss: each is a sum over this batch / a count over the global batch.

    weights: {term: weight} of the terms to compute, from TERMS and REGION_LOSSES:

    - seg: cross entropy with "label" (scribble or dense), over pixels that are not 255, times the weight of their
      class in `class_weights` (None: all 1), divided by the sum of these weights
    - seg_dice, seg_lovasz: losses.region_losses (arXiv:1606.04797, arXiv:1705.08790), divided by the number of pairs of
      an image and a class in its "label"
    - pseudo: cross entropy with "pseudo", smoothed by `label_smooth`, over pixels that are not 255
    - lorm: the model's LoRM loss, divided by its number of terms (models.lorm)
    - ds, dc: sum of (d / 255) * entropy(softmax) over pixels with d > 0, d = "distance_s" or "distance_c"
    - crf: losses.crf, divided by the number of images. Its weight rises linearly from 0 in the first half of the
      run: at full weight from the start, it merges classes of similar colour (benchmarks/RESULTS.md)

    The counts are summed over the micro-batches and ranks of an optimizer step before the first backward pass, so the
    gradient equals that of one process on the whole global batch. A term whose count is 0 is 0.

    lorm_terms: number of LoRM's terms for each position of the foreground; 0 with --lorm_scope all: the number then
    depends on the features, so each forward pass outputs it. sum_lorm_terms: function that sums it over ranks and
    multiplies it by the number of micro-batches: the loss is then the mean over micro-batches, each divided by its own
    count. This is exact without accumulation; with it, every micro-batch has the same weight, whereas in one global
    batch their weights would be their counts.
    """

    def __init__(
        self,
        weights: dict[str, float],
        label_smooth: float = 0.0,
        *,
        class_weights: Sequence[float] | None = None,
        lorm_terms: int = 0,
        sum_lorm_terms: Callable[[Tensor], Tensor] = lambda count: count,
    ):
        assert set(weights) <= {*TERMS, *REGION_LOSSES}, weights
        self.weights, self.label_smooth = weights, label_smooth
        self.lorm_terms, self.sum_lorm_terms = lorm_terms, sum_lorm_terms
        self.names = list(weights)  # what __call__ returns, in this order
        self.region_losses = [name for name in REGION_LOSSES if name in weights]
        self.weighted = class_weights is not None
        self.weight_of = torch.ones(256, dtype=torch.float64)  # by label value
        self.weight_of[IGNORE] = 0
        if class_weights is not None:
            self.weight_of[: len(class_weights)] = torch.as_tensor(class_weights, dtype=torch.float64)
        self._on_device = self.weight_of

    def counts(self, batch: dict[str, Tensor]) -> Tensor:
        """Return this batch's count for each of `names`: float64 (len(names),).

        Summed over the global batch, the counts are the `divisors` of the losses. batch: what the loader's workers have
        counted, in CPU memory, under the names in labels.COUNTS and FOREGROUND.
        """
        counts = []
        for name in self.names:
            if name == "lorm":
                count = self.lorm_terms * batch[FOREGROUND[1]].sum()
            elif name == "seg":
                count = (batch[COUNTS["label"]].double() @ self.weight_of).sum()
            elif name == "crf":
                count = torch.tensor(len(batch["image"]))
            elif name in REGION_LOSSES:
                count = torch.count_nonzero(batch[COUNTS["label"]][:, :IGNORE])
            elif name in ("ds", "dc"):
                count = batch[COUNTS[NEEDS[name]]].sum()
            else:
                count = batch[COUNTS["pseudo"]][:, :IGNORE].sum()
            counts.append(count.double())
        return torch.stack(counts)

    def __call__(
        self, outputs: dict[str, Tensor], batch: dict[str, Tensor], divisors: Sequence[float], progress: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return this batch's part of the total loss, and its part of each of `names`, detached and unweighted.

        outputs: {"logits": (B, C, h, w), "lorm": scalar sum, "lorm_terms": its count with --lorm_scope all}.
        batch: {"image": (B, H, W, 3); "label", "pseudo": (B, H, W) uint8 classes, 255 = ignore; "distance_s",
        "distance_c": (B, H, W) uint8; the label's histogram, in CPU memory; labels.POINTS, if the labels are few}.
        progress: share of the run's steps that are done, 0 to 1.
        divisors: counts() summed over the global batch, as numbers: reading a tensor on the GPU would make the CPU
        wait. The results are float32, or float64 if the logits are.
        """
        logits = outputs["logits"]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        safe = {name: divisor or 1.0 for name, divisor in zip(self.names, divisors, strict=True)}
        scales = {name: weight / safe[name] for name, weight in self.weights.items()}
        sums, gradient = self._pixel_sums(logits, batch, scales)
        if self.region_losses:
            probs = F.interpolate(logits, batch["image"].shape[1:3], mode="bilinear", align_corners=True).softmax(1)
            sums |= region_sums(self.region_losses, probs, batch["label"], batch[COUNTS["label"]])
        if "crf" in self.weights:
            sums["crf"] = crf_sum(logits, batch["image"])
        by_name: dict[str, float | Tensor] = {**safe}
        if "lorm" in self.weights:
            sums["lorm"] = outputs["lorm"]
            if "lorm_terms" in outputs:
                by_name["lorm"] = self.sum_lorm_terms(outputs["lorm_terms"]).clamp(min=1)
        parts = torch.stack([sums[name] / divisor for name, divisor in by_name.items()])
        return add_gradient(self.total(parts, progress), logits, gradient), parts.detach()

    def _pixel_sums(
        self, logits: Tensor, batch: dict[str, Tensor], scales: dict[str, float]
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return {name of BY_PIXEL: sum over pixels, a scalar}, and a gradient for add_gradient().

        The gradient is that of the total, the sum over names of scales[name] * sums[name], by the logits; the sums are
        detached. If seg is the only name and the batch has labels.POINTS, the sum is differentiable instead, and the
        gradient is None. It is also None without a name.
        """
        names, dtype = [name for name in self.names if name in BY_PIXEL], logits.dtype
        if not names:
            return {}, None
        if POINTS in batch and names == ["seg"]:
            return {"seg": self._sum_at(batch[POINTS], logits, batch["label"])}, None
        targets, weights = [], {}
        if "seg" in names:
            weights["seg"] = self._class_weights(batch["label"], dtype)
            targets.append(CrossEntropy(batch["label"], scales["seg"] * weights["seg"]))
        if "pseudo" in names:
            weights["pseudo"] = (batch["pseudo"] != IGNORE).to(dtype)
            targets.append(CrossEntropy(batch["pseudo"], scales["pseudo"] * weights["pseudo"], self.label_smooth))
        entropy_weights = {name: batch[NEEDS[name]].to(dtype) / 255 for name in ("ds", "dc") if name in names}
        slopes = [scales[name] * weight for name, weight in entropy_weights.items()]
        entropy_slope = sum(slopes[1:], start=slopes[0]) if slopes else None

        size = batch["image"].shape[1:3]
        maps = PixelPass(logits, size, targets, entropy_slope).run()
        pairs = zip(weights.items(), maps.cross_entropies, strict=True)
        sums = {name: (values * weight).sum() for (name, weight), values in pairs}
        if maps.entropy is not None:
            sums |= {name: (maps.entropy * weight).sum() for name, weight in entropy_weights.items()}
        return sums, maps.gradient

    def _sum_at(self, points: Tensor, logits: Tensor, label: Tensor) -> Tensor:
        """Return seg of a label (B, H, W) whose labelled pixels are at `points`, places in the flat label."""
        classes = label.flatten().index_select(0, points).long()
        values = F.cross_entropy(sample(logits, label.shape[1:], points), classes, reduction="none")
        cross_entropy = values.new_zeros(label.numel()).index_copy(0, points, values).view(label.shape)
        return (cross_entropy * self._class_weights(label, values.dtype)).sum()

    def _class_weights(self, label: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weight of each pixel's class, 0 at ignored pixels, of the given dtype. label: (B, H, W)."""
        if not self.weighted:
            return (label != IGNORE).to(dtype)
        if (self._on_device.device, self._on_device.dtype) != (label.device, dtype):
            self._on_device = self.weight_of.to(label.device, dtype)  # only once: the CPU waits for the copy
        return self._on_device[label.long()]

    def total(self, parts: Tensor, progress: float = 1.0) -> Tensor:
        """Return the weighted sum of the losses in `parts`, a scalar. parts: 1-D, in the order of `names`."""
        ramps = {"crf": min(1.0, 2 * progress)}
        pairs = zip(self.weights.items(), parts, strict=True)
        return torch.stack([weight * ramps.get(name, 1.0) * part for (name, weight), part in pairs]).sum()

    def by_name(self, parts: Tensor, progress: float = 1.0) -> dict[str, Tensor]:
        """Return {name: part} and, as "loss", the weighted total. parts: 1-D, in the order of `names`."""
        return dict(zip(self.names, parts, strict=True)) | {"loss": self.total(parts, progress)}


def to_device(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return a batch copied to the device, without waiting for the copy.

    Of the loader's counts, only the label's histogram is in the result, in CPU memory: finding the classes of a label
    on the GPU would make the CPU wait.
    """
    left_out = (*COUNTS.values(), *FOREGROUND)
    moved = {name: values.to(device, non_blocking=True) for name, values in batch.items() if name not in left_out}
    return moved | {name: batch[name] for name in (COUNTS["label"],) if name in batch}
