"""Losses and the accuracy that are sums over pixels, against the plain form: upsample, log-softmax, sums, autograd."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from losses import pixel_accuracy, pixel_pass
from losses.criterion import Criterion
from losses.pixel_accuracy import count_hits
from losses.pixel_pass import CrossEntropy, PixelPass
from losses.upsampling import find_points, sample
from support.batch import Batch

ALL = {"seg": 1.0, "pseudo": 0.5, "ds": 2.0, "dc": 3.0}
SMOOTH = 0.1


def make_batch(num_classes: int, size=(23, 17), num_images: int = 2, labelled: float = 0.9) -> Batch:
    """A batch with random maps; one column is unlabelled, and so is the last image's label."""
    generator = torch.Generator().manual_seed(0)
    shape = (num_images, *size)
    maps = {}
    for name in ("label", "pseudo"):
        maps[name] = torch.randint(0, num_classes, shape, dtype=torch.uint8, generator=generator)
        maps[name][torch.rand(shape, generator=generator) >= labelled] = 255
        maps[name][:, :, 3] = 255
    maps["label"][-1] = 255
    for name in ("distance_s", "distance_c"):
        maps[name] = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return Batch(torch.zeros(*shape, 3, dtype=torch.uint8), **maps)


def make_logits(num_classes: int, dtype=torch.float64, size=(5, 4), num_images: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    logits = 4 * torch.randn(num_images, num_classes, *size, dtype=torch.float64, generator=generator)
    return logits.to(dtype).requires_grad_()


def upsampled(logits: torch.Tensor, size) -> torch.Tensor:
    return F.interpolate(logits, size=size, mode="bilinear", align_corners=True)


def class_weights(num_classes: int) -> list[float]:
    return [0.5 + number % 3 for number in range(num_classes)]


def plain_sums(logits: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
    full = upsampled(logits, batch.image.shape[1:3])
    log_p = full.log_softmax(1)
    entropy = -(log_p.exp() * log_p).sum(1)
    options = {"ignore_index": 255, "reduction": "sum"}
    return {
        "seg": F.cross_entropy(full, batch.label.long(), full.new_tensor(class_weights(full.shape[1])), **options),
        "pseudo": F.cross_entropy(full, batch.pseudo.long(), label_smoothing=SMOOTH, **options),
        "ds": (batch.distance_s.to(full) / 255 * entropy).sum(),
        "dc": (batch.distance_c.to(full) / 255 * entropy).sum(),
    }


@pytest.fixture
def small_bands(monkeypatch):
    """Bands of 3 rows, of which an image has several, and the last one fewer."""
    monkeypatch.setattr(pixel_pass, "MIN_ROWS", 3)
    monkeypatch.setattr(pixel_pass, "CPU_BAND", 1)


@pytest.mark.parametrize("num_classes", [2, 5, 40])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("weights", [ALL, {"seg": 1.0}, {"pseudo": 1.0}, {"ds": 1.0}, {"seg": 2.0, "dc": 1.0}])
@pytest.mark.usefixtures("small_bands")
def test_value_and_gradient_are_those_of_the_plain_form(weights, dtype, tolerance, num_classes):
    batch, divisor = make_batch(num_classes), 7.0
    exact, logits = make_logits(num_classes), make_logits(num_classes, dtype)
    expected = {name: value / divisor for name, value in plain_sums(exact, batch).items() if name in weights}
    sum(weights[name] * value for name, value in expected.items()).backward()
    criterion = Criterion(weights, label_smooth=SMOOTH, class_weights=class_weights(num_classes))
    loss, parts = criterion({"logits": logits}, batch, [divisor] * len(weights))
    loss.backward()
    assert logits.grad.dtype == parts.dtype == dtype
    for name, part in zip(weights, parts.tolist(), strict=True):
        assert part == pytest.approx(expected[name].item(), rel=tolerance)
    assert (logits.grad - exact.grad).abs().max() <= tolerance * exact.grad.abs().max()


@pytest.mark.parametrize("size", [(23, 17), (5, 4), (6, 30), (9, 7)])
@pytest.mark.usefixtures("small_bands")
def test_upsampling_is_that_of_interpolate(size):
    logits, batch = make_logits(3), make_batch(3, size)
    label = batch.label
    cross_entropy = F.cross_entropy(upsampled(logits, size), label.long(), ignore_index=255, reduction="none")
    cross_entropy.sum().backward()
    target = CrossEntropy(label, (label != 255).double())
    maps = PixelPass(logits, size, [target]).run()
    torch.testing.assert_close(maps.cross_entropies[0] * target.slope, cross_entropy, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(maps.gradient, logits.grad, rtol=1e-10, atol=1e-12)
    points = torch.arange(3, label.numel(), 5)
    expected = upsampled(logits, size).permute(0, 2, 3, 1).flatten(0, 2)[points]
    torch.testing.assert_close(sample(logits, size, points), expected)


def test_few_labelled_pixels_give_the_same_as_a_pass_over_all():
    batch = make_batch(4, labelled=0.05)
    few, all_of_them = make_logits(4), make_logits(4)
    criterion = Criterion({"seg": 1.0}, class_weights=[1.0, 2.0, 0.5, 3.0])
    points = find_points(batch.label)
    assert len(points) == torch.count_nonzero(batch.label != 255) > 0
    value = criterion({"logits": few}, replace(batch, points=points), [5.0])[0]
    expected = criterion({"logits": all_of_them}, batch, [5.0])[0]
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    value.backward()
    expected.backward()
    torch.testing.assert_close(few.grad, all_of_them.grad, rtol=1e-10, atol=1e-15)
    assert find_points(torch.zeros(1, 3, 3, dtype=torch.uint8)) is None  # labels on most pixels are not few


@pytest.mark.usefixtures("small_bands")
def test_far_apart_logits_stay_finite():
    """The largest class differs between neighbours, so that between them all logits are far below both."""
    logits = torch.tensor([[[[500.0, -500.0]], [[-500.0, 500.0]]]], requires_grad=True)
    batch = make_batch(2, (2, 5), 1)
    batch.label[:] = 0
    loss, _ = Criterion(ALL, label_smooth=SMOOTH)({"logits": logits}, batch, [1.0] * 4)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(3, 4, 17, 24), (1, 1, 9, 5), (2, 5, 2, 5)])  # (h, w, H, W)
def test_hits_are_those_of_numpy(monkeypatch, shape):
    monkeypatch.setattr(pixel_accuracy, "CPU_BAND", 1)  # bands of MIN_ROWS rows: two of 17 rows are whole
    rng, (low_height, low_width, height, width) = np.random.default_rng(0), shape
    logits = rng.normal(size=(2, 5, low_height, low_width))
    label = rng.choice([0, 1, 2, 3, 4, 255], size=(2, height, width)).astype(np.uint8)
    # Align corners: both ends coincide.
    rows, columns = np.linspace(0, low_height - 1, height), np.linspace(0, low_width - 1, width)
    wide = np.apply_along_axis(lambda line: np.interp(columns, np.arange(low_width), line), 3, logits)
    full = np.apply_along_axis(lambda line: np.interp(rows, np.arange(low_height), line), 2, wide)
    expected = [(full.argmax(1) == label).sum(), (label != 255).sum()]
    image = torch.zeros(2, height, width, 3, dtype=torch.uint8)
    for values in (torch.from_numpy(logits), torch.from_numpy(logits).float()):
        assert count_hits(values, Batch(image, label=torch.from_numpy(label))).tolist() == expected
        both = Batch(image, label=torch.from_numpy(label), pseudo=torch.zeros(label.shape, dtype=torch.uint8))
        assert count_hits(values, both).tolist() == expected  # the label counts
        assert count_hits(values, Batch(image, pseudo=torch.from_numpy(label))).tolist() == expected
