"""The augmentation from the flags: what one can set and the picture at a run's start."""

import cv2
import numpy as np
import pytest
import torch
from conftest import flags
from PIL import Image

import config
import train
import utils
from builders.augmentation import draw_samples, get_transform
from data.classes import read_classes
from data.transforms import TrainTransform
from distributed.group import Group
from evaluation.pictures import overlay, sheet
from runs.boards import Board
from support.errors import UserError

GROUP = Group(torch.device("cpu"))
EVERY = {"scale": "0.7 1.5", "rotation": 30, "flip_vertical": True, "quarter_turns": True, "blur": 0.2}
EVERY |= {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.1}


def words(**values) -> list[str]:
    """Command-line words of a tiny run; a text with spaces is several values."""
    return [part for word in flags(**values) for part in word.split(" ")]


def test_flags_reach_the_transform():
    transform = get_transform(config.parse([*words(dataset_path="x", **EVERY), "--no_flip_horizontal"]))
    assert isinstance(transform, TrainTransform)
    assert (transform.scale, transform.rotation, transform.blur) == ((0.7, 1.5), 30.0, 0.2)
    assert (transform.flip_horizontal, transform.flip_vertical, transform.quarter_turns) == (False, True, True)
    jitter = transform.jitter
    assert (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue) == (0.3, 0.3, 0.3, 0.1)
    assert get_transform(config.parse(words(dataset_path="x"))) == TrainTransform(33)  # the defaults of both are one


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scale": "2"}, "--scale 2: give the least and the largest factor"),
        ({"scale": "2 1"}, "--scale 2 1: give the least and the largest factor"),
        ({"scale": "0 1"}, "--scale 0.0: must be above 0"),
        ({"rotation": 200}, "--rotation 200.0: must be at least 0 and at most 180"),
        ({"hue": 0.6}, "--hue 0.6: must be at least 0 and at most 0.5"),
        ({"no_augment": True, "hue": 0.1}, "--hue has no effect without --augment"),
        ({"no_augment": True, "no_flip_horizontal": True}, "--flip_horizontal has no effect without --augment"),
    ],
)
def test_wrong_flags(values, message):
    with pytest.raises(UserError) as caught:
        config.parse(words(dataset_path="x", **values))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(message)


def batches(root, world_size: int = 1, workers: int = 0, **values) -> list[dict[str, np.ndarray]]:
    """The global batches of an epoch, as the ranks of `world_size` processes load them, joined."""
    settings = {"dataset_path": root, "batchsize": 4 // world_size, "workers": workers, "seed": 5} | EVERY | values
    groups = [Group(GROUP.device, rank=rank, world_size=world_size) for rank in range(world_size)]
    loaders = [utils.get_loader(config.parse(words(**settings)), "train", group) for group in groups]
    for loader in loaders:
        loader.sampler.set_position(3, 0)
    return [
        {name: np.concatenate([part[name].numpy() for part in parts]) for name in ("image", "label", "pseudo")}
        for parts in zip(*loaders, strict=True)
    ]


def assert_same(one: list[dict], other: list[dict]) -> None:
    assert len(one) == len(other) > 0
    for first, second in zip(one, other, strict=True):
        assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("world_size", "workers"), [(1, 2), (2, 0), (4, 0)])
def test_samples_do_not_depend_on_processes_and_workers(demo_root, world_size, workers):
    alone = batches(demo_root)
    assert_same(batches(demo_root, world_size, workers), alone)
    assert (alone[0]["image"] != batches(demo_root, seed=6)[0]["image"]).any()


# --- the picture ---


def test_the_picture_shows_the_first_batch_and_changes_no_batch(demo_root):
    cfg = config.parse(words(dataset_path=demo_root, crop_size=65, batchsize=3, **EVERY))
    loader, classes = utils.get_loader(cfg, "train", GROUP), read_classes("", 5)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist()
    picture = draw_samples(cfg, loader, classes)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]
    batch = next(iter(loader))
    rows = [
        # the image, and this with the scribbles and the pseudo-labels
        [image, overlay(image, label, classes.colours, 0), overlay(image, pseudo, classes.colours, 0)]
        for image, label, pseudo in zip(*(batch[name].numpy() for name in ("image", "label", "pseudo")), strict=True)
    ]
    assert np.array_equal(picture, sheet(rows))
    # Two samples abreast, of three pictures each, all with a white frame of one pixel; the fourth place is empty.
    assert picture.shape == (2 * 67, 2 * 3 * 67, 3)
    assert np.array_equal(picture[1:66, 1:66], rows[0][0])
    assert np.array_equal(picture[68:133, 68:133], rows[2][1])
    assert (picture[67:, 3 * 67 :] == 255).all()


def test_large_crops_are_shrunk(tmp_path):
    for folder, values in (("images", np.zeros((300, 300, 3), np.uint8)), ("masks", np.eye(300, dtype=np.uint8))):
        (tmp_path / folder / "train").mkdir(parents=True)
        cv2.imwrite(str(tmp_path / folder / "train/a.png"), values)
    cfg = config.parse(words(dataset="Folder", dataset_path=tmp_path, crop_size=512, batchsize=1))
    picture = draw_samples(cfg, utils.get_loader(cfg, "train", GROUP), read_classes("", 5))
    assert picture.shape == (258, 2 * 2 * 258, 3)


def test_a_run_has_the_picture_in_its_folder_and_on_boards_and_keeps_it(demo_root, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(Board, "write", lambda board, *values: written.append(values))
    given = {"dataset_path": demo_root, "logdir": tmp_path, "name": "a", "crop_size": 65, "val_epoch_frequency": 0}
    assert train.main(words(**given, max_steps=1, save_step_frequency=1)) == 0
    file = tmp_path / "a" / "augmented.jpg"
    cfg = config.parse(words(**given))
    picture = draw_samples(cfg, utils.get_loader(cfg, "train", GROUP), read_classes("", 5))
    shown = np.asarray(Image.open(file)).astype(float)
    assert np.abs(shown - picture).mean() < 10  # JPEG; another sample differs by far more
    assert np.abs(shown - picture[:, ::-1]).mean() > 20
    step, scalars, pictures = written[0]  # before the first step
    assert (step, scalars, list(pictures)) == (0, {}, ["train_images/augmented"])
    assert np.array_equal(pictures["train_images/augmented"], picture)
    assert f"samples: {file}, " in (tmp_path / "a" / "train.log").read_text()

    written.clear()
    file.write_bytes(b"kept")
    assert train.main(words(**given, max_steps=2, resume="auto")) == 0
    assert file.read_bytes() == b"kept"
    assert all("train_images/augmented" not in values[2] for values in written if len(values) == 3)
