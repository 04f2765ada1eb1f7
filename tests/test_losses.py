"""Losses, by numbers worked out by hand."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from data.histogram import count_batch
from losses.criterion import Criterion
from losses.terms import TERMS
from support.batch import Batch, Foreground

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


def test_cross_entropy_over_labelled_pixels():
    # -ln(3/4) and -ln(1/2) over 2 pixels; with the second pixel ignored, -ln(3/4) over 1
    both = losses(Criterion({"seg": 1.0}), two_pixels(), batch_of(label=[[0, 1]]))
    assert both["seg"] == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)
    one = losses(Criterion({"seg": 1.0}), two_pixels(), batch_of(label=[[0, 255]]))
    assert one["seg"] == pytest.approx(math.log(4 / 3))


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


def test_d3_d8_every_loss_is_0_without_labels():
    logits = two_pixels().requires_grad_()
    criterion = Criterion(ALL, label_smooth=0.1, lorm_terms=64)
    batch = batch_of(label=[[255, 255]])
    total, parts = criterion({"logits": logits, "lorm": logits.sum() * 0}, batch, criterion.counts(batch).tolist())
    assert parts.tolist() == [0.0] * len(ALL)
    total.backward()
    assert logits.grad.abs().max() == 0


def test_d1_d2_inputs_are_never_written_to():
    batch = batch_of(1, label=[[0, 255]], pseudo=[[1, 255]], distance_s=[[255, 3]], distance_c=[[0, 9]])
    before = copy.deepcopy(batch)
    criterion = Criterion(ALL, label_smooth=0.1, lorm_terms=1)
    assert losses(criterion, two_pixels(), batch, 1.0) == losses(criterion, two_pixels(), batch, 1.0)
    assert all(torch.equal(values, before.maps[name]) for name, values in batch.maps.items())
    assert all(torch.equal(values, before.counts[name]) for name, values in batch.counts.items())
