"""Check that exported files predict what PyTorch predicts."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from evaluation.predictor import Predictor
from exporting.graph import whole_image_logits
from support.errors import UserError

# Allowed difference of logits and probabilities, as a fraction of the largest logit. Other runtimes sum in another
# order; PyTorch rounds the inputs of convolutions to 10 bits on CUDA (TF32).
TOLERANCE = {"cpu": 2e-5, "cuda": 2e-3}


@torch.inference_mode()
def compare_files(
    model: nn.Module,
    files: dict[str, Callable[[Tensor], tuple[Tensor, ...]]],
    names: Sequence[str],
    batches: Iterable[Tensor],
) -> dict[str, str]:
    """Compare exported files with the PyTorch model, and return {format: line of text about the result}.

    files: {format: function from a batch to the file's outputs}. names: of the outputs. batches: (B, H, W, 3) uint8 RGB
    on the model's device. Raises UserError on the first difference that rounding does not explain.
    """
    predictor, num_pixels, num_ties = Predictor(model), 0, dict.fromkeys(files, 0)
    for images in batches:
        labels, logits = predictor.labels(images), whole_image_logits(model, images)
        num_pixels += labels.numel()
        for name, run in files.items():
            try:
                outputs = run(images)
            except Exception as error:  # whatever the file's runtime raises, such as on a size it was not traced for
                problem = " ".join(str(error).split())[:160]
                raise UserError(
                    f"--format {name}: the file fails on images of {tuple(images.shape[1:3])} ({problem}); no file was "
                    "written: torch.export cannot describe this network for all sizes"
                ) from None
            try:
                num_ties[name] += compare_outputs(labels, logits, dict(zip(names, outputs, strict=True)))
            except AssertionError as error:
                remedy = "; try --format torch" if name == "onnx" else ""
                raise UserError(f"--format {name}: {error}; no file was written{remedy}") from None
    return {name: f"{num_pixels} pixels equal PyTorch's, except {ties} ties" for name, ties in num_ties.items()}


def compare_outputs(labels: Tensor, logits: Tensor, outputs: dict[str, Tensor]) -> int:
    """Compare an exported file's outputs with PyTorch's labels (B, H, W) and logits (B, C, H, W).

    outputs: {"labels": (B, H, W), and "probs" and "logits" (B, C, H, W) if the file has them}. Returns the number of
    pixels with another class, all of them ties: their two largest logits differ by rounding only. Raises AssertionError
    on larger differences.
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
