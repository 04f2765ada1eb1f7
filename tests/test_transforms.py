"""Augmentation: one warp, the same for all maps, drawn from (seed, epoch, index) only."""

import cv2
import numpy as np
import pytest
import torch

from data.dataset import TrainSet
from data.distance import pseudo_distance, scribble_distance
from data.layout import Split, read_list
from data.transforms import MEAN_COLOUR, CentreCrop, ColourJitter, TrainTransform

# As the release of CDSP augments, and train.py by default.
CDSP = {"scale": (0.5, 2.0), "rotation": 10.0, "flip_horizontal": True, "blur": 0.5}


class Fixed:
    """A random generator that returns these values for TrainTransform; it always rotates.

    turns: by 90 degrees clockwise. upside_down is drawn only if the transform may flip so.
    """

    def __init__(self, scale=1.0, angle=0.0, flip=False, offset=(0.5, 0.5), upside_down=False, turns=0):
        self.uniforms, self.turns = iter((scale, angle)), turns
        self.randoms = iter((0.0, 0.0 if flip else 0.9, *offset, 0.0 if upside_down else 0.9, 0.9))  # the last: no blur

    def uniform(self, low, high):
        return next(self.uniforms)

    def random(self):
        return next(self.randoms)

    def integers(self, end: int) -> int:
        assert end == 4
        return self.turns


def maps_of(label: np.ndarray, brightness: int = 1) -> dict[str, np.ndarray]:
    return {"image": np.stack([label * brightness] * 3, axis=-1), "label": label, "distance_s": label.copy()}


def test_scale_and_rotation_go_about_the_centre():
    label = np.zeros((9, 9), np.uint8)
    label[4, 6] = 7  # 2 pixels right of the centre
    turned = TrainTransform(9)(maps_of(label), Fixed(angle=90.0))["label"]
    assert np.argwhere(turned == 7).tolist() == [[6, 4]]  # clockwise on the screen: 2 pixels below it
    doubled = TrainTransform(18)(maps_of(label), Fixed(scale=2.0))["label"]
    # pixel 6 covers 6..7, doubled 12..14: pixels 12 and 13; pixel 4 likewise 8 and 9
    assert np.argwhere(doubled == 7).tolist() == [[8, 12], [8, 13], [9, 12], [9, 13]]


@pytest.mark.parametrize("size", [(10, 12), (9, 13)])
@pytest.mark.parametrize(("flip", "upside_down"), [(False, True), (True, False)])
@pytest.mark.parametrize("turns", range(4))
def test_quarter_turns_and_flips_are_exact_at_scale_1(turns, upside_down, flip, size):
    """Also where an odd number of pixels is left over on a side, or is missing: nothing is resampled."""
    rng = np.random.default_rng(0)
    maps = {"image": rng.integers(0, 256, (*size, 3), np.uint8), "label": rng.integers(0, 255, size, np.uint8)}
    transform = TrainTransform(11, flip_horizontal=True, flip_vertical=True, quarter_turns=True)
    warped = transform(maps, Fixed(turns=turns, upside_down=upside_down, flip=flip, offset=(0.7, 0.2)))
    for name, outside in (("image", MEAN_COLOUR), ("label", 255)):
        values = np.rot90(maps[name], -turns)  # numpy turns anticlockwise
        values = values[::-1] if upside_down else values
        values = values[:, ::-1] if flip else values
        expected = np.full((11, 11, *values.shape[2:]), outside, np.uint8)
        # The crop begins at 0.7 of the columns and 0.2 of the rows left over; of those missing, half come first.
        left, top = (
            np.rint(at * (side - 11) if side > 11 else (side - 11) / 2).astype(int)
            for at, side in zip((0.7, 0.2), values.shape[1::-1], strict=True)
        )
        part = values[max(0, top) : top + 11, max(0, left) : left + 11]
        expected[max(0, -top) :, max(0, -left) :][: part.shape[0], : part.shape[1]] = part
        assert np.array_equal(warped[name], expected), name


@pytest.mark.parametrize("others", [("label",), ("label", "pseudo", "distance_s", "distance_c")])
def test_maps_warped_together_equal_each_warped_by_itself(others):
    """The image as three channels and each label map alone, by OpenCV itself, into arrays of the caller."""
    outside = {"image": MEAN_COLOUR, "label": 255, "pseudo": 255, "distance_s": 0, "distance_c": 0}
    rng = np.random.default_rng(0)
    maps = {"image": rng.integers(0, 256, (50, 70, 3), dtype=np.uint8)}
    maps |= {name: rng.integers(0, 256, (50, 70), dtype=np.uint8) for name in others}
    for seed in range(10):
        transform, rng = TrainTransform(61, **CDSP), np.random.default_rng(seed)
        matrix, blurred = transform._matrix(50, 70, rng), rng.random() < 0.5
        out = {name: np.full((61, 61, *values.shape[2:]), 7, np.uint8) for name, values in maps.items()}
        assert transform(maps, np.random.default_rng(seed), out) is out
        for name, values in maps.items():
            flags = cv2.INTER_LINEAR if name == "image" else cv2.INTER_NEAREST
            expected = cv2.warpAffine(values, matrix, (61, 61), flags=flags, borderValue=outside[name])
            if name == "image" and blurred:
                expected = cv2.GaussianBlur(expected, (5, 5), 0)
            assert np.array_equal(out[name], expected), (seed, name)


def test_rotations_flips_and_turns_come_as_often_as_they_should():
    """Of 400 matrices 200 are rotated; of 800 each of the 8 symmetries has 100; bounds are 4 deviations."""
    rng = np.random.default_rng(0)
    transform = TrainTransform(8, flip_horizontal=True, flip_vertical=True, quarter_turns=True)
    linear = [transform._matrix(8, 8, rng)[:, :2] for _ in range(800)]
    linear = [np.rint(matrix / np.abs(matrix).max()).astype(int) for matrix in linear]
    assert all(62 <= count <= 138 for count in np.unique(linear, axis=0, return_counts=True)[1])
    assert len(np.unique(linear, axis=0)) == 8
    only = TrainTransform(8)
    assert all((np.sign(only._matrix(8, 8, rng)[:, :2]) == np.eye(2)).all() for _ in range(20))
    assert 160 <= sum(TrainTransform(8, **CDSP)._matrix(8, 8, rng)[0, 1] != 0 for _ in range(400)) <= 240


HALF = {"brightness": 0.5, "contrast": 0.5, "saturation": 0.5}


class Drawn:
    """A random generator that returns these values for ColourJitter."""

    def __init__(self, *factors: float, hue: float = 0.0):
        self.factors, self.hue = factors, hue

    def random(self) -> float:
        return 0.0

    def uniform(self, low: np.ndarray, high: np.ndarray) -> tuple[float, ...]:
        assert (low[:3].tolist(), high[:3].tolist(), low[3]) == ([0.5] * 3, [1.5] * 3, -high[3])
        return *self.factors, self.hue


def plain_jitter(image: np.ndarray, brightness: float, contrast: float, saturation: float) -> np.ndarray:
    """One change after the other, in float64, and rounded at the end."""
    values = image * brightness
    values = np.array(MEAN_COLOUR) + contrast * (values - MEAN_COLOUR)
    grey = (values @ [0.299, 0.587, 0.114])[..., None]  # of red, green and blue: ITU-R BT.601
    return np.rint(grey + saturation * (values - grey)).clip(0, 255)


@pytest.mark.parametrize("factors", [(0.5, 1.5, 0.5), (1.5, 0.5, 1.5), (1.2, 1.1, 0.7)])
def test_jitter_of_rgb(factors):
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    before, inside = image.copy(), np.ones((20, 30), np.uint8)
    inside[:5] = 0
    changed = ColourJitter(**HALF)(image, inside, Drawn(*factors))
    expected = plain_jitter(image, *factors)
    # OpenCV computes with a few more bits than 8
    assert np.abs(changed[5:].astype(int) - expected[5:]).max() <= 1
    assert (changed[:5] == before[:5]).all()
    assert np.array_equal(image, before)


def test_colours_change_the_image_and_neither_padding_nor_labels():
    image = np.random.default_rng(0).integers(0, 200, (20, 30, 3), dtype=np.uint8)
    maps, jitter = {"image": image, "label": np.zeros((20, 30), np.uint8)}, ColourJitter(0.5, 0.5, 0.5, p=1.0)
    plain = TrainTransform(40)(maps, np.random.default_rng(3))
    changed = TrainTransform(40, jitter=jitter)(maps, np.random.default_rng(3))
    inside = plain["label"] == 0
    padding = ~inside & (plain["image"] == MEAN_COLOUR).all(-1)  # and not the border, where both are mixed
    assert (changed["image"][padding] == plain["image"][padding]).all()
    assert (changed["image"][inside] != plain["image"][inside]).any()
    assert np.array_equal(changed["label"], plain["label"])


def test_hue_turns_colours_and_keeps_greys():
    """A third of a turn makes red green, and green blue."""
    image = np.array([[[90, 90, 90], [255, 0, 0], [0, 200, 0], [10, 60, 200]]], np.uint8)
    changed = ColourJitter(**HALF, hue=0.5)(image, np.ones((1, 4), np.uint8), Drawn(1, 1, 1, hue=1 / 3))
    expected = [[90, 90, 90], [0, 255, 0], [0, 0, 200], [200, 10, 60]]
    assert np.abs(changed[0].astype(int) - expected).max() <= 1  # OpenCV's matrix has about ten bits


@pytest.fixture
def train_set(demo_root):
    folders = {"image": "JPEGImages", "label": "pascal_2012_scribble", "pseudo": "bmp_pseudolabel"}
    names = read_list(demo_root / "ImageSets/SegmentationAug/train.txt")
    split = Split({name: demo_root / folder for name, folder in folders.items()}, names)
    compute = {"distance_s": ("label", scribble_distance), "distance_c": ("pseudo", pseudo_distance)}
    return TrainSet(split, 5, transform=TrainTransform(65, **CDSP), computed_maps=compute, seed=3)


def test_augmentation_depends_on_seed_epoch_and_index_only(train_set):
    once, again = train_set[2, 1], train_set[2, 1]
    assert all((once[name] == again[name]).all() for name in once)
    for other in ((3, 1), (2, 2)):
        assert (train_set[other]["image"] != once["image"]).any()
    train_set.seed = 4
    assert (train_set[2, 1]["image"] != once["image"]).any()


def test_batch_is_its_samples_and_what_is_derived_from_them(train_set):
    train_set.derived_fields = {"points": ("image", lambda image: image.amax((1, 2, 3)))}
    keys = [(2, 1), (0, 3), (2, 0)]
    batch = train_set.__getitems__(keys)
    samples = [train_set[key] for key in keys]
    assert {"image", *batch.maps} == set(samples[0])
    for name in samples[0]:
        values = getattr(batch, name)
        assert values.dtype == torch.uint8
        assert values.tolist() == np.stack([sample[name] for sample in samples]).tolist()
    assert batch.points.tolist() == [sample["image"].max() for sample in samples]


def test_computed_distance_is_0_on_padding(train_set):
    train_set.transform = TrainTransform(400)  # wider than any scaled demo image: there is padding
    sample = train_set[0, 0]
    assert set(sample) == {"image", "label", "pseudo", "distance_s", "distance_c"}
    padding = (sample["image"] == MEAN_COLOUR).all(-1)
    assert padding.mean() > 0.1
    assert not sample["distance_s"][padding].any()
    assert not sample["distance_c"][padding].any()
    assert sample["distance_c"].any()


@pytest.mark.parametrize(
    ("height", "width", "crop", "rows", "columns"),
    # 7 of 12 rows: 3 above and 2 below; 7 of 5 columns: 1 more on each side
    [(12, 12, 8, (2, 10), (2, 10)), (12, 5, 7, (3, 10), (0, 5)), (7, 7, 7, (0, 7), (0, 7))],
)
def test_centre_crop_takes_whole_pixels_of_the_middle(height, width, crop, rows, columns):
    maps = maps_of(np.random.default_rng(0).integers(0, 255, (height, width), dtype=np.uint8))
    cropped = CentreCrop(crop)(maps, np.random.default_rng(0))
    left = max(0, (crop - width) // 2)
    for name, values in maps.items():
        inside = cropped[name][:, left : left + columns[1] - columns[0]]
        assert np.array_equal(inside, values[slice(*rows), slice(*columns)])
    assert (cropped["label"][:, :left] == 255).all()
    assert (cropped["distance_s"][:, :left] == 0).all()
