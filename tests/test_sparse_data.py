"""What the losses for sparse labels need of a sample: its padding, the classes of the whole image, a second image."""

import numpy as np
import pytest
import torch
from conftest import flags
from test_transforms import noise

import config
import utils
from builders.augmentation import get_transform
from data.augment.jitter import LUMA, ColourJitter
from data.augment.sparse import SparseTransform
from data.augment.transforms import MEAN_COLOUR, CentreCrop, TrainTransform
from distributed.group import Group

GROUP = Group(torch.device("cpu"))


@pytest.mark.parametrize("seed", range(5))
def test_what_the_losses_need_changes_no_bit_of_a_sample(seed):
    maps = noise(40, 50)
    plain = TrainTransform(120)(maps, np.random.default_rng(seed))
    transform = SparseTransform(TrainTransform(120), 255, ColourJitter())
    sample = transform(transform.inputs(maps), np.random.default_rng(seed))
    assert list(sample) == [*plain, "inside", "present", "strong"]
    assert all(np.array_equal(sample[name], values) for name, values in plain.items())
    # noise() has no 255: where the label is 255, there is padding
    assert np.array_equal(sample["inside"], plain["label"] != 255)
    assert 0 < sample["inside"].mean() < 1


def test_a_class_outside_the_crop_is_present():
    label = np.full((40, 40), 255, np.uint8)
    label[20, 20], label[0, 0] = 3, 1
    transform = SparseTransform(CentreCrop(8), 5)
    sample = transform(transform.inputs({"image": np.zeros((40, 40, 3), np.uint8), "label": label}), None)
    assert set(np.unique(sample["label"])) == {3, 255}
    assert sample["present"].tolist() == [0, 1, 0, 1, 0]
    assert "strong" not in sample


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_their_samples(demo_root, workers):
    words = flags(dataset_path=demo_root, crop_size=97, workers=workers, ema=0.9, l_absent=1, l_consistency=1)
    loader = utils.get_loader(config.parse(words), "train", GROUP)
    keys, batch = list(loader.sampler)[:2], next(iter(loader))
    samples = [loader.dataset[key] for key in keys]
    assert {"inside", "present", "strong"} < set(samples[0])
    for name in samples[0]:
        assert np.array_equal(batch[name].numpy(), np.stack([sample[name] for sample in samples])), name
    assert batch["inside_nonzero"].tolist() == [int(sample["inside"].sum()) for sample in samples]
    assert any((sample["strong"] != sample["image"]).any() for sample in samples)


def test_without_these_losses_a_sample_has_its_maps_alone():
    assert isinstance(get_transform(config.parse(flags(dataset_path="x"))), TrainTransform)
    crf = get_transform(config.parse(flags(dataset_path="x", l_crf=0.1)))
    assert set(crf.inputs(noise(9, 9))) == {"image", "label", "distance_s", "inside"}


class Drawn:
    """A random generator that returns these values for ColourJitter."""

    def __init__(self, *factors: float, changes: bool = True, grey: bool = False):
        self.randoms, self.factors = iter((0.0 if changes else 0.99, 0.0 if grey else 0.99)), factors

    def random(self) -> float:
        return next(self.randoms)

    def uniform(self, low: np.ndarray, high: np.ndarray) -> tuple[float, ...]:
        assert (low.tolist(), high.tolist()) == ([0.5, 0.5, 0.5, 0.0], [1.5, 1.5, 1.5, 0.0])
        return *self.factors, 0.0


def plain_jitter(image: np.ndarray, brightness: float, contrast: float, saturation: float) -> np.ndarray:
    """One change after the other, in float64, and rounded at the end."""
    values = image * brightness
    values = np.array(MEAN_COLOUR) + contrast * (values - MEAN_COLOUR)
    grey = (values @ LUMA)[..., None]
    return np.rint(grey + saturation * (values - grey)).clip(0, 255)


@pytest.mark.parametrize("factors", [(0.5, 1.5, 0.5), (1.5, 0.5, 1.5), (1.2, 1.1, 0.7), (1.0, 1.0, 1.0)])
@pytest.mark.parametrize("grey", [False, True])
def test_jitter_of_rgb(factors, grey):
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    before, inside = image.copy(), np.ones((20, 30), np.uint8)
    inside[:5] = 0
    changed = ColourJitter()(image, inside, Drawn(*factors, grey=grey))
    expected = plain_jitter(image, *factors[:2], 0.0 if grey else factors[2])
    # OpenCV computes with a few more bits than 8
    assert np.abs(changed[5:].astype(int) - expected[5:]).max() <= 1
    assert (changed[:5] == before[:5]).all()
    assert np.array_equal(image, before)
    assert np.ptp(changed[5:].astype(int), axis=-1).max() <= 1 or not grey


def test_jitter_of_other_images_is_in_units_of_their_deviation():
    jitter = ColourJitter((1000.0, 50.0), (200.0, 10.0))
    inside = np.ones((1, 3), np.uint8)
    drawn = (1.5, 0.5, 7.0)  # the mean + 0.5 (x - mean) + 0.5 std
    image = np.array([[[1000, 50], [0, 0], [65535, 90]]], np.uint16)
    assert jitter(image, inside, Drawn(*drawn)).tolist() == [[[1100, 55], [600, 30], [33368, 75]]]  # 33367.5 + 0.5
    deep = image.astype(np.int16)
    deep[0, 2, 0] = 32767
    assert jitter(deep, inside, Drawn(1.5, 1.5, 1.0)).tolist() == [[[1100, 55], [-400, -20], [32767, 115]]]
    floats = image.astype(np.float32)
    floats[0, 1, 1] = np.nan
    changed = jitter(floats, inside, Drawn(*drawn))
    assert changed.dtype == np.float32
    assert np.isnan(changed).tolist() == [[[False, False], [False, True], [False, False]]]


def test_a_fifth_of_the_images_is_not_changed():
    """Of 400, 80; 4 standard deviations, sqrt(400 * 0.2 * 0.8) = 8 each, are 32."""
    image, inside = np.full((1, 1, 3), 60, np.uint8), np.ones((1, 1), np.uint8)
    rng = np.random.default_rng(0)
    same = sum(ColourJitter()(image, inside, rng) is image for _ in range(400))
    assert 48 <= same <= 112
