"""The losses that --loss adds up, against slow ones written from their definitions, and numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from config.losses import LOSSES, parse_loss
from data.histogram import count_batch
from losses.criterion import Criterion
from losses.label_losses import LABEL_LOSSES, LabelLosses, dice_sum, lovasz_sum

NAMES = LABEL_LOSSES
WEIGHTS = [0.5, 2.0, 3.0, 0.25]


def random_batch(num_images: int = 4, dtype=torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (B, 4, 6, 5), and labels of which a fifth is 255; the last image has classes 0 and 1 only."""
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(num_images, 4, 6, 5, dtype=torch.float64, generator=generator)
    label = torch.randint(0, 4, (num_images, 6, 5), dtype=torch.uint8, generator=generator)
    label[-1] %= 2
    label[torch.rand(label.shape, generator=generator) < 0.2] = 255
    return logits.to(dtype).requires_grad_(), label


def batch_of(label: torch.Tensor) -> dict[str, torch.Tensor]:
    batch = {"image": torch.zeros(*label.shape, 3, dtype=torch.uint8), "label": label}
    return batch | count_batch(batch)


def loss_of(name: str, logits: torch.Tensor, label: torch.Tensor, **options) -> torch.Tensor:
    """One loss of a batch that is all of the global batch."""
    criterion = Criterion({name: 1.0}, **options)
    batch = batch_of(label)
    total, _ = criterion({"logits": logits}, batch, criterion.counts(batch).tolist())
    return total


def pixels(logits: torch.Tensor, label: torch.Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each image, probabilities (N, C) and classes (N,) of its labelled pixels."""
    probs = logits.detach().softmax(1).permute(0, 2, 3, 1).numpy()
    return [(image[values != 255], values[values != 255]) for image, values in zip(probs, label.numpy(), strict=True)]


def slow_focal(logits, label, weights, gamma):
    above, below = 0.0, 0.0
    for probs, classes in pixels(logits, label):
        for p, number in zip(probs, classes, strict=True):
            above += weights[number] * (1 - p[number]) ** gamma * -math.log(p[number])
            below += weights[number]
    return above / below


def slow_ohem(logits, label, weights, fraction):
    above, below = 0.0, 0.0
    for probs, classes in pixels(logits, label):
        weight = np.array(weights)[classes]
        loss = np.sort(weight * -np.log(probs[np.arange(len(classes)), classes]))[::-1]
        kept = math.ceil(fraction * len(classes))
        above += loss[:kept].sum()
        below += kept * weight.mean()
    return above / below


def slow_dice(logits, label):
    losses = []
    for probs, classes in pixels(logits, label):
        for number in set(classes.tolist()):
            p, g = probs[:, number], classes == number
            losses.append(1 - 2 * p[g].sum() / (p.sum() + g.sum()))
    return np.mean(losses)


def slow_lovasz(logits, label):
    """Pixels in falling order of their error; each adds its error times J(those so far) - J(those before)."""
    losses = []
    for probs, classes in pixels(logits, label):
        for number in set(classes.tolist()):
            truth = {pixel for pixel, value in enumerate(classes) if value == number}
            error = [1 - p[number] if pixel in truth else p[number] for pixel, p in enumerate(probs)]
            order = sorted(range(len(error)), key=lambda pixel: -error[pixel])
            total = 0.0
            for place, pixel in enumerate(order):
                total += error[pixel] * (jaccard(truth, set(order[: place + 1])) - jaccard(truth, set(order[:place])))
            losses.append(total)
    return np.mean(losses)


def jaccard(truth: set, wrong: set) -> float:
    """1 - IoU of a prediction that is wrong in the pixels of `wrong`."""
    predicted = truth ^ wrong
    return 1 - len(truth & predicted) / len(truth | predicted)


def test_cross_entropy_is_torchs_weighted_mean():
    logits, label = random_batch()
    expected = F.cross_entropy(logits, label.long(), torch.tensor(WEIGHTS, dtype=torch.float64), ignore_index=255)
    assert loss_of("seg", logits, label, class_weights=WEIGHTS).item() == pytest.approx(expected.item(), rel=1e-12)
    [expected_grad] = torch.autograd.grad(expected, logits)
    [grad] = torch.autograd.grad(loss_of("seg", logits, label, class_weights=WEIGHTS), logits)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-15)
    plain = F.cross_entropy(logits, label.long(), ignore_index=255)
    assert loss_of("seg", logits, label).item() == pytest.approx(plain.item(), rel=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
def test_focal(gamma):
    logits, label = random_batch()
    for weights in (None, WEIGHTS):
        loss = loss_of("seg_focal", logits, label, class_weights=weights, focal_gamma=gamma)
        assert loss.item() == pytest.approx(slow_focal(logits, label, weights or [1] * 4, gamma), rel=1e-10)
    # p = 3/4: (1/4)^gamma ln(4/3)
    one = loss_of(
        "seg_focal", torch.tensor([[[[math.log(3.0)]], [[0.0]]]]), torch.tensor([[[0]]]).byte(), focal_gamma=gamma
    )
    assert float(one) == pytest.approx(0.25**gamma * math.log(4 / 3), rel=1e-5)


@pytest.mark.parametrize("fraction", [0.01, 0.25, 0.7, 1.0])
def test_ohem_keeps_the_hardest_of_each_image(fraction):
    logits, label = random_batch()
    for weights in (None, WEIGHTS):
        loss = loss_of("seg_ohem", logits, label, class_weights=weights, ohem_fraction=fraction)
        assert loss.item() == pytest.approx(slow_ohem(logits, label, weights or [1] * 4, fraction), rel=1e-10)
        if fraction == 1:
            everything = loss_of("seg", logits, label, class_weights=weights)
            assert loss.item() == pytest.approx(everything.item(), rel=1e-12)


def test_ohem_shares_the_last_places_among_equal_pixels():
    # One image of 5 pixels of class 0, of which one has p = 1/2, three p = 3/4 and one is ignored. ceil(0.5 * 4) = 2:
    # the first, and a third of each of the three. Their gradients by the logit, p - 1: -1/2, and (-1/4) / 3, over 2.
    odds = torch.tensor([1.0, 3.0, 3.0, 3.0, 1.0], dtype=torch.float64).log()
    logits = torch.stack([odds, torch.zeros_like(odds)]).view(1, 2, 1, 5).requires_grad_()
    loss = loss_of("seg_ohem", logits, torch.tensor([[[0, 0, 0, 0, 255]]]).byte(), ohem_fraction=0.5)
    assert loss.item() == pytest.approx((math.log(2) + math.log(4 / 3)) / 2)
    loss.backward()
    assert logits.grad[0, 0, 0].tolist() == pytest.approx([-1 / 4, -1 / 24, -1 / 24, -1 / 24, 0])


def test_dice():
    # Class 0 in pixels 0 and 1, class 1 in pixel 2. Of class 0: sum(p g) = 1.5, sum(p) = 1.75, sum(g) = 2.
    # Of class 1: sum(p g) = 0.75, sum(p) = 1.25, sum(g) = 1.
    p = torch.tensor([[0.9, 0.6, 0.25, 0.7], [0.1, 0.4, 0.75, 0.3]])
    inside = torch.tensor([[True, True, False, False], [False, False, True, False]])
    labelled = torch.tensor([True, True, True, False])
    expected = (1 - 2 * 1.5 / (1.75 + 2)) + (1 - 2 * 0.75 / (1.25 + 1))
    assert float(dice_sum(p, inside, labelled)) == pytest.approx(expected)
    logits, label = random_batch()
    assert loss_of("seg_dice", logits, label).item() == pytest.approx(slow_dice(logits, label), rel=1e-10)


def test_lovasz_of_a_hard_prediction_is_one_minus_iou():
    # Classes 0 0 1 1 0, the last ignored; predicted 0 1 1 0 1. Class 0: 1 of 3 right; class 1: 1 of 3 as well.
    label, predicted = torch.tensor([0, 0, 1, 1, 255]), torch.tensor([0, 1, 1, 0, 1])
    p, inside = (torch.stack([values == number for number in (0, 1)]) for values in (predicted, label))
    assert float(lovasz_sum(p.double(), inside, label != 255)) == pytest.approx(2 / 3 + 2 / 3)
    assert float(lovasz_sum(inside.double(), inside, label != 255)) == 0


def test_lovasz():
    logits, label = random_batch()
    assert loss_of("seg_lovasz", logits, label).item() == pytest.approx(slow_lovasz(logits, label), rel=1e-10)


def test_lovasz_in_float32_keeps_its_digits_on_a_large_image():
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(1, 250_000, generator=generator)
    inside = torch.rand(1, 250_000, generator=generator) < 0.3
    labelled = torch.ones(250_000, dtype=torch.bool)
    p, exact = p.requires_grad_(), p.double().detach().requires_grad_()
    lovasz_sum(p, inside, labelled).backward()
    lovasz_sum(exact, inside, labelled).backward()
    torch.testing.assert_close(p.grad.double(), exact.grad, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name):
    logits, label = random_batch(2)
    assert torch.autograd.gradcheck(lambda x: loss_of(name, x, label, class_weights=WEIGHTS), logits)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2])
def test_parts_of_a_batch_add_up_to_the_whole(name, size):
    """Promise 1: 4 images, or 2 and 2, by the counts of all; the first image has no label at all."""
    logits, label = random_batch()
    label[0] = 255
    criterion = Criterion({name: 1.0}, class_weights=WEIGHTS)
    whole = loss_of(name, logits, label, class_weights=WEIGHTS)
    [whole_grad] = torch.autograd.grad(whole, logits)
    pieces = [(logits[at : at + size], batch_of(label[at : at + size])) for at in range(0, 4, size)]
    counts = sum(criterion.counts(batch) for _, batch in pieces).tolist()
    parts = [criterion({"logits": some}, batch, counts)[0] for some, batch in pieces]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=0)
    [grad] = torch.autograd.grad(sum(parts), logits)
    torch.testing.assert_close(grad, whole_grad, rtol=1e-12, atol=1e-18)
    assert whole > 0
    assert size == 2 or parts[0] == 0


@pytest.mark.parametrize("name", NAMES)
def test_ignored_pixels_never_have_weight(name):
    logits, label = random_batch()
    before, same = label.clone(), logits.detach().clone()
    loss = loss_of(name, logits, label, class_weights=WEIGHTS)
    [grad] = torch.autograd.grad(loss, logits)
    ignored = (label == 255).unsqueeze(1)
    assert grad.masked_select(ignored).abs().max() == 0
    assert grad.masked_select(~ignored).abs().max() > 0
    other = torch.where(ignored, 7 * torch.rand_like(logits), logits.detach())
    torch.testing.assert_close(loss_of(name, other, label, class_weights=WEIGHTS), loss.detach(), rtol=1e-12, atol=0)
    assert torch.equal(label, before)  # nor are inputs written to
    assert torch.equal(logits, same)


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_is_0_without_labels(name):
    logits, label = random_batch()
    loss = loss_of(name, logits, torch.full_like(label, 255))
    loss.backward()
    assert loss == 0
    assert logits.grad.abs().max() == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_sure_predictions_have_finite_gradients(name, gamma):
    """In float32 p is 1 exactly here, or 0: a power below 1 of 1 - p has no derivative there."""
    label = torch.tensor([[[0, 1, 0, 255]]], dtype=torch.uint8)
    logits = torch.tensor([[[[200.0, 200.0, -200.0, 200.0]], [[0.0, 0.0, 0.0, 0.0]]]], requires_grad=True)
    loss = loss_of(name, logits, label, focal_gamma=gamma)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_cast_first(dtype):
    logits, label = random_batch(dtype=dtype)
    for name in NAMES:
        loss = loss_of(name, logits, label)
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(loss_of(name, logits.float(), label).item(), rel=1e-6)


def test_a_class_of_weight_0_counts_for_nothing():
    logits, label = random_batch()
    without = torch.where(label == 2, 255, label)
    weights = [1.0, 2.0, 0.0, 3.0]
    for name in ("seg", "seg_focal"):
        expected = loss_of(name, logits, without, class_weights=weights)
        torch.testing.assert_close(loss_of(name, logits, label, class_weights=weights), expected)


def test_weights_below_1_are_not_cut_off():
    """The sum of w over two pixels is 0.02: a count below 1, not none."""
    logits, label = torch.zeros(1, 4, 1, 2), torch.tensor([[[0, 0]]], dtype=torch.uint8)
    assert loss_of("seg", logits, label, class_weights=[0.01, 1, 1, 1]).item() == pytest.approx(math.log(4))


def test_a_gpu_would_never_be_waited_for():
    """On "meta", tensors have no values: whatever asks for one, as a wait for the GPU does, fails."""
    logits, label = random_batch()
    losses = LabelLosses(NAMES, class_weights=WEIGHTS)
    logits = torch.empty_like(logits, device="meta").requires_grad_()
    histogram, label = batch_of(label)["label_histogram"], label.to("meta")
    sums = losses.pixel_sums(logits[:, 0], label) | losses.region_sums(logits, label, histogram)
    assert set(sums) == set(NAMES)
    sum(sums.values()).backward()


def test_sum_of_losses_is_parsed():
    assert set(LOSSES.values()) == set(LABEL_LOSSES)
    assert parse_loss("ce") == {"seg": 1.0}
    assert parse_loss("ce + 0.5*lovasz+2 * dice") == {"seg": 1.0, "seg_lovasz": 0.5, "seg_dice": 2.0}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("focl", f"'focl' is not known: did you mean focal? Add up {', '.join(LOSSES)}, as in ce+0.5*dice"),
        ("", "'' is not known"),
        ("ce+", "'' is not known"),
        ("ce+ce", "'ce' is there twice"),
        ("ce+-1*dice", "'-1' is not a factor: give a number above 0, as in 0.5*dice"),
        ("0*dice", "'0' is not a factor"),
        ("nan*dice", "'nan' is not a factor"),
        ("*dice", "'' is not a factor"),
        ("half*dice", "'half' is not a factor"),
    ],
)
def test_wrong_sums_are_named(text, named):
    with pytest.raises(ValueError, match="is") as caught:
        parse_loss(text)
    assert named in str(caught.value)
