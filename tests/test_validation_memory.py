"""The estimate of validation's memory, against what the predictor's operations make on the meta device."""

import contextlib
import math

import pytest
import torch

import models
from evaluation import predictor as inference
from evaluation.predictor import BAND_BYTES, CPU_PASS_PIXELS, Predictor
from losses.criterion import Criterion
from runs.summary import Meter, summarize
from runs.validation_memory import SCORING_BYTES, measure_validation

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def predictor(num_classes: int = 4, **settings) -> Predictor:
    with torch.device("meta"):
        model = models.build("res50_ASPP", layers=18, num_classes=num_classes)
    return Predictor(model.eval(), **settings)


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
        ((1, 900, 700), {"window": 65, "num_classes": 21}),  # the logits of many windows
        ((2, 1500, 2000), {"long_side": 500}),
        ((2, 150, 200), {"long_side": 500}),
        ((1, 3000, 4000), {"window": 33, "long_side": 99}),  # nothing but the image
    ],
)
def test_estimate_is_what_a_prediction_takes(monkeypatch, shape, settings):
    monkeypatch.setattr(inference, "autocast", lambda *_: contextlib.nullcontext())  # the meta device has none
    chosen = predictor(**settings)
    estimate = measure_validation(chosen, [shape[1:]] * shape[0] + [(7, 5)] * 9, CUDA)
    weights = sum(value.nbytes for value in chosen._folded.buffers() if value.ndim)
    images = 5 * math.prod(shape)  # with labels and predictions
    real = weights + max(really_taken(chosen, *shape), images + SCORING_BYTES * math.prod(shape[1:]))
    assert 0.95 * real < estimate.memory < 1.3 * real  # bands of small windows take less than is assumed


def test_cpu_takes_less_at_once_and_bf16_half_of_the_weights():
    whole = predictor(batch_size=8)
    sizes = [(600, 600)] * 8  # 360,000 pixels: more than a pass on a CPU has
    assert CPU_PASS_PIXELS < 600 * 600
    on_cpu, on_cuda = (measure_validation(whole, sizes, device).memory for device in (CPU, CUDA))
    assert on_cpu < on_cuda / 2
    small = [(8, 8)]  # of which nothing but the copy of the weights is large
    full, half = (measure_validation(predictor(amp=amp), small, CPU).memory for amp in ("none", "bf16"))
    assert half < 0.55 * full


def test_scoring_of_a_photo_counts():
    """With small windows it takes more than the model: 24 bytes a pixel, 3 more are the image, 1 each the labels."""
    pixels = 3000 * 4000
    taken = measure_validation(predictor(window=33, long_side=99), [(3000, 4000)], CPU).memory
    assert (SCORING_BYTES + 5) * pixels < taken < (SCORING_BYTES + 5) * pixels + BAND_BYTES


@pytest.mark.full_size
def test_line_names_validation_if_it_takes_more_than_training_and_a_gibibyte(caplog):
    def line(sizes, **settings) -> str:
        caplog.clear()
        chosen = predictor(**settings)
        validation = measure_validation(chosen, sizes, CPU)
        summary = summarize(chosen.model, Criterion({"seg": 1.0}), batchsize=2, crop_size=65, validation=validation)
        assert summary.memory == sum(summary.states.values()) + max(summary.working, validation.memory)
        summary.log("res50_ASPP", CPU)
        return caplog.messages[0]

    caplog.set_level("INFO", "segtrain")
    photo, small = [(3000, 4000)] * 4, [(64, 64)] * 4
    assert line(photo).endswith("GiB to validate 4 images of 4000x3000")
    assert line(photo, long_side=1400).endswith("for 2 images of 65x65 on cpu")
    assert line(small).endswith("for 2 images of 65x65 on cpu")
