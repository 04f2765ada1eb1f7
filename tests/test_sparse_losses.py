"""The losses for sparse labels, against slow ones written from their definitions."""

import math

import pytest
import torch
import torch.nn.functional as F

from losses import gated_crf
from losses.criterion import Criterion
from losses.sparse_losses import SPARSE_LOSSES, log_complement
from losses.upsampling import Axis, average_down
from optimization.teacher import ramp, targets
from support.image_stats import ImageStats, colour_scale

CLASSES, HIGH, LOW = 4, (23, 17), (6, 5)


def make_batch(num_images: int = 3, padded: bool = True) -> dict[str, torch.Tensor]:
    """A batch with few labels. The first image has padding on two sides, the last one has no label."""
    generator = torch.Generator().manual_seed(0)

    def random(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, dtype=torch.uint8, generator=generator)

    batch = {"image": random(0, 80, num_images, *HIGH, 3), "label": random(0, CLASSES - 1, num_images, *HIGH)}
    batch["inside"] = torch.ones(num_images, *HIGH, dtype=torch.uint8)
    if padded:
        batch["inside"][0, :4] = 0
        batch["inside"][0, :, 11:] = 0
    keep = torch.rand(batch["label"].shape, generator=generator) < 0.2
    batch["label"][~keep | (batch["inside"] == 0)] = 255
    batch["label"][-1] = 255
    batch["present"] = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.uint8)[-num_images:]
    logits = torch.randn(num_images, CLASSES, *LOW, generator=generator, dtype=torch.float64)
    return batch | targets(logits, threshold=0.4, weight=0.7)


def make_logits(num_images: int = 3, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return (scale * torch.randn(num_images, CLASSES, *LOW, generator=generator, dtype=torch.float64)).requires_grad_()


def loss_of(name: str, logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    criterion = Criterion({name: 1.0})
    return criterion({"logits": logits}, batch, criterion.counts(batch).tolist())[0]


def shares(pixels: torch.Tensor) -> torch.Tensor:
    """The mean of maps (B, H, W) over each position's pixels, by the weights that F.interpolate gives the position."""
    single = torch.eye(LOW[0] * LOW[1], dtype=torch.float64).view(-1, 1, *LOW)
    weights = F.interpolate(single, HIGH, mode="bilinear", align_corners=True).squeeze(1)  # (h w, H, W)
    means = torch.einsum("nyx,byx->bn", weights, pixels.double()) / weights.sum((1, 2))
    return means.view(-1, *LOW)


def num_positions(pixels: torch.Tensor) -> float:
    """The number of positions that a map's pixels, not 0, stand for."""
    return int(torch.count_nonzero(pixels)) * LOW[0] * LOW[1] / (HIGH[0] * HIGH[1])


def slow_crf(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Every pair of positions, one after the other."""
    probs, gate, total = logits.softmax(1).permute(0, 2, 3, 1), shares(batch["inside"]), 0.0
    planes = [shares(batch["image"][..., channel].double() / 255 * batch["inside"]) for channel in range(3)]
    for image in range(len(logits)):
        places = [(y, x) for y in range(LOW[0]) for x in range(LOW[1]) if gate[image, y, x] > 0]
        colour = {at: torch.stack([plane[image][at] for plane in planes]) / gate[image][at] for at in places}
        for one in places:
            for other in places:
                away = [abs(one[axis] - other[axis]) for axis in (0, 1)]
                if one == other or max(away) > 5:
                    continue
                kernel = math.exp(-(away[0] ** 2 + away[1] ** 2) / (2 * 6**2))
                kernel *= torch.exp(-(colour[one] - colour[other]).square().sum() / (2 * 0.1**2))
                agree = (probs[image][one] * probs[image][other]).sum()
                total = total + gate[image][one] * gate[image][other] * kernel * (1 - agree)
    return total / num_positions(batch["inside"])


def slow_absent(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    probs, gate, total, count = logits.softmax(1), shares(batch["inside"]), 0.0, 0.0
    for image, present in enumerate(batch["present"].tolist()):
        for number in range(CLASSES) if any(present) else ():
            if not present[number]:
                total = total - (gate[image] * (1 - probs[image, number]).log()).sum()
                count += num_positions(batch["inside"][image])
    return total / count


def slow_consistency(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    unlabelled = (batch["label"] == 255) & (batch["inside"] == 1)
    log_p = logits.log_softmax(1).gather(1, batch["teacher_class"].unsqueeze(1)).squeeze(1)
    total = -(shares(unlabelled) * batch["teacher_weight"] * log_p).sum()
    return total / num_positions(unlabelled)


SLOW = {"crf": slow_crf, "absent": slow_absent, "consistency": slow_consistency}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", SPARSE_LOSSES)
def test_value_and_gradient_are_those_of_the_slow_form(name, padded):
    logits, batch = make_logits(), make_batch(padded=padded)
    before = {key: values.clone() for key, values in batch.items()}
    loss, expected = loss_of(name, logits, batch), SLOW[name](logits, batch)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    [gradient], [expected_gradient] = (torch.autograd.grad(2 * value, logits) for value in (loss, expected))
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-14)
    assert gradient.abs().max() > 1e-3
    assert all(torch.equal(batch[key], values) for key, values in before.items())


@pytest.mark.parametrize("name", SPARSE_LOSSES)
def test_parts_of_a_batch_add_up_to_the_whole(name):
    """Promise 1: two parts, divided by the counts of the whole batch, sum to its loss and gradient."""
    logits, batch = make_logits(), make_batch()
    criterion = Criterion({name: 2.0})
    divisors = criterion.counts(batch)
    whole, _ = criterion({"logits": logits}, batch, divisors.tolist())
    [whole_gradient] = torch.autograd.grad(whole, logits)
    parts = [{key: values[some] for key, values in batch.items()} for some in (slice(0, 1), slice(1, 3))]
    assert torch.equal(sum(criterion.counts(part) for part in parts), divisors)
    pairs = zip((logits[:1], logits[1:]), parts, strict=True)
    total = sum(criterion({"logits": some}, part, divisors.tolist())[0] for some, part in pairs)
    assert total.item() == pytest.approx(whole.item(), rel=1e-12)
    torch.testing.assert_close(torch.autograd.grad(total, logits)[0], whole_gradient, rtol=1e-10, atol=1e-16)


@pytest.mark.parametrize("name", SPARSE_LOSSES)
def test_padding_has_no_weight(name):
    """Neither its colour nor what is predicted there changes loss or gradient: only padding lies below row 11 of 23."""
    results = []
    for changed in (False, True):
        batch, logits = make_batch(), make_logits()
        batch["inside"][:, 11:] = 0
        batch["label"][:, 11:] = 255
        if changed:
            batch["image"][batch["inside"] == 0] = 200
            with torch.no_grad():
                logits[:, :, 4:] += 5 * torch.eye(CLASSES)[0].view(-1, 1, 1)  # of pixels from row 3 * 22 / 5 = 13.2 on
            batch["teacher_class"][:, 4:] = 3
        loss = loss_of(name, logits, batch)
        results.append((loss.item(), torch.autograd.grad(loss, logits)[0]))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-12)
    torch.testing.assert_close(*(gradient[:, :, :4] for _, gradient in results), rtol=1e-12, atol=1e-16)
    assert all(gradient[:, :, 4:].abs().max() == 0 for _, gradient in results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, 100.0, 1e4])
@pytest.mark.parametrize("name", SPARSE_LOSSES)
def test_extreme_logits_give_finite_losses_and_gradients(name, scale, dtype):
    logits = make_logits(scale=scale).detach().to(dtype).requires_grad_()
    batch = make_batch()
    batch["teacher_weight"] = batch["teacher_weight"].float()
    loss = loss_of(name, logits, batch)
    [gradient] = torch.autograd.grad(loss, logits)
    assert (loss.dtype, gradient.dtype) == (torch.float32, dtype)
    assert loss.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", SPARSE_LOSSES)
def test_without_labels_or_image_each_loss_is_0(name):
    batch = make_batch()
    batch["label"][:], batch["present"][:] = 255, 0
    if name == "crf":  # which needs no label
        batch["inside"][:] = 0
    batch["teacher_weight"] = torch.zeros_like(batch["teacher_weight"])
    logits = make_logits()
    loss = loss_of(name, logits, batch)
    assert loss == 0
    assert torch.autograd.grad(loss, logits)[0].abs().max() == 0


def test_two_neighbours_by_hand():
    # p = (3/4, 1/4) and (1/2, 1/2): 1 - 3/8 - 1/8 = 1/2. Neighbours with colours 51 / 255 = 0.2 apart in one channel:
    # K = exp(-1/72 - 0.2^2 / 0.02) = exp(-1/72 - 2). Each is the other's neighbour; over 2 positions: K / 2.
    logits = torch.tensor([[[[math.log(3.0), 0.0]], [[0.0, 0.0]]]])
    batch = {"image": torch.tensor([[[[0, 9, 9], [51, 9, 9]]]], dtype=torch.uint8)}
    batch["inside"] = torch.ones(1, 1, 2, dtype=torch.uint8)
    assert loss_of("crf", logits, batch).item() == pytest.approx(math.exp(-1 / 72 - 2) / 2, rel=1e-6)
    # Class 1 is absent: -ln(3/4) and -ln(1/2)
    batch["present"] = torch.tensor([[1, 0]], dtype=torch.uint8)
    assert loss_of("absent", logits, batch).item() == pytest.approx((math.log(4 / 3) + math.log(2)) / 2, rel=1e-6)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (3, 20), (12, 13)])
@pytest.mark.parametrize("radius", [1, 5])
def test_windows_end_at_the_image(size, radius):
    """Of equal probabilities and colours, each position adds its neighbours' K; counted pair by pair."""
    probs = torch.full((1, 2, *size), 0.5, dtype=torch.float64)
    ones = torch.ones(1, *size, dtype=torch.float64)
    places = [(y, x) for y in range(size[0]) for x in range(size[1])]
    pairs = [(abs(a - c), abs(b - d)) for a, b in places for c, d in places if (a, b) != (c, d)]
    expected = sum(math.exp(-(y**2 + x**2) / 72) / 2 for y, x in pairs if max(y, x) <= radius)
    found = gated_crf.gated_crf_sum(probs, torch.zeros(1, 3, *size, dtype=torch.float64), ones, radius)
    assert found.item() == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_log_complement_is_exact_where_a_class_is_certain():
    # p = (1, e^-40, e^-50) / their sum: ln(1 - p) = ln(e^-40 + e^-50), and -e^-40, -e^-50 of the other two, to 1e-17
    logits = torch.tensor([[40.0, 0.0, -10.0]], dtype=torch.float32)
    expected = torch.tensor([[math.log(math.exp(-40) + math.exp(-50)), -math.exp(-40), -math.exp(-50)]])
    torch.testing.assert_close(log_complement(logits), expected, rtol=1e-5, atol=0)


def test_average_down_is_the_mean_by_upsamplings_weights():
    maps = torch.rand(2, *HIGH, dtype=torch.float64)
    torch.testing.assert_close(average_down(maps, LOW), shares(maps), rtol=1e-12, atol=0)
    assert torch.equal(average_down(maps, HIGH), maps)
    assert Axis(1, 4).matrix(maps).sum() == 4
    assert average_down(maps, (1, 1)).flatten().tolist() == pytest.approx(maps.mean((1, 2)).tolist())


def test_colours_of_other_images():
    """A grey image of any range has the distances of an RGB image, and a value without data that of the mean."""
    stats = ImageStats("float32", (100.0,), (57.375,))  # 0.225 * 255: as an RGB image's, so that 0.1 is 25.5 levels
    [(zero, unit)] = colour_scale(stats)
    assert zero == 100.0
    assert (25.5 / unit) ** 2 == pytest.approx(3 * 0.1**2)  # three channels that differ by 0.1
    logits = make_logits(1)
    batch = {"inside": torch.ones(1, *HIGH, dtype=torch.uint8)}
    losses = []
    for value in (math.nan, math.inf, 100.0):
        batch["image"] = torch.linspace(60, 200, HIGH[0] * HIGH[1]).view(1, *HIGH, 1)
        batch["image"][0, 3:9, 4:9] = value
        criterion = Criterion({"crf": 1.0}, colour_scale=colour_scale(stats))
        losses.append(criterion({"logits": logits}, batch, criterion.counts(batch).tolist())[0].item())
    assert losses[0] == losses[1] == losses[2] > 0


def test_the_teachers_class_counts_from_the_threshold_on():
    # p = 3/4 and 1/2 of class 0
    logits = torch.tensor([[[[math.log(3.0), 0.1]], [[0.0, 0.0]]]])
    found = targets(logits, threshold=0.7, weight=0.5)
    assert found["teacher_class"].tolist() == [[[0, 0]]]
    assert found["teacher_weight"].tolist() == [[[0.5, 0.0]]]


def test_the_ramp_is_that_of_temporal_ensembling():
    assert ramp(0.0, 4.0) == pytest.approx(math.exp(-5))
    assert ramp(2.0, 4.0) == pytest.approx(math.exp(-5 / 4))
    assert ramp(4.0, 4.0) == ramp(9.0, 4.0) == ramp(0.0, 0.0) == 1.0
