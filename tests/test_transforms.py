"""Augmentation: one warp, the same for all maps, drawn from (seed, epoch, index) only."""

import cv2
import numpy as np
import pytest
import torch

from data.dataset import SegmentationDataset
from data.distance import pseudo_distance, scribble_distance
from data.layout import Split, read_list
from data.transforms import MEAN_COLOUR, CentreCrop, ColourJitter, TrainTransform


class Fixed:
    """A random generator that returns these values for TrainTransform; it always rotates."""

    def __init__(self, scale=1.0, angle=0.0, flip=False, offset=(0.5, 0.5)):
        self.uniforms = iter((scale, angle))
        self.randoms = iter((0.0, 0.0 if flip else 0.9, *offset, 0.9))  # the last: no blur

    def uniform(self, low, high):
        return next(self.uniforms)

    def random(self):
        return next(self.randoms)


def maps_of(label: np.ndarray, brightness: int = 1) -> dict[str, np.ndarray]:
    return {"image": np.stack([label * brightness] * 3, axis=-1), "label": label, "distance_s": label.copy()}


def noise(height: int, width: int) -> dict[str, np.ndarray]:
    return maps_of(np.random.default_rng(0).integers(0, 255, (height, width), dtype=np.uint8))


@pytest.mark.parametrize(
    ("values", "rows", "columns"),
    # The middle of 10x12 pixels, mirrored, and offsets of 0 and of nearly everything: the first and the last 8x8 pixels
    [
        ({}, slice(1, 9), slice(2, 10)),
        ({"flip": True}, slice(1, 9), slice(9, 1, -1)),
        ({"offset": (0.0, 0.0)}, slice(8), slice(8)),
        ({"offset": (1.0, 1.0)}, slice(2, 10), slice(4, 12)),
    ],
)
def test_crop_and_flip_are_exact(values, rows, columns):
    maps = noise(10, 12)
    cropped = TrainTransform(8)(maps, Fixed(**values))
    assert all((cropped[name] == maps[name][rows, columns]).all() for name in maps)


def test_d9_padding_is_mean_colour_255_and_distance_0():
    warped = TrainTransform(8)(noise(4, 4), Fixed())  # 2 pixels of padding on each side
    assert (warped["label"][2:6, 2:6] == noise(4, 4)["label"]).all()
    outside = np.ones((8, 8), bool)
    outside[2:6, 2:6] = False
    for name, value in (("image", MEAN_COLOUR), ("label", 255), ("distance_s", 0)):
        assert (warped[name][outside] == value).all()


def test_scale_and_rotation_go_about_the_centre():
    label = np.zeros((9, 9), np.uint8)
    label[4, 6] = 7  # 2 pixels right of the centre
    turned = TrainTransform(9)(maps_of(label), Fixed(angle=90.0))["label"]
    assert np.argwhere(turned == 7).tolist() == [[6, 4]]  # clockwise on the screen: 2 pixels below it
    doubled = TrainTransform(18)(maps_of(label), Fixed(scale=2.0))["label"]
    # pixel 6 covers 6..7, doubled 12..14: pixels 12 and 13; pixel 4 likewise 8 and 9
    assert np.argwhere(doubled == 7).tolist() == [[8, 12], [8, 13], [9, 12], [9, 13]]


@pytest.mark.parametrize(
    "others", [(), ("label",), ("label", "pseudo"), ("label", "pseudo", "distance_s", "distance_c")]
)
def test_maps_warped_together_equal_each_warped_by_itself(others):
    """The image as three channels and each label map alone, by OpenCV itself, into arrays of the caller."""
    outside = {"image": MEAN_COLOUR, "label": 255, "pseudo": 255, "distance_s": 0, "distance_c": 0}
    rng = np.random.default_rng(0)
    maps = {"image": rng.integers(0, 256, (50, 70, 3), dtype=np.uint8)}
    maps |= {name: rng.integers(0, 256, (50, 70), dtype=np.uint8) for name in others}
    for seed in range(10):
        transform, rng = TrainTransform(61), np.random.default_rng(seed)
        matrix, blurred = transform._matrix(50, 70, rng), rng.random() < 0.5
        out = {name: np.full((61, 61, *values.shape[2:]), 7, np.uint8) for name, values in maps.items()}
        assert transform(maps, np.random.default_rng(seed), out) is out
        for name, values in maps.items():
            flags = cv2.INTER_LINEAR if name == "image" else cv2.INTER_NEAREST
            expected = cv2.warpAffine(values, matrix, (61, 61), flags=flags, borderValue=outside[name])
            if name == "image" and blurred:
                expected = cv2.GaussianBlur(expected, (5, 5), 0)
            assert np.array_equal(out[name], expected), (seed, name)


def test_half_of_the_samples_are_rotated():
    """Audit B3. Of 400 matrices about 200 have a sine of 0; 4 standard deviations, sqrt(400 / 4) each, are 40."""
    rng = np.random.default_rng(0)
    matrices = [TrainTransform(8)._matrix(8, 8, rng) for _ in range(400)]
    assert 160 <= sum(matrix[0, 1] != 0 for matrix in matrices) <= 240
    assert all(TrainTransform(8, rotation_p=0.0)._matrix(8, 8, rng)[0, 1] == 0 for _ in range(20))


class Chosen(Fixed):
    """Fixed, which then flips upside down and turns by 90 degrees clockwise as often as it is told."""

    def __init__(self, *, upside_down: bool, turns: int, **values):
        super().__init__(**values)
        self.randoms = iter([*list(self.randoms)[:-1], 0.0 if upside_down else 0.9, 0.9])
        self.turns = turns

    def integers(self, end: int) -> int:
        assert end == 4
        return self.turns


@pytest.mark.parametrize("size", [(10, 12), (10, 13), (9, 13)])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("upside_down", [False, True])
@pytest.mark.parametrize("turns", range(4))
def test_quarter_turns_and_flips_are_exact_at_scale_1(turns, upside_down, flip, size):
    """Also where an odd number of pixels is left over on a side, or is missing: nothing is resampled."""
    rng = np.random.default_rng(0)
    maps = {"image": rng.integers(0, 256, (*size, 3), np.uint8), "label": rng.integers(0, 255, size, np.uint8)}
    transform = TrainTransform(11, scale=(1, 1), flip_vertical=True, quarter_turns=True)
    warped = transform(maps, Chosen(turns=turns, upside_down=upside_down, flip=flip, offset=(0.7, 0.2)))
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


def test_flips_and_turns_come_as_often_as_they_should():
    """Of 800 matrices, 400 are upside down and 200 each have one of the four turns; the bounds are 4 deviations."""
    rng, transform = np.random.default_rng(0), TrainTransform(8, rotation=0, flip_vertical=True, quarter_turns=True)
    linear = [transform._matrix(8, 8, rng)[:, :2] for _ in range(800)]
    linear = [np.rint(matrix / np.abs(matrix).max()).astype(int) for matrix in linear]
    # The eight symmetries of a square, 100 each: 100 - 4 * sqrt(800 * 1/8 * 7/8) = 62
    assert all(62 <= count <= 138 for count in np.unique(linear, axis=0, return_counts=True)[1])
    assert len(np.unique(linear, axis=0)) == 8
    only = TrainTransform(8, rotation=0, flip_horizontal=False)
    assert all((np.sign(only._matrix(8, 8, rng)[:, :2]) == np.eye(2)).all() for _ in range(20))


@pytest.mark.parametrize("seed", range(3))
def test_new_settings_leave_a_seeds_other_draws_as_they_are(seed):
    """Flips, turns and colours are drawn after the rest, so scale, angle and place of the crop stay the same."""
    plain, every = TrainTransform(33), TrainTransform(33, flip_vertical=True, quarter_turns=True)
    first, second = (kind._matrix(40, 40, np.random.default_rng(seed))[:, :2] for kind in (plain, every))
    assert np.linalg.det(first @ first.T) == pytest.approx(np.linalg.det(second @ second.T))
    maps = noise(40, 40)
    coloured = TrainTransform(33, jitter=ColourJitter(brightness=0.5))
    one, other = (kind(maps, np.random.default_rng(seed)) for kind in (plain, coloured))
    assert np.array_equal(one["label"], other["label"])


def test_colours_change_the_image_and_neither_padding_nor_labels():
    image = np.random.default_rng(0).integers(0, 200, (20, 30, 3), dtype=np.uint8)
    maps = {"image": image, "label": np.zeros((20, 30), np.uint8), "distance_s": np.ones((20, 30), np.uint8)}
    jitter = ColourJitter(0.5, 0.5, 0.5, p=1.0)
    plain = TrainTransform(40, blur=0.0)(maps, np.random.default_rng(3))
    changed = TrainTransform(40, blur=0.0, jitter=jitter)(maps, np.random.default_rng(3))
    inside = plain["label"] == 0
    assert 0.1 < inside.mean() < 0.9
    padding = ~inside & (plain["image"] == MEAN_COLOUR).all(-1)  # and not the border, where both are mixed
    assert (changed["image"][padding] == plain["image"][padding]).all()
    # The draws of the warp and of the blur come first; then one colour for the whole image.
    generator = np.random.default_rng(3)
    TrainTransform(40, blur=0.0)(maps, generator)
    expected = jitter(plain["image"], np.ones((40, 40), np.uint8), generator)
    assert (expected != plain["image"]).any()
    assert (changed["image"][inside] == expected[inside]).all()
    for name in ("label", "distance_s"):
        assert np.array_equal(changed[name], plain[name])


def plain_hue(colour: np.ndarray, turn: float) -> np.ndarray:
    """Turn a colour about the axis of the greys: its part along the axis stays, the rest turns across it."""
    axis = np.ones(3) / np.sqrt(3)
    along = colour @ axis * axis
    across = colour - along
    angle = 2 * np.pi * turn
    return along + np.cos(angle) * across + np.sin(angle) * np.cross(axis, across)


def test_hue_turns_colours_and_keeps_greys():
    jitter = ColourJitter(brightness=0, contrast=0, saturation=0, hue=0.5, p=1.0)
    image = np.array([[[90, 90, 90], [255, 0, 0], [120, 130, 100], [10, 60, 200]]], np.uint8)
    inside = np.ones((1, 4), np.uint8)
    for seed in range(10):
        draws = np.random.default_rng(seed)
        draws.random(2)
        turn = draws.uniform([1, 1, 1, -0.5], [1, 1, 1, 0.5])[3]
        changed = jitter(image, inside, np.random.default_rng(seed))[0].astype(int)
        expected = [plain_hue(colour, turn).clip(0, 255) for colour in image[0].astype(float)]
        assert np.abs(changed - expected).max() <= 1.5  # OpenCV's matrix has about ten bits
    assert plain_hue(np.array([255.0, 0, 0]), 1 / 3) == pytest.approx([0, 255, 0])  # red becomes green


@pytest.fixture
def train_set(demo_root):
    folders = {"image": "JPEGImages", "label": "pascal_2012_scribble", "pseudo": "bmp_pseudolabel"}
    names = read_list(demo_root / "ImageSets/SegmentationAug/train.txt")
    split = Split({name: demo_root / folder for name, folder in folders.items()}, names)
    compute = {"distance_s": ("label", scribble_distance), "distance_c": ("pseudo", pseudo_distance)}
    return SegmentationDataset(split, 5, transform=TrainTransform(65), compute=compute, seed=3)


def test_augmentation_depends_on_seed_epoch_and_index_only(train_set):
    once, again = train_set[2, 1], train_set[2, 1]
    assert all((once[name] == again[name]).all() for name in once)
    for other in ((3, 1), (2, 2)):
        assert (train_set[other]["image"] != once["image"]).any()
    train_set.seed = 4
    assert (train_set[2, 1]["image"] != once["image"]).any()


def test_batch_is_its_samples_and_the_extras(train_set):
    train_set.extras = [lambda batch: {"brightest": batch["image"].amax((1, 2, 3))}]
    keys = [(2, 1), (0, 3), (2, 0)]
    batch = train_set.__getitems__(keys)
    samples = [train_set[key] for key in keys]
    assert list(batch) == [*samples[0], "brightest"]
    for name in samples[0]:
        assert batch[name].dtype == torch.uint8
        assert batch[name].tolist() == np.stack([sample[name] for sample in samples]).tolist()
    assert batch["brightest"].tolist() == [sample["image"].max() for sample in samples]


def test_d9_computed_distance_is_0_on_padding(train_set):
    train_set.transform = TrainTransform(400, blur=0.0)  # wider than any scaled demo image: there is padding
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
    maps = noise(height, width)
    cropped = CentreCrop(crop)(maps, np.random.default_rng(0))
    left = max(0, (crop - width) // 2)
    for name, values in maps.items():
        inside = cropped[name][:, left : left + columns[1] - columns[0]]
        assert np.array_equal(inside, values[slice(*rows), slice(*columns)])
    assert (cropped["label"][:, :left] == 255).all()
    assert (cropped["distance_s"][:, :left] == 0).all()
