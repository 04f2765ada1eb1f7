"""The losses that --loss adds up, against slow ones written from their definitions, and numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import REPO

from data.histogram import count_batch
from flags.declare import flags_of
from flags.loss_weights import LOSSES, loss_weights, parse_loss
from flags.training import Config, LossFlags
from losses.criterion import Criterion
from losses.terms import TERMS
from support.batch import Batch, Foreground
from support.labels import MAPS

WEIGHTS = [0.5, 2.0, 3.0, 0.25]

LABEL_LOSSES = [name for name, term in TERMS.items() if term.map == "label"]


def random_batch(num_images: int = 4, dtype=torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (B, 4, 6, 5), and labels of which a fifth is 255; the last image has classes 0 and 1 only."""
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(num_images, 4, 6, 5, dtype=torch.float64, generator=generator)
    label = torch.randint(0, 4, (num_images, 6, 5), dtype=torch.uint8, generator=generator)
    label[-1] %= 2
    label[torch.rand(label.shape, generator=generator) < 0.2] = 255
    return logits.to(dtype).requires_grad_(), label


def batch_of(label: torch.Tensor) -> Batch:
    """A batch whose image and maps are all made from the label."""
    foreground = Foreground(torch.arange(len(label)), [1] * len(label))
    batch = Batch(label.unsqueeze(3).expand(-1, -1, -1, 3), label, label, label, label, foreground=foreground)
    return replace(batch, counts=count_batch(batch))


def loss_of(name: str, logits: torch.Tensor, label: torch.Tensor, **options) -> torch.Tensor:
    """One loss of a batch that is all of the global batch."""
    criterion = Criterion({name: 1.0}, **options)
    batch = batch_of(label)
    total, _ = criterion(outputs_of(logits), batch, criterion.counts(batch).tolist())
    return total


def outputs_of(logits: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"logits": logits, "lorm": logits.square().sum()}


def test_each_term_is_declared_for_the_data_sets_that_have_its_map_and_documented():
    """A term without a flag never trains; one that --loss or a flag names without a class ends the run."""
    flags, page = flags_of(LossFlags), (REPO / "docs/losses.md").read_text(encoding="utf-8")
    every = Config(loss="+".join(LOSSES), **{name: 1.0 for name in flags if name.startswith("l_")})
    assert set(loss_weights(every)) == set(TERMS)
    for name, term in TERMS.items():
        row = {value: word for word, value in LOSSES.items()}.get(name, name)
        assert f"\n| `{row}` |" in page, f"docs/losses.md lacks a row `{row}`"
        assert f"`{name}`" in page, f"docs/losses.md does not say that the log names it `{name}`"
        needs = flags["loss" if name in LOSSES.values() else f"l_{name}"].needs
        for dataset, maps in MAPS.items():
            given = replace(every, dataset=dataset)
            assert (needs is None or needs[1](given)) == (term.map in ("image", *maps)), f"{name} with {dataset}"


def pixels(logits: torch.Tensor, label: torch.Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each image, probabilities (N, C) and classes (N,) of its labelled pixels."""
    probs = logits.detach().softmax(1).permute(0, 2, 3, 1).numpy()
    return [(image[values != 255], values[values != 255]) for image, values in zip(probs, label.numpy(), strict=True)]


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
    plain = F.cross_entropy(logits, label.long(), ignore_index=255)
    assert loss_of("seg", logits, label).item() == pytest.approx(plain.item(), rel=1e-12)


@pytest.mark.parametrize(("name", "slow"), [("seg_dice", slow_dice), ("seg_lovasz", slow_lovasz)])
def test_losses_by_region_are_their_definitions(name, slow):
    logits, label = random_batch()
    assert loss_of(name, logits, label).item() == pytest.approx(slow(logits, label), rel=1e-10)
    # gradcheck's atol, 1e-5, is as much as these gradients.
    assert torch.autograd.gradcheck(lambda x: loss_of(name, x, label), logits, fast_mode=True, atol=1e-8)


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("size", [1, 2])
def test_parts_of_a_batch_add_up_to_the_whole(name, size):
    """Promise 1: 4 images, or 2 and 2, by the counts of all; the first image has no label at all."""
    logits, label = random_batch()
    label[0] = 255
    options = {"class_weights": WEIGHTS, "label_smooth": 0.1, "lorm_terms": 3}
    criterion, whole = Criterion({name: 1.0}, **options), loss_of(name, logits, label, **options)
    [whole_grad] = torch.autograd.grad(whole, logits)
    pieces = [(logits[at : at + size], batch_of(label[at : at + size])) for at in range(0, 4, size)]
    counts = sum(criterion.counts(batch) for _, batch in pieces).tolist()
    parts = [criterion(outputs_of(some), batch, counts)[0] for some, batch in pieces]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=0)
    [grad] = torch.autograd.grad(sum(parts), logits)
    torch.testing.assert_close(grad, whole_grad, rtol=1e-12, atol=1e-18)
    assert whole > 0
    assert size == 2 or (parts[0] == 0) == (TERMS[name].map in ("label", "pseudo") and name != "lorm")


@pytest.mark.parametrize("name", LABEL_LOSSES)
def test_smaller_logits_are_upsampled_to_the_label(name):
    logits, label = random_batch()
    small = logits[:, :, ::2, ::2]
    large = F.interpolate(small, label.shape[1:], mode="bilinear", align_corners=True)
    torch.testing.assert_close(loss_of(name, small, label), loss_of(name, large, label))


@pytest.mark.parametrize("name", LABEL_LOSSES)
def test_ignored_pixels_never_have_weight(name):
    logits, label = random_batch()
    loss = loss_of(name, logits, label, class_weights=WEIGHTS)
    [grad] = torch.autograd.grad(loss, logits)
    ignored = (label == 255).unsqueeze(1)
    assert grad.masked_select(ignored).abs().max() == 0
    assert grad.masked_select(~ignored).abs().max() > 0
    other = torch.where(ignored, 7 * torch.rand_like(logits), logits.detach())
    torch.testing.assert_close(loss_of(name, other, label, class_weights=WEIGHTS), loss.detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", LABEL_LOSSES)
def test_sure_predictions_of_any_precision_have_finite_gradients(name, dtype):
    """In float32 p is 1 exactly here, or 0."""
    label = torch.tensor([[[0, 1, 0, 255]]], dtype=torch.uint8)
    logits = torch.tensor([[[[200.0, 200.0, -200.0, 200.0]], [[0.0, 0.0, 0.0, 0.0]]]], dtype=dtype, requires_grad=True)
    loss = loss_of(name, logits, label)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_sum_of_losses_is_parsed():
    assert parse_loss("ce + 0.5*lovasz+2 * dice") == {"seg": 1.0, "seg_lovasz": 0.5, "seg_dice": 2.0}


def test_the_order_of_the_words_of_loss_changes_no_bit():
    torch.manual_seed(0)
    label = torch.randint(0, 4, (2, 17, 17), dtype=torch.uint8)
    start, gradients, batch = torch.randn(2, 4, 5, 5), [], batch_of(label)
    for names in (("seg_dice", "seg_lovasz"), ("seg_lovasz", "seg_dice")):
        criterion, logits = Criterion(dict.fromkeys(names, 1.0)), start.clone().requires_grad_()
        criterion({"logits": logits}, batch, criterion.counts(batch).tolist())[0].backward()
        gradients.append(logits.grad)
    assert torch.equal(*gradients)
