"""Check that exported files predict what PyTorch predicts."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from errors import UserError
from evaluation.predictor import Predictor
from exporting.graph import whole_image_logits
from exporting.model import ExportedModel

# Allowed difference of logits and probabilities, as a fraction of the largest logit. Other runtimes sum in another
# order; PyTorch rounds the inputs of convolutions to 10 bits on CUDA (TF32).
TOLERANCE = {"cpu": 1e-4, "cuda": 1e-2}


@dataclass
class Tally:
    """What was compared. num_ties: pixels with another class, whose two largest logits differ by rounding only."""

    num_pixels: int = 0
    num_ties: int = 0
    seconds: list[float] = field(default_factory=list)  # per batch
    torch_seconds: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        times = ", ".join(f"{_median_ms(values):.0f} ms" for values in (self.seconds, self.torch_seconds))
        return f"{self.num_pixels} pixels, {self.num_ties} ties differ; {times} with PyTorch"


@torch.inference_mode()
def compare_files(model: nn.Module, files: dict[str, ExportedModel], batches: Iterable[Tensor]) -> dict[str, Tally]:
    """Compare files, by --format, with the model on batches (B, H, W, 3) uint8 RGB on the model's device.

    A batch smaller than a file's min_size is skipped for that file. Raises UserError on the first difference that
    rounding does not explain.
    """
    predictor, tallies = Predictor(model), {name: Tally() for name in files}
    for images in batches:
        labels, torch_seconds = _timed(predictor.labels, images)
        logits = whole_image_logits(model, images)
        for name, file in files.items():
            if min(images.shape[1:3]) >= file.min_size:
                outputs, seconds = _timed(file.run, images)
                tally = tallies[name]
                try:
                    tally.num_ties += compare_outputs(labels, logits, dict(zip(file.outputs, outputs, strict=True)))
                except AssertionError as error:
                    raise UserError(f"--format {name}: {error}; no file was written") from None
                tally.num_pixels += labels.numel()
                tally.seconds.append(seconds)
                tally.torch_seconds.append(torch_seconds)
    return tallies


def compare_outputs(labels: Tensor, logits: Tensor, outputs: dict[str, Tensor]) -> int:
    """Compare a file's "labels", "probs" and "logits" with PyTorch's labels (B, H, W) and logits (B, C, H, W).

    Returns the number of pixels with another class, all of them ties. Raises AssertionError on larger differences.
    """
    tolerance = TOLERANCE[logits.device.type] * float(logits.abs().max())
    first, second = logits.topk(2, dim=1).values.unbind(1)
    differs = outputs["labels"] != labels
    num_wrong = int((differs & ~(first - second <= tolerance)).sum())
    if num_wrong:
        raise AssertionError(f"{num_wrong} of {labels.numel()} pixels have another class than in PyTorch")
    for name, expected in (("probs", logits.softmax(1)), ("logits", logits)):
        if name in outputs:
            torch.testing.assert_close(outputs[name], expected, rtol=0, atol=tolerance, msg=partial(_message, name))
    return int(differs.sum())


def _message(name: str, text: str) -> str:
    return f"{name}: " + ", ".join(line for line in text.splitlines() if line)


def _timed(function: Callable, images: Tensor) -> tuple:
    """Return the function's result and its wall time in seconds."""
    start = time.perf_counter()
    result = function(images)
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)
    return result, time.perf_counter() - start


def _median_ms(seconds: list[float]) -> float:
    """Median in milliseconds, without the first batch, which includes the start-up."""
    return 1000 * statistics.median(seconds[1:] or seconds)
