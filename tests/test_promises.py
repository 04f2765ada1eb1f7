"""Promises of one line each, which a small change could break without another test failing."""

import dataclasses
import functools
import itertools
import math
import os
import shlex
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ALONE, finish, flags, one_line_each, read_metrics, refused, smooth_images, two_processes
from test_checkpoint import content, put
from test_inference import Tiny
from test_layout import put as put_image
from test_layout import put_pairs
from test_recipe import PHOTOS, recipe

import train
import utils
from data.transforms import TrainTransform
from distributed.group import Group
from flags import Config, parse_flags
from inference.predictor import Predictor
from inference.pseudo_labels import best_class
from models.lorm import foreground_mask
from support.errors import UserError
from tools.check.__main__ import READER as CHECK
from tools.check.files import Paths
from tools.split import split
from training import checkpoint, checkpoint_content, settle
from training.data import find_masks, find_training_files
from training.record.messages import data_check_command
from training.state import TrainState


def test_the_total_follows_the_ramp_of_the_crf_loss(demo_run):
    """Up in half of the run, 2 epochs: 4 steps of 2 images, and then 8 of 1 image, which begin at full weight.

    The lr has then half the peak, since the checkpoint says how large a batch was at the beginning.
    """
    scribbles = {"dataset": "ScribbleOnly", "model_type": "res50_ASPP", "l_crf": 0.2, "name": "x", "epochs": 2}
    folder = demo_run(**scribbles, save_epoch_frequency=1)
    folder = demo_run(**scribbles, batchsize=1, resume=folder / "epoch_0001.pt")
    for number, line in enumerate(read_metrics(folder, "train")):
        ramp = min(1, number / 4)
        assert line["loss"] == pytest.approx(line["losses"]["seg"] + 0.2 * ramp * line["losses"]["crf"], rel=1e-5)
        samples, peak = (2 * number, 0.01) if number < 4 else (4 + number, 0.005)
        assert line["lr"] == pytest.approx(peak * 0.5 * (1 + math.cos(math.pi * samples / 16)))


def test_metrics_and_then_the_checkpoint_are_synced_to_the_disk(demo_run, monkeypatch):
    """A checkpoint says how many lines of metrics.jsonl belong to it. It gets its name when it is on the disk."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
    demo_run(name="x", max_steps=1, epochs=None)
    *_, metrics, best, last = (Path(name).name for name in synced)
    assert (metrics, best[-8:], last[-8:]) == ("metrics.jsonl", ".part.pt", ".part.pt")


def test_a_checkpoint_that_cannot_be_written_ends_the_run_in_the_next_step(demo_run, monkeypatch, tmp_path):
    def fail(*_):
        raise UserError("the disk is gone")

    save = checkpoint.Writer.save
    monkeypatch.setattr(checkpoint.Writer, "save", lambda writer, *args: (save(writer, *args), writer.join(60)))
    monkeypatch.setattr(checkpoint, "write", fail)
    with pytest.raises(UserError, match="the disk is gone"):
        demo_run(name="x", save_step_frequency=2)
    assert [line["step"] for line in read_metrics(tmp_path / "x", "train")] == [1, 2]  # of 4


def test_among_equal_steps_last_pt_is_resumed(tmp_path):
    for name in ("step_00000003.pt", "last.pt", "best.pt"):
        put(tmp_path / name, 3)
    assert checkpoint.read_newest(tmp_path)[0].name == "last.pt"


def test_a_bit_outside_the_checksums_and_another_step_are_damage(tmp_path):
    put(tmp_path / "last.pt", 3)
    data = bytearray((tmp_path / "last.pt").read_bytes())
    data[data.rindex(b"PK\1\2") + 38] ^= 0x10  # external attributes of the last record: a folder
    (tmp_path / "a.pt").write_bytes(data)
    torch.save(vars(content(3)), tmp_path / "b.pt")
    with zipfile.ZipFile(tmp_path / "b.pt", "a") as archive:
        archive.comment = checkpoint.COMMENT.format(step=4).encode()
    for name, said in (("a.pt", "damaged"), ("b.pt", "damaged: its end")):
        with pytest.raises(UserError, match=said):
            checkpoint.read_run(tmp_path / name)


@pytest.mark.parametrize("name", ["amp", "stride_in_1x1", "seed", "repeat"])
def test_a_checkpoint_has_the_flags_that_resuming_needs(name):
    saved = vars(content(3))
    del saved["config"][name]
    with pytest.raises(UserError, match=name):
        checkpoint_content.check_run(saved)


def test_flags_are_checked_again_after_the_recipe(demo_root, tmp_path):
    """The recipe takes AdamW for timm's networks, but SGD if --momentum is set: then --betas have no effect."""
    pytest.importorskip("timm")
    words = {"backbone": "timm:test_vit", "model_type": "deeplabv2", "layers": None, "momentum": 0.9}
    with pytest.raises(UserError, match="--betas has no effect"):
        train.main([*flags(dataset_path=demo_root, logdir=tmp_path, **words), "--betas", "0.8", "0.9"])


def test_in_mid_epoch_the_list_seed_and_repeat_stay(demo_root, tmp_path, demo_run):
    """Of an epoch of 2 x 8 samples, the checkpoint of step 6 has 12: more than the epoch of --repeat 1 has."""
    run = functools.partial(demo_run, dataset_path=shutil.copytree(demo_root, tmp_path / "data"), name="x", repeat=2)
    folder = run(save_step_frequency=6)
    middle = folder / "step_00000006.pt"
    for flag, value in (("seed", 2), ("repeat", 1)):
        with refused(f"the --{flag} has changed in the middle of an epoch"):
            run(resume=middle, **{flag: value})
    saved = checkpoint.read_run(middle)
    saved.samples = 17  # of 16
    checkpoint.write(folder / "damaged.pt", checkpoint.to_bytes(vars(saved)))
    with refused("the training list has changed in the middle of an epoch"):
        run(resume=folder / "damaged.pt")
    new = run(resume=folder / "damaged.pt", reset_data_offset=True, name="new")  # its position does not count
    assert read_metrics(new, "train")[-1]["step"] == 8
    names = tmp_path / "data/ImageSets/SegmentationAug/train.txt"
    names.write_text("\n".join(reversed(names.read_text().split())))
    with refused("the training list has changed in the middle of an epoch"):
        run(resume=middle)
    run(resume=folder / "last.pt", epochs=2)  # between two epochs it may
    assert read_metrics(folder, "train")[-1]["step"] == 16


def test_a_resumed_run_takes_epochs_in_place_of_the_saved_steps(demo_run):
    folder = demo_run(name="x", epochs=None, max_steps=4, warmup_epochs=None, warmup_steps=1)
    demo_run(name="x", epochs=2, resume="auto")
    assert read_metrics(folder, "train")[-1]["step"] == 8


@pytest.mark.parametrize("deterministic", [False, True])
def test_what_a_validation_does_between_steps(demo_run, monkeypatch, deterministic):
    """Synchronise ranks, and measure no algorithms: its images have many sizes. With --deterministic, never do."""
    calls = []
    for owner, name in ((TrainState, "optimizer_step"), (TrainState, "average_batch_norm"), (train, "evaluate_split")):
        real = getattr(owner, name)

        def recorded(*args, real=real, name=name, **options):
            calls.append((name, torch.backends.cudnn.benchmark))
            return real(*args, **options)

        monkeypatch.setattr(owner, name, recorded)
    demo_run(name="x", val_step_frequency=3, deterministic=deterministic)
    torch.use_deterministic_algorithms(False)
    before = [first for (first, _), (second, _) in itertools.pairwise(calls) if second == "evaluate_split"]
    assert before == ["average_batch_norm"] * 2  # after steps 3 and 4
    training = not deterministic
    measured = [benchmark for name, benchmark in calls if name != "average_batch_norm"]
    assert measured == [training] * 3 + [False, training, False]  # 3 steps, a validation, the 4th step, another one


@pytest.mark.slow
def test_evaluation_with_other_flags_or_files_on_a_rank_is_refused(demo_run, tmp_path):
    folder = demo_run(name="x", epochs=2, save_epoch_frequency=1)
    for one, other, said in (
        (["--scales", "1"], ["--scales", "0.5"], "--scales is (1.0,) on rank 0 but (0.5,) on rank 1"),
        ([], ["--checkpoint", str(folder / "epoch_0001.pt")], "differs between rank 0 and rank 1"),
    ):
        words = [["--checkpoint", str(folder / "last.pt"), "--device", "cpu", *more] for more in (one, other)]
        one_line_each(finish(two_processes(words, tmp_path, "evaluate.py")), said)


@pytest.mark.parametrize("settings", [{"scales": (0.5,)}, {"long_side": 40}, {"scales": (1.7,)}])
def test_labels_are_the_most_probable_classes(settings):
    predictor, batch = Predictor(Tiny().eval(), **settings), smooth_images(2, 61, 80)
    probs = torch.cat([band for _, band in predictor.probs(batch)], dim=2)
    assert torch.equal(predictor.labels(batch), probs.argmax(1).to(torch.uint8))


def test_a_training_list_may_name_an_image_twice_and_a_validation_list_not(demo_root, tmp_path):
    for name in ("train", "val"):
        names = (demo_root / f"ImageSets/SegmentationAug/{name}.txt").read_text().split()
        (tmp_path / f"{name}.txt").write_text("\n".join([*names, f"{names[0]}.png"]))
    cfg = parse_flags(flags(dataset_path=demo_root, list_path=tmp_path, dataset="Dense"))
    assert len(utils.get_eval_loader(cfg, "train", ALONE).dataset) == 8 + 1
    with pytest.raises(UserError, match=rf"val\.txt: lists {names[0]} 2 times"):
        utils.get_eval_loader(cfg, "val", ALONE)
    (tmp_path / "val.txt").rename(tmp_path / "test.txt")
    with pytest.raises(UserError, match=rf"test\.txt: lists {names[0]} 2 times"):
        utils.get_eval_loader(cfg, "test", ALONE)


def test_validation_images_in_the_training_list_are_a_warning(demo_root, tmp_path, caplog):
    names = (demo_root / "ImageSets/SegmentationAug/train.txt").read_text().split()
    (tmp_path / "train.txt").write_text("\n".join(names))
    (tmp_path / "val.txt").write_text("\n".join(names[:2]))
    put_pairs(tmp_path / "folders", "train/a", "train/b", "val/a")  # equal names in two folders are no such images
    for data in (
        {"dataset_path": demo_root, "list_path": tmp_path},
        {"dataset": "Folder", "dataset_path": tmp_path / "folders"},
    ):
        cfg = parse_flags(flags(**data))
        settle.check_data(cfg, ALONE, {"train": find_training_files(cfg), "val": find_masks(cfg, "val")})
    [line] = [line for line in caplog.messages if "in the training list" in line]
    assert line.startswith("2 validation image(s) are in the training list, too, such as")


def test_small_numbers_of_one_place():
    # A window of one pixel at half of the second column of six: 1/3 above 0 is foreground.
    label = torch.tensor([[[0, 1, 0, 0, 0, 0]]], dtype=torch.uint8)
    assert foreground_mask(label, (1, 4)).tolist() == [[[False, True, False, False]]]
    # The middle of 10x10 pixels, (4.5, 4.5), comes to the middle of the crop, (7.5, 7.5), at any scale.
    matrix = TrainTransform(crop_size=16, scale=(0.75, 0.75))._matrix(10, 10, np.random.default_rng(0))
    assert matrix @ [4.5, 4.5, 1] == pytest.approx([7.5, 7.5])
    # A pseudo-label needs more than a probability of 0.6.
    assert (best_class(np.array([3], np.uint8), np.full((1, 2, 2), 0.6, np.float32), (2, 2)) == 255).all()
    # 64000 images in batches of 12 are 5333.3 steps.
    assert recipe(PHOTOS, batchsize=12)["max_steps"] == 5334
    assert recipe(PHOTOS, batchsize=65536)["repeat"] <= 10**6
    # The validation part gets the smallest group, however small its share.
    assert split(list("abcde"), list("xxxxy"), np.zeros((5, 1), bool), 0.01, 0).tolist() == [False] * 4 + [True]


def test_equal_statistics_of_three_ranks_stay_the_same():
    """x + x + x is rounded in float32, so its third may be another number: frozen statistics would change."""

    class Three(Group):
        def sum(self, tensor):
            return tensor + tensor + tensor

    norm = torch.nn.BatchNorm2d(100)
    norm.running_mean.uniform_()
    before = norm.running_mean.clone()
    Three(ALONE.device, world_size=3).average_buffers(norm)
    assert torch.equal(norm.running_mean, before)


def test_windows_that_are_too_many_for_any_image_are_refused_at_the_start(tmp_path):
    """361 x 361 windows of 40 x 40 pixels, one pixel apart, in the second image; one in the first."""
    for name, size in (("a", 40), ("b", 400)):
        put_image(tmp_path / f"images/val/{name}.jpg", np.zeros((size, size, 3), np.uint8))
        put_image(tmp_path / f"masks/val/{name}.png", np.zeros((size, size), np.uint8))
    cfg = parse_flags(flags(dataset="Folder", dataset_path=tmp_path, window=40, stride_rate=0.01))
    with pytest.raises(UserError, match="an image of 400x400 pixels would become 209 million"):
        utils.get_loader(cfg, "val", ALONE)


def test_the_printed_check_reads_the_data_as_the_run_does():
    chosen: dict = {item.name: f"my {item.name}" for item in dataclasses.fields(Paths)} | {"classes": "my names"}
    chosen |= {"bands": (4, 3, 2), "stretch": (2.5, 98.0), "value_range": (-1.0, 1e-3)}
    command = data_check_command(Config(dataset="Folder", dataset_path="data", **chosen))
    given = CHECK.command_line(shlex.split(command.partition("tools.check ")[2])).values
    assert chosen.items() <= given.items()
    assert (given["root"], given["dataset"]) == (Path("data"), "Folder")
