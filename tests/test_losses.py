"""Losses, by numbers worked out by hand; the CRF loss, by all pairs of pixels."""

import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from data.histogram import count_batch
from losses.crf import crf_sum
from losses.criterion import Criterion
from losses.terms import TERMS
from support.batch import Batch, Foreground
from support.labels import MEAN_COLOUR

ALL = {name: 1.0 for name, term in TERMS.items() if term.map != "image"}


def batch_of(num_foreground: int = 0, **maps) -> Batch:
    """Maps given as nested lists (H, W) of one image; the others blank. With the counts that the loader makes."""
    size = torch.tensor(next(iter(maps.values()))).shape
    blank = dict.fromkeys(("label", "pseudo"), torch.full((1, *size), 255, dtype=torch.uint8))
    blank |= dict.fromkeys(("distance_s", "distance_c"), torch.zeros(1, *size, dtype=torch.uint8))
    given = {name: torch.tensor([values], dtype=torch.uint8) for name, values in maps.items()}
    foreground = Foreground(torch.arange(num_foreground), [num_foreground])
    batch = Batch(torch.zeros(1, *size, 3, dtype=torch.uint8), **blank | given, foreground=foreground)
    return replace(batch, counts=count_batch(batch))


def losses(criterion: Criterion, logits: torch.Tensor, batch, lorm_sum=0.0) -> dict[str, float]:
    outputs = {"logits": logits, "lorm": torch.as_tensor(lorm_sum)}
    total, parts = criterion(outputs, batch, criterion.counts(batch).tolist())
    assert criterion.total(parts) == total
    return {name: float(value) for name, value in criterion.as_dict(parts).items()}


def two_pixels() -> torch.Tensor:
    """Logits (1, 2, 1, 2): probabilities (3/4, 1/4) at the first pixel, (1/2, 1/2) at the second."""
    return torch.tensor([[[[math.log(3.0), 0.0]], [[0.0, 0.0]]]])


def test_label_smoothing_is_of_the_pseudo_label_only():
    # target (0.95, 0.05) at p = (3/4, 1/4): 0.95 * ln(4/3) + 0.05 * ln(4)
    criterion = Criterion({"seg": 1.0, "pseudo": 1.0}, label_smooth=0.1)
    result = losses(criterion, two_pixels(), batch_of(label=[[0, 255]], pseudo=[[0, 255]]))
    assert result["seg"] == pytest.approx(math.log(4 / 3))
    assert result["pseudo"] == pytest.approx(0.95 * math.log(4 / 3) + 0.05 * math.log(4))


def test_distance_entropy_is_weighted_and_divided_by_pixels_above_0():
    # entropies: 3/4 ln(4/3) + 1/4 ln 4, and ln 2; weights 51/255 = 0.2 and 0; one pixel above 0
    result = losses(Criterion({"ds": 1.0}), two_pixels(), batch_of(distance_s=[[51, 0]]))
    assert result["ds"] == pytest.approx(0.2 * (0.75 * math.log(4 / 3) + 0.25 * math.log(4)), rel=1e-6)
    result = losses(Criterion({"dc": 1.0}), two_pixels(), batch_of(distance_c=[[0, 255]]))
    assert result["dc"] == pytest.approx(math.log(2))


def test_lorm_sum_is_divided_by_its_terms_and_the_total_is_weighted():
    criterion = Criterion({"seg": 2.0, "lorm": 0.5}, lorm_terms=2)
    result = losses(criterion, two_pixels(), batch_of(num_foreground=2, label=[[0, 255]]), lorm_sum=6.0)
    assert result["lorm"] == pytest.approx(1.5)
    assert result["loss"] == pytest.approx(2 * math.log(4 / 3) + 0.75)


@pytest.mark.parametrize("names", [ALL, *([name] for name in ALL)], ids="+".join)
def test_every_loss_is_0_without_labels(names):
    """Also alone: each has a gradient of zeros, because DDP waits for one."""
    logits = two_pixels().requires_grad_()
    criterion = Criterion(dict.fromkeys(names, 1.0), label_smooth=0.1, lorm_terms=64)
    batch = batch_of(label=[[255, 255]])
    total, parts = criterion({"logits": logits, "lorm": logits.sum() * 0}, batch, criterion.counts(batch).tolist())
    assert parts.tolist() == [0.0] * len(names)
    total.backward()
    assert logits.grad.abs().max() == 0


@pytest.mark.parametrize("name", sorted({*ALL} - {"crf"}))  # the CRF loss needs no labels
def test_pixels_without_a_label_are_not_counted(name):
    """As a divisor, they would make the loss smaller."""
    assert Criterion({name: 1.0}, lorm_terms=64).counts(batch_of(label=[[255, 255]])).tolist() == [0]


def test_inputs_are_never_written_to():
    batch = batch_of(1, label=[[0, 255]], pseudo=[[1, 255]], distance_s=[[255, 3]], distance_c=[[0, 9]])
    before, logits = copy.deepcopy(batch), two_pixels()
    criterion = Criterion(ALL, label_smooth=0.1, lorm_terms=1)
    assert losses(criterion, logits, batch, 1.0) == losses(criterion, logits, batch, 1.0)
    assert torch.equal(logits, two_pixels())
    assert all(torch.equal(values, before.maps[name]) for name, values in batch.maps.items())
    assert all(torch.equal(values, before.counts[name]) for name, values in batch.counts.items())


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
    images[1, ::2, :, 0] = MEAN_COLOUR[0]  # one channel alone does not make a pixel padding
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
