"""The augmentation from the flags: what one can set and the picture at a run's start."""

import numpy as np
import torch
from conftest import ALONE, flags
from PIL import Image

import train
import utils
from data.classes import read_classes
from data.overlays import overlay, sheet
from data.transforms import TrainTransform
from flags import parse_flags
from training.data import get_transform
from training.record.boards import TensorBoard
from training.record.samples import draw_samples

EVERY = {"scale": "0.7 1.5", "rotation": 30, "flip_vertical": True, "quarter_turns": True, "blur": 0.2}
EVERY |= {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.1}


def words(**values) -> list[str]:
    """Command-line words of a tiny run; a text with spaces is several values."""
    return [part for word in flags(**values) for part in word.split(" ")]


def test_flags_reach_the_transform():
    transform = get_transform(parse_flags([*words(dataset_path="x", **EVERY), "--no_flip_horizontal"]))
    assert isinstance(transform, TrainTransform)
    assert (transform.scale, transform.rotation, transform.blur) == ((0.7, 1.5), 30.0, 0.2)
    assert (transform.flip_horizontal, transform.flip_vertical, transform.quarter_turns) == (False, True, True)
    jitter = transform.jitter
    assert (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue) == (0.3, 0.3, 0.3, 0.1)
    cdsp = TrainTransform(33, scale=(0.5, 2.0), rotation=10.0, flip_horizontal=True, blur=0.5)
    assert get_transform(parse_flags(words(dataset_path="x"))) == cdsp  # as its release augments


def test_the_picture_shows_the_first_batch_and_changes_no_batch(demo_root):
    cfg = parse_flags(words(dataset_path=demo_root, crop_size=65, batchsize=3, **EVERY))
    loader, classes = utils.get_loader(cfg, "train", ALONE), read_classes("", 5)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist()
    picture = draw_samples(cfg, loader, classes)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]
    batch = next(iter(loader))
    rows = [
        # the image, and this with the scribbles and the pseudo-labels
        [image, overlay(image, label, classes.colours, 0), overlay(image, pseudo, classes.colours, 0)]
        for image, label, pseudo in zip(batch.image.numpy(), batch.label.numpy(), batch.pseudo.numpy(), strict=True)
    ]
    assert np.array_equal(picture, sheet(rows))


def test_a_run_has_the_picture_in_its_folder_and_on_boards_and_keeps_it(demo_root, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(TensorBoard, "write", lambda board, *values: written.append(values))
    given = {"dataset_path": demo_root, "logdir": tmp_path, "name": "a", "crop_size": 65, "val_epoch_frequency": 0}
    given["background"] = "none"  # as the recipe chooses for the demo's class names
    assert train.main(words(**given, max_steps=1, save_step_frequency=1)) == 0
    file = tmp_path / "a" / "augmented.jpg"
    cfg = parse_flags(words(**given))
    picture = draw_samples(cfg, utils.get_loader(cfg, "train", ALONE), read_classes(str(demo_root / "classes.txt"), 5))
    shown = np.asarray(Image.open(file)).astype(float)
    assert np.abs(shown - picture).mean() < 10  # JPEG; another sample differs by far more
    step, _, pictures = written[0]  # before the first step
    assert step == 0
    assert np.array_equal(pictures["train_images/augmented"], picture)
    file.write_bytes(b"kept")
    assert train.main(words(**given, max_steps=2, resume="auto")) == 0
    assert file.read_bytes() == b"kept"
