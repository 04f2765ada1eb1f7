"""What of a difference between a file and PyTorch rounding explains."""

import pytest
import torch
from exporting.exported import ExportedModel
from exporting.parity import Comparison, Tally
from torch import nn


class Fake(ExportedModel):
    """Adds `offset` to class 1's logit before it takes the largest."""

    def __init__(self, offset: float):
        self.offset, self.outputs = offset, ["labels", "probs"]

    def run(self, images):
        logits = fake_logits(None, images) + torch.tensor([0, self.offset]).view(1, 2, 1, 1)
        return logits.argmax(1).to(torch.uint8), logits.softmax(1)


def fake_logits(model, images):
    """Class 0 is ahead of class 1 by 1e-6 in one pixel, 1e-4 in another, and 1 in the others; rounding is 1.5e-6."""
    logits = torch.zeros(len(images), 2, *images.shape[1:3], dtype=torch.float64)
    logits[:, 0] = 1
    logits[:, 0, 0, 0] = 1e-6
    logits[:, 0, 1, 1] = 1e-4
    if isinstance(model, nn.Conv2d) and model.weight.dtype == torch.float32:
        logits[:, 0] += 1.5e-6  # what float32 gives
    return logits


@pytest.mark.parametrize(
    ("offset", "num_different", "fault"),
    [
        (0.0, 0, ""),
        (2e-6, 1, ""),
        (2.0, 12, "11 of 12 pixels have another class"),
        (2e-4, 2, "1 of 12 pixels have another class"),
        (-0.5, 0, "probs differ by"),
        (float("nan"), 12, "11 of 12 pixels have another class"),
    ],
)
def test_only_what_rounding_explains_may_differ(offset, num_different, fault, monkeypatch):
    file, tally = Fake(offset), Tally()
    comparison = Comparison(nn.Conv2d(1, 1, 1), [file], fake_logits)
    exact = fake_logits(None, torch.zeros(1, 3, 4, 3))
    plain = {"labels": lambda self, images: exact.argmax(1).to(torch.uint8)}
    comparison.predictor = type("Plain", (), plain)()
    comparison.add(torch.zeros(1, 3, 4, 3, dtype=torch.uint8), {file: tally})
    assert tally.num_pixels == 12
    assert tally.num_different == num_different
    said = comparison.fault(tally)
    assert said.startswith(fault) if fault else not said
