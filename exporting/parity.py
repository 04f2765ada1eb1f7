"""Whether models in files predict what PyTorch does."""

import copy
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from evaluation.predictor import Predictor
from exporting.exported import ExportedModel

# What a file may differ by, as a multiple of what PyTorch's own float32 differs from float64 by. Others sum in another
# order: of all models here, with random weights, theirs was at most 2.2 times as large.
TOLERANCE = 8


@dataclass
class Tally:
    """How the predictions of one file compare on some images.

    num_pixels: compared; gaps: of those with another label, how far PyTorch's two largest logits are apart; apart: largest
    difference of a probability and of a logit, where the file gives them; seconds, torch_seconds: of labels(), for each batch.
    """

    num_pixels: int = 0
    gaps: list[Tensor] = field(default_factory=list)
    apart: dict[str, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    torch_seconds: list[float] = field(default_factory=list)

    @property
    def num_different(self) -> int:
        return sum(map(len, self.gaps))

    @property
    def largest_gap(self) -> float:
        return max((float(gap.max()) for gap in self.gaps if len(gap)), default=0.0)


class Comparison:
    """Compares files with a model on batches of images, whole and at one scale.

    logits: function of a model and images (B, H, W, 3) that gives logits (B, C, H, W). error: the largest difference of
    the model's "logits" and "probs" from its own in float64, so far.
    """

    def __init__(self, model: nn.Module, files: Iterable[ExportedModel], logits: Callable[[nn.Module, Tensor], Tensor]):
        self.predictor, self.exact = Predictor(model), copy.deepcopy(model).double()
        self.model, self.files, self.logits = model, list(files), logits
        self.error = {"logits": 0.0, "probs": 0.0}

    @torch.inference_mode()
    def add(self, images: Tensor, tallies: dict[ExportedModel, Tally]) -> None:
        """Compare on images (B, H, W, 3) uint8 RGB, on the model's device, all files that take this size."""
        start = time.perf_counter()
        labels = self.predictor.labels(images)
        torch_seconds = _seconds_since(start, labels)
        exact, logits = self.logits(self.exact, images), self.logits(self.model, images)
        ours = {"logits": logits, "probs": logits.softmax(1)}
        for name, values in (("logits", exact), ("probs", exact.softmax(1))):
            self.error[name] = _larger(self.error[name], ours[name] - values)
        first, second = exact.topk(2, dim=1).values.unbind(1)
        for file in self.files:
            if min(images.shape[1:3]) < file.min_size:
                continue
            tally = tallies[file]
            start = time.perf_counter()
            predicted = file.run(images)
            tally.seconds.append(_seconds_since(start, predicted[0]))
            tally.torch_seconds.append(torch_seconds)
            tally.num_pixels += labels.numel()
            tally.gaps.append((first - second)[predicted[0] != labels].cpu())
            for name, values in zip(file.outputs[1:], predicted[1:], strict=True):
                tally.apart[name] = _larger(tally.apart.get(name, 0.0), values - ours[name])

    def fault(self, tally: Tally) -> str:
        """What is wrong with the predictions of a file; "" where they are right."""
        limit = TOLERANCE * self.error["logits"]
        wrong = sum(int((~(gap <= limit)).sum()) for gap in tally.gaps)
        if wrong:
            return f"{wrong} of {tally.num_pixels} pixels have another class, which rounding does not explain"
        for name, apart in tally.apart.items():
            if not apart <= TOLERANCE * self.error[name]:
                return f"{name} differ by {apart:.2g}, and rounding is {self.error[name]:.2g}"
        return ""


def _larger(value: float, difference: Tensor) -> float:
    """The larger of value and the largest absolute difference; nan stays."""
    return float(torch.maximum(torch.tensor(value, dtype=torch.float64), difference.abs().max().double().cpu()))


def _seconds_since(start: float, result: Tensor) -> float:
    """Wall time until the result is there."""
    if result.device.type == "cuda":
        torch.cuda.synchronize(result.device)
    return time.perf_counter() - start


def median_ms(seconds: list[float]) -> float:
    """The median in milliseconds, without the first, which pays for starting up."""
    return 1000 * statistics.median(seconds[1:] or seconds)
