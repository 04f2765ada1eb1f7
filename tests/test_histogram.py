"""Counting labels, and the class weights that follow or are given."""

import math
import re
import shutil

import numpy as np
import pytest
import torch
from conftest import flags, run_train
from criterion import get_class_weights, get_criterion
from PIL import Image

import config
import utils
from data import histogram
from data.histogram import class_weights, count_labels, given_weights, label_histogram
from distributed.checks import digest
from distributed.group import Group
from errors import UserError
from runs.run import Run

CPU = torch.device("cpu")


def weights_of(root, said: list[str] | None = None, saved: dict | None = None, **values) -> list[float] | None:
    """get_class_weights on the drawn data, as a group of one."""
    cfg, group = config.parse(flags(dataset_path=root, **values)), Group(CPU)
    run = Run(group, 1)
    found = get_class_weights(cfg, group, utils.get_loader(cfg, "train", group), run, saved)
    if said is not None:
        said += run._lines
    return found


def test_histogram_leaves_ignored_pixels_out():
    label = np.array([[0, 0, 2], [255, 2, 2]], np.uint8)
    assert label_histogram(label, 4).tolist() == [2, 0, 3, 0]
    assert label_histogram(np.full((2, 2), 255, np.uint8), 2).tolist() == [0, 0]


def test_weights_by_enets_rule():
    weights = class_weights(np.array([3, 1, 0]))
    assert weights.tolist() == pytest.approx([1 / math.log(1.77), 1 / math.log(1.27), 1 / math.log(1.02)])
    assert class_weights(np.array([0, 0])).tolist() == pytest.approx([1 / math.log(1.02)] * 2)


@pytest.mark.parametrize("dataset", ["Dense", "ScribbleOnly"])
def test_balanced_counts_the_training_labels(demo_root, dataset):
    """Of the 8 training images, not the 3 validation images, whose masks lie in the same folder."""
    folder = demo_root / ("SegmentationClassAug" if dataset == "Dense" else "pascal_2012_scribble")
    names = (demo_root / "ImageSets/SegmentationAug/train.txt").read_text().split()
    values = np.concatenate([np.asarray(Image.open(folder / f"{name}.png")).ravel() for name in names])
    share = np.array([(values == number).sum() for number in range(5)]) / (values != 255).sum()
    said: list[str] = []
    weights = weights_of(demo_root, said, dataset=dataset, class_weights="balanced")
    assert weights == pytest.approx(1 / np.log(1.02 + share), rel=1e-12)
    assert f"class weights (--class_weights balanced): 0: {weights[0]:.4g}, 1: {weights[1]:.4g}" in said[0]


def test_resumed_run_counts_again_only_where_something_changed(demo_root, tmp_path, monkeypatch):
    counted: list[int] = []
    monkeypatch.setattr(histogram, "count_labels", lambda paths, *args: counted.append(1) or count_labels(paths, *args))
    root = shutil.copytree(demo_root, tmp_path / "data")
    words = {"dataset_path": root, "dataset": "Dense", "class_weights": "balanced"}
    weights = weights_of(root, dataset="Dense", class_weights="balanced")
    cfg = config.parse(flags(**words))
    listing = utils.get_loader(cfg, "train", Group(torch.device("cpu"))).dataset.listing
    saved = {"config": config.as_dict(cfg), "listing": digest(listing), "class_weights": weights}
    assert len(counted) == 1
    said: list[str] = []
    # The file has a weight that no counting gives.
    saved["class_weights"] = weights = [*weights[:-1], 7.0]
    assert weights_of(root, said, saved, dataset="Dense", class_weights="balanced") == weights
    assert "class weights (--class_weights balanced, from the checkpoint): 0: " in said[0]
    assert len(counted) == 1
    # Other classes or labels, a file without the numbers, one of other --class_weights: as in a new run.
    without = {name: value for name, value in saved.items() if name != "class_weights"}
    plain = saved | {"config": saved["config"] | {"class_weights": "none"}, "class_weights": None}
    for changed, values in [
        (saved, {"numclasses": 6}), (saved, {"dataset": "ScribbleOnly"}), (saved, {"train_path": "SegmentationClassAug"}),
        (without, {}), (plain, {}),
    ]:  # fmt: skip
        before = len(counted)
        weights_of(root, said, changed, **{"dataset": "Dense", "class_weights": "balanced"} | values)
        assert len(counted) == before + 1, values
    names = root / "ImageSets/SegmentationAug/train.txt"
    names.write_text("\n".join(names.read_text().split()[1:]))
    weights_of(root, said, saved, dataset="Dense", class_weights="balanced")
    assert len(counted) == before + 2


def test_class_weights_are_in_the_checkpoint(demo_root, tmp_path, monkeypatch):
    words = {
        "dataset_path": demo_root,
        "logdir": tmp_path,
        "dataset": "Dense",
        "class_weights": "balanced",
        "name": "x",
    }
    folder = run_train(**words)
    monkeypatch.setattr(histogram, "count_labels", None)
    run_train(**words, resume="auto", epochs=2)
    assert "--class_weights balanced, from the checkpoint" in (folder / "train.log").read_text()


def test_given_weights(demo_root, tmp_path):
    assert weights_of(demo_root, class_weights="1, 2,0.5,0,1e1") == [1, 2, 0.5, 0, 10]
    (tmp_path / "w.txt").write_text("1\n2\n\n0.5\n0\n10\n")
    assert weights_of(demo_root, class_weights=tmp_path / "w.txt") == [1, 2, 0.5, 0, 10]
    assert weights_of(demo_root) is None
    assert given_weights("balanced", 3) is None


@pytest.mark.parametrize("values", [{"loss": "dice+lovasz"}, {"dataset": "PseudoOnly"}, {"l_seg": 0}])
def test_weights_that_no_loss_uses_are_said(demo_root, values):
    said: list[str] = []
    assert weights_of(demo_root, said, class_weights="balanced", **values) is None
    assert "--class_weights balanced: not used" in said[0]


def test_a_bad_label_is_named_while_counting(demo_root, tmp_path):
    Image.fromarray(np.full((4, 4), 9, np.uint8)).save(tmp_path / "bad.png")
    good = sorted((demo_root / "SegmentationClassAug").iterdir())
    assert count_labels(good, 5).sum() > 0
    with pytest.raises(UserError, match=r"bad\.png: label 9 in 16 pixel"):
        count_labels([*good, tmp_path / "bad.png"], 5)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--class_weights", "1,2"], "--class_weights 1,2: 2 numbers, but --numclasses is 3: give each class one"),
        (["--class_weights", "1,-2,1"], "--class_weights 1,-2,1: '-2', of class 1, must be a number of at least 0"),
        (["--class_weights", "1,x,1"], "'x', of class 1, must be a number"),
        (["--class_weights", "1,nan,1"], "'nan', of class 1"),
        (["--class_weights", "0,0,0"], "all weights are 0"),
        (["--class_weights", "balance"], "--class_weights balance: No such file or directory; give none, balanced"),
        (["--class_weights", "/dev"], "--class_weights /dev: Is a directory"),
        (["--loss", "ce+focl"], "--loss ce+focl: 'focl' is not known: did you mean focal?"),
        (["--ohem_fraction", "0"], "--ohem_fraction 0.0: must be above 0 and at most 1"),
        (["--ohem_fraction", "1.5"], "--ohem_fraction 1.5: must be above 0 and at most 1"),
        (["--focal_gamma", "-1"], "--focal_gamma -1.0: must be at least 0"),
    ],
)
def test_wrong_flags_are_named(words, named):
    with pytest.raises(UserError, match=re.escape(named)) as caught:
        config.parse(["--dataset_path", "somewhere", "--numclasses", "3", *words])
    assert "\n" not in str(caught.value)


def test_criterion_has_the_losses_of_its_flags(demo_root):
    said: list[str] = []
    cfg = config.parse(flags(
        dataset_path=demo_root, dataset="Dense", l_seg=2, loss="dice+0.5*focal", focal_gamma=3, ohem_fraction=0.5
    ))  # fmt: skip
    criterion = get_criterion(cfg, said.append, [1, 2, 3, 4, 5])
    assert criterion.weights == {"seg_dice": 2, "seg_focal": 1}
    losses = criterion.label_losses
    assert (losses.focal_gamma, losses.ohem_fraction) == (3, 0.5)
    assert losses.weight_of[:5].tolist() == [1, 2, 3, 4, 5]
    # seg is not among what is off: its losses are there, by other names
    assert said == [
        "losses: 2 * seg_dice, 1 * seg_focal (off for --dataset Dense, this model or weight 0: pseudo, lorm, ds, dc)"
    ]
