"""Augmentation: one warp, the same for all maps, drawn from (seed, epoch, index) only."""

import cv2
import numpy as np
import pytest
import torch

from data.dataset import SegmentationDataset
from data.distance import pseudo_distance, scribble_distance
from data.layout import Split, read_list
from data.transforms import MEAN_COLOUR, CentreCrop, TrainTransform


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


@pytest.mark.parametrize("seed", range(20))
def test_label_stays_on_the_object_and_gets_no_values_between_classes(seed):
    # A filled square in both: after any warp, the label must be where the image is bright.
    label = np.zeros((60, 80), np.uint8)
    label[20:45, 25:60] = 20
    warped = TrainTransform(64, blur=0.0)(maps_of(label, brightness=10), np.random.default_rng(seed))
    bright = warped["image"][..., 0]
    assert set(np.unique(warped["label"])) <= {0, 20, 255}
    assert (bright[warped["label"] == 20] >= 90).mean() > 0.99
    assert (bright[warped["label"] == 0] <= 110).mean() > 0.99


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
