"""Predictions with scales, mirror images and windows, against a plain, slow implementation."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import smooth_images
from torch import nn
from torch.utils.data import DataLoader

from data.sampler import EvalBatches
from distributed.group import Group, Stopped
from inference import predictor as inference
from inference.predictor import Predictor, each_batch
from support import progress
from support.errors import UserError


class Tiny(nn.Module):
    """Logits at stride 8 that depend on a pixel's surroundings, and on what else is in the window."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 5, 15, stride=8, padding=7)
        self.mean = torch.tensor([120.0, 115.0, 100.0]).view(3, 1, 1)

    def forward(self, images):
        x = (images.permute(0, 3, 1, 2).float() - self.mean) / 10
        rest = x.mean((2, 3), keepdim=True).sum(1, keepdim=True) * torch.linspace(-1, 1, 5).view(5, 1, 1)
        return {"logits": 3 * self.conv(x) + rest}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return Tiny().eval()


def slow_probs(model, image: np.ndarray, scales, flip: bool, window: int, stride_rate: float, long_side: int):
    """semseg's protocol, written down as it reads: one image, one window, one scale at a time, sums in float64.

    But a window weighs (1 - cos(2 pi (i + 0.5) / n)) / 2 in row i of n, and alike in each column: Hann's window, which
    is almost 0 at the border, so that no seam shows there.
    """
    height, width = image.shape[:2]
    total = np.zeros((5, height, width))
    for scale in scales:
        longer = round(scale * (long_side or max(height, width)))
        new_height = max(1, longer if height >= width else round(longer / width * height))
        new_width = max(1, longer if width >= height else round(longer / height * width))
        resized = torch.from_numpy(image).permute(2, 0, 1)[None].float()
        resized = F.interpolate(resized, size=(new_height, new_width), mode="bilinear", align_corners=False)
        crop_height, crop_width = (window, window) if window else (new_height, new_width)
        pad_height, pad_width = max(crop_height - new_height, 0), max(crop_width - new_width, 0)
        top, left = pad_height // 2, pad_width // 2
        padded = model.mean[None].expand(1, 3, new_height + pad_height, new_width + pad_width).clone()
        padded[:, :, top : top + new_height, left : left + new_width] = resized
        sums = np.zeros((5, *padded.shape[2:]))
        count = np.zeros(padded.shape[2:])
        stride_height, stride_width = math.ceil(crop_height * stride_rate), math.ceil(crop_width * stride_rate)
        for row in range(math.ceil((padded.shape[2] - crop_height) / stride_height) + 1):
            for column in range(math.ceil((padded.shape[3] - crop_width) / stride_width) + 1):
                bottom = min(row * stride_height + crop_height, padded.shape[2])
                right = min(column * stride_width + crop_width, padded.shape[3])
                here = slice(bottom - crop_height, bottom), slice(right - crop_width, right)
                crop = padded[:, :, here[0], here[1]]
                probs = window_probs(model, crop)
                if flip:
                    probs = (probs + window_probs(model, crop.flip(3))[:, :, ::-1]) / 2
                hann = [(1 - np.cos(2 * np.pi * (np.arange(n) + 0.5) / n)) / 2 for n in (crop_height, crop_width)]
                sums[:, here[0], here[1]] += probs * np.outer(*hann)
                count[here[0], here[1]] += np.outer(*hann)
        probs = (sums / count)[:, top : top + new_height, left : left + new_width]
        total += F.interpolate(torch.from_numpy(probs)[None], size=(height, width), mode="bilinear")[0].numpy()
    return total / len(scales)


@torch.no_grad()
def window_probs(model, crop: torch.Tensor) -> np.ndarray:
    logits = model(crop.permute(0, 2, 3, 1))["logits"]
    logits = F.interpolate(logits, size=crop.shape[2:], mode="bilinear", align_corners=True)
    return logits.softmax(1)[0].double().numpy()


@pytest.mark.parametrize("band_bytes", [1, 100_000, inference.BAND_BYTES])
@pytest.mark.parametrize(
    ("size", "settings"),
    [
        ((61, 80), {}),
        ((61, 80), {"flip": True}),
        ((61, 80), {"scales": (0.5, 1.0, 1.7)}),
        ((61, 80), {"window": 33}),
        ((97, 64), {"window": 40, "stride_rate": 0.5, "flip": True, "scales": (0.3, 1.0, 1.3)}),  # 0.3: smaller than it
        ((61, 80), {"window": 70, "long_side": 112, "scales": (0.75, 1.25), "flip": True}),  # one side is smaller
        ((1, 1), {"scales": (0.5, 1.0), "flip": True}),
    ],
)
def test_equal_to_a_plain_slow_implementation(model, monkeypatch, size, settings, band_bytes):
    monkeypatch.setattr(inference, "BAND_BYTES", band_bytes)
    batch = smooth_images(2, *size)
    predictor = Predictor(model, **settings, batch_size=3)
    bands = list(predictor.probs(batch))
    assert [rows.start for rows, _ in bands] == [0, *(rows.stop for rows, _ in bands[:-1])]
    probs = torch.cat([band for _, band in bands], dim=2)
    labels = predictor.labels(batch)
    assert probs.shape == (2, 5, *size)
    assert labels.dtype == torch.uint8
    assert size == (1, 1) or len(labels.unique()) > 2
    defaults = {"scales": (1.0,), "flip": False, "window": 0, "stride_rate": 2 / 3, "long_side": 0}
    for number, image in enumerate(batch.numpy()):
        expected = slow_probs(model, image, **(defaults | settings))
        assert np.abs(probs[number].numpy() - expected).max() < 1e-5
        best = np.sort(expected, axis=0)
        clear = best[-1] - best[-2] > 1e-4  # elsewhere rounding may decide
        assert clear.mean() > 0.9
        assert (labels[number].numpy() == expected.argmax(0))[clear].all()


MANY_WINDOWS = {"long_side": 900, "window": 33, "stride_rate": 1e-4}


@pytest.mark.parametrize("options", [{"long_side": 60000}, {"window": 9000}, {"scales": (0.5, 200)}, MANY_WINDOWS])
def test_sizes_that_would_fill_memory_are_refused(model, options):
    """An image of 61x80 may become 2^26 pixels: a longer side of 9381 (9381^2 * 61 / 80 = 6.71e7)."""
    for given in ({"long_side": 9381}, {"window": 8192}, {"scales": (16,)}):
        assert Predictor(model, **given).num_windows((61, 80)) == 1
    assert Predictor(model, window=465).num_windows((30000, 30000)) == 97**2  # its own size; ceil(29535 / 310) + 1 = 97
    with pytest.raises(UserError, match=r"x\.pt, --long_side .* an image of 80x61 pixels would become .* million"):
        Predictor(model, **options, source="x.pt, ").labels(torch.zeros(1, 61, 80, 3, dtype=torch.uint8))


def test_mixed_precision_is_the_models_alone(model):
    full, mixed = (next(Predictor(model, amp=amp).probs(smooth_images(1, 61, 80)))[1] for amp in ("none", "bf16"))
    assert mixed.dtype == torch.float32
    assert 0 < (full - mixed).abs().mean() < 0.02


def test_work_is_counted_by_windows_and_stops_between_two(model, capsys, monkeypatch):
    """Windows of 33 every 22 pixels begin at 0, 22 and 27 across, and at 0 and 7 down: 6, and their mirror images."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    predictor, group = Predictor(model, flip=True, window=33, batch_size=4), Group(torch.device("cpu"))
    assert predictor.num_windows((40, 60)) == 12
    loader = DataLoader(smooth_images(1, 40, 60), batch_sampler=EvalBatches([(40, 60)], batch_size=1))
    each_batch(predictor, loader, group, predictor.labels)
    counts = [line.split(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert list(dict.fromkeys(counts)) == [f"images: {done} of 12" for done in (0, 4, 8, 12)]
    counts = []

    def stop_at_once(batch, step):
        group.stop.reason = "SIGINT"
        predictor.labels(batch, lambda number: (counts.append(number), step(number)))
        pytest.fail("not cancelled")

    with pytest.raises(Stopped, match="SIGINT"):
        each_batch(predictor, loader, group, stop_at_once)
    assert counts == [4]
    with pytest.raises(Stopped, match="SIGINT"):  # before the first batch
        each_batch(predictor, loader, group, stop_at_once)
    assert counts == [4]
