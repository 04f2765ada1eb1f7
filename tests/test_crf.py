"""The CRF loss: its value and gradient, and how its weight rises."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from losses.crf import crf_sum
from losses.criterion import Criterion
from support.labels import MEAN_COLOUR
from tests.test_losses import batch_of, losses, two_pixels


def slow_crf(logits: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """crf_sum() pair by pair, as its docstring defines it."""
    height, width = logits.shape[2:]
    probs, values = logits.softmax(1), images.movedim(-1, 1).to(logits.dtype)
    inside = (values != torch.tensor(MEAN_COLOUR)[:, None, None]).any(1, keepdim=True).to(logits.dtype)
    share = F.adaptive_avg_pool2d(inside, (height, width))
    colours = F.adaptive_avg_pool2d(values * inside, (height, width)) / share
    places = list(itertools.product(range(height), range(width)))
    total = logits.sum() * 0
    for (y, x), (v, u) in itertools.permutations(places, 2):
        if max(abs(y - v), abs(x - u)) <= 3:
            colour = (colours[:, :, y, x] - colours[:, :, v, u]).square().sum(1)
            kernel = torch.exp(-((y - v) ** 2 + (x - u) ** 2) / (2 * 2**2) - colour / (2 * 25.5**2))
            kernel = kernel * share[:, 0, y, x] * share[:, 0, v, u]
            total = total + (kernel * (1 - (probs[:, :, y, x] * probs[:, :, v, u]).sum(1))).sum()
    return total / len(places)


@pytest.mark.parametrize("size", [(6, 5), (2, 7), (1, 1)])  # larger than the window, smaller than it, and a point
def test_sum_and_gradient_are_those_of_all_pairs(size):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, *size, dtype=torch.float64, generator=generator).requires_grad_()
    images = torch.randint(0, 60, (2, 24, 20, 3), dtype=torch.uint8, generator=generator)
    images[0, 1:7, 1:18] = torch.tensor(MEAN_COLOUR)  # padding; no position has padding alone, where colour is 0 / 0
    found, expected = crf_sum(logits, images), slow_crf(logits, images)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    (gradient,), (slow,) = (torch.autograd.grad(3 * value, logits) for value in (found, expected))
    torch.testing.assert_close(gradient, slow, rtol=1e-12, atol=1e-14)


def test_padding_has_no_weight():
    logits = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    images = torch.full((1, 24, 24, 3), 9, dtype=torch.uint8)
    images[:, :, 12:] = torch.tensor(MEAN_COLOUR)
    loss = crf_sum(logits, images)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[..., 3:].eq(0).all()
    # Without padding, the image has half the positions.
    torch.testing.assert_close(loss, crf_sum(logits[..., :3], images[:, :, :12]) / 2)


@pytest.mark.parametrize(("colour", "kernel"), [(0, math.exp(-1 / 8)), (51, math.exp(-1 / 8 - 6))])
def test_two_pixels(colour, kernel):
    # probabilities (3/4, 1/4) and (1/2, 1/2): 1 - 3/8 - 1/8 = 1/2 from each side, mean over 2 positions;
    # colours 0 and 51 in three channels: 3 * 51^2 / (2 * 25.5^2) = 6
    batch = batch_of(label=[[255, 255]])
    batch.image[0, 0, 1] = colour
    assert losses(Criterion({"crf": 1.0}), two_pixels(), batch)["crf"] == pytest.approx(kernel / 2, rel=1e-6)


def test_the_weight_rises_in_the_first_half_of_the_run():
    batch, logits = batch_of(label=[[0, 255]]), two_pixels()
    criterion = Criterion({"seg": 1.0, "crf": 0.2})
    for progress, factor in ((0.0, 0.0), (0.25, 0.1), (0.5, 0.2), (1.0, 0.2)):
        leaf = logits.clone().requires_grad_()
        total, (seg, crf) = criterion({"logits": leaf}, batch, [1.0, 1.0], progress)
        assert float(total.detach()) == pytest.approx(float(seg) + factor * float(crf))
        expected = F.cross_entropy(leaf[..., 0], torch.tensor([[0]])) + factor * crf_sum(leaf, batch.image)
        (gradient,), (slow,) = (torch.autograd.grad(value, leaf) for value in (total, expected))
        torch.testing.assert_close(gradient, slow)
        logged = criterion.as_dict(torch.stack([seg, crf]), progress)["loss"]
        assert float(logged) == pytest.approx(float(total.detach()))
