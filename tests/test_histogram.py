"""Counting labels, and the class weights that follow or are given."""

import math

import numpy as np
import pytest
from conftest import ALONE, flags
from PIL import Image

import utils
from data.histogram import value_histogram
from flags import parse_flags
from flags.loss_weights import read_class_weights
from losses.class_weights import balanced_weights
from training.record.messages import log_losses


def weights_of(root, **values) -> list[float] | None:
    """get_class_weights on the drawn data, as a group of one, and their log line."""
    cfg = parse_flags(flags(dataset_path=root, **values))
    weights = utils.get_class_weights(cfg, ALONE, utils.get_loader(cfg, "train", ALONE).dataset)
    log_losses(cfg, weights)
    return weights


@pytest.mark.parametrize("shape", [(30, 40), (2**12 + 1, 2**12)])
def test_every_value_is_counted_also_beyond_the_whole_numbers_of_float32(shape):
    values = np.zeros(shape, np.uint8)
    values[0, :5] = 1, 1, 254, 255, 255
    counts = value_histogram(values)
    assert {index: int(counts[index]) for index in np.flatnonzero(counts)} == {0: values.size - 5, 1: 2, 254: 1, 255: 2}


def test_the_loader_counts_pixels(demo_root):
    more = {"model_type": "res50_ASPP", "batchsize": 4, "crop_size": 97, "workers": 0}
    batch = next(iter(utils.get_loader(parse_flags(flags(dataset_path=demo_root, **more)), "train", ALONE)))
    assert set(batch.counts) == set(batch.maps) == {"label", "pseudo", "distance_s", "distance_c"}
    for name, maps in batch.maps.items():
        by_image = [np.bincount(values.ravel(), minlength=256) for values in maps.numpy()]
        expected = [np.count_nonzero(values) for values in maps.numpy()] if "distance" in name else by_image
        assert batch.counts[name].tolist() == np.array(expected).tolist()


def test_weights_by_enets_rule():
    weights = balanced_weights(np.array([3, 1, 0]))
    assert weights.tolist() == pytest.approx([1 / math.log(1.77), 1 / math.log(1.27), 1 / math.log(1.02)])
    assert balanced_weights(np.array([0, 0])).tolist() == pytest.approx([1 / math.log(1.02)] * 2)


@pytest.mark.parametrize("dataset", ["Dense", "ScribbleOnly"])
def test_balanced_counts_the_training_labels(demo_root, caplog, dataset):
    """Of the 8 training images, not the 3 validation images, whose masks are in the same folder."""
    folder = demo_root / ("SegmentationClassAug" if dataset == "Dense" else "pascal_2012_scribble")
    names = (demo_root / "ImageSets/SegmentationAug/train.txt").read_text().split()
    values = np.concatenate([np.asarray(Image.open(folder / f"{name}.png")).ravel() for name in names])
    share = np.array([(values == number).sum() for number in range(5)]) / (values != 255).sum()
    weights = weights_of(demo_root, dataset=dataset, class_weights="balanced", l_seg=2, loss="dice+0.5*ce")
    assert caplog.messages[0].startswith("losses: 2 seg_dice + 1 seg")
    assert weights == pytest.approx(1 / np.log(1.02 + share), rel=1e-12)
    assert f"class weights (--class_weights balanced): 0: {weights[0]:.4g}, 1: {weights[1]:.4g}" in caplog.messages[1]


def test_class_weights_as_numbers(demo_root):
    assert weights_of(demo_root, class_weights="1, 2,0.5,0,1e1") == [1, 2, 0.5, 0, 10]
    assert weights_of(demo_root) is None
    assert read_class_weights("balanced", 3) is None
