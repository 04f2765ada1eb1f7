"""The estimate of validation's memory, against what the predictor's operations make on the meta device."""

import contextlib
import math

import pytest
import torch

import models
from config import Config
from evaluation import predictor as inference
from evaluation.predictor import BAND_BYTES, CPU_PASS_PIXELS, Predictor
from losses.criterion import Criterion
from runs.summary import Meter, Validation, summarize
from runs.validation_memory import SCORING_BYTES, measure_validation

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def on_meta(num_classes: int = 4) -> models.Segmenter:
    with torch.device("meta"):
        return models.build("res50_ASPP", layers=18, num_classes=num_classes)


def estimate(sizes, device, num_classes: int = 4, **values) -> Validation:
    return measure_validation(on_meta(num_classes), Config(**{"amp": "none"} | values), sizes, device)


def really_taken(chosen: Predictor, *shape: int) -> int:
    """Peak of the meta tensors that a prediction makes, without the copy of the weights; images and labels as well."""
    chosen._folded  # noqa: B018  # made before it is measured
    with Meter() as meter:
        chosen.labels(torch.empty(*shape, 3, dtype=torch.uint8, device="meta"))
        torch.empty(shape, dtype=torch.uint8, device="meta")
    return meter.peak


@pytest.mark.full_size
@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((2, 500, 375), {}),
        ((1, 900, 700), {"window": 225}),
        ((1, 900, 700), {"window": 129, "num_classes": 21}),  # the logits of many windows
        ((2, 1500, 2000), {"long_side": 500}),
        ((2, 150, 200), {"long_side": 500}),
        ((1, 3000, 4000), {"window": 33, "long_side": 99}),  # nothing but the image
    ],
)
def test_estimate_is_what_a_prediction_takes(monkeypatch, shape, settings):
    monkeypatch.setattr(inference, "autocast", lambda *_: contextlib.nullcontext())  # the meta device has none
    taken = estimate([shape[1:]] * shape[0] + [(7, 5)] * 9, CUDA, **settings).memory
    chosen = Predictor(on_meta(settings.pop("num_classes", 4)).eval(), **settings)
    weights = sum(value.nbytes for value in chosen._folded.buffers() if value.ndim)
    images = 5 * math.prod(shape)  # with labels and predictions
    real = weights + max(really_taken(chosen, *shape), images + SCORING_BYTES * math.prod(shape[1:]))
    assert 0.95 * real < taken < 1.3 * real  # bands of small windows take less than is assumed


def test_cpu_takes_less_at_once_and_bf16_half_of_the_weights():
    sizes = [(600, 600)] * 8  # 360,000 pixels: more than a pass on a CPU has
    assert CPU_PASS_PIXELS < 600 * 600
    on_cpu, on_cuda = (estimate(sizes, device, val_batchsize=8).memory for device in (CPU, CUDA))
    assert on_cpu < on_cuda / 2
    small = [(8, 8)]  # of which nothing but the copy of the weights is large
    full, half = (estimate(small, CPU, amp=amp).memory for amp in ("none", "bf16"))
    assert half < 0.55 * full


def test_scoring_of_a_photo_counts():
    """With small windows it takes more than the model: 24 bytes a pixel, 3 more are the image, 1 each the labels."""
    pixels = 3000 * 4000
    taken = estimate([(3000, 4000)], CPU, window=33, long_side=99).memory
    assert (SCORING_BYTES + 5) * pixels < taken < (SCORING_BYTES + 5) * pixels + BAND_BYTES


@pytest.mark.full_size
def test_line_names_validation_if_it_takes_more_than_training_and_a_gibibyte(caplog):
    def line(sizes, **settings) -> str:
        caplog.clear()
        validation = estimate(sizes, CPU, **settings)
        summary = summarize(on_meta(), Criterion({"seg": 1.0}), batchsize=2, crop_size=65, validation=validation)
        assert summary.memory == sum(summary.states.values()) + max(summary.working, validation.memory)
        summary.log("res50_ASPP", CPU)
        return caplog.messages[0]

    caplog.set_level("INFO", "segtrain")
    photo, small = [(3000, 4000)] * 4, [(64, 64)] * 4
    assert line(photo).endswith("GiB to validate 4 images of 4000x3000")
    assert line(photo, long_side=1400).endswith("for 2 images of 65x65 on cpu")
    assert line(small).endswith("for 2 images of 65x65 on cpu")
