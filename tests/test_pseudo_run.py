"""pseudo.py as a user starts it: what it writes, in any number of processes, killed and started again."""

import math
import re
import shlex
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY, contents, finish, one_line_each, random_checkpoint, read_metrics, start, start_group, using
from PIL import Image
from test_layout import put

import pseudo
import train
from data.classes import voc_colours
from data.demo import draw_sample
from support.errors import STOPPED, UserError

NUM_IMAGES = 8


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("run") / "best.pt", num_classes=5, dataset="ScribbleOnly")


@pytest.fixture
def root(demo_root, tmp_path) -> Path:
    """A copy of the demo data, to be changed."""
    return shutil.copytree(demo_root, tmp_path / "data")


@pytest.fixture
def words(checkpoint, root) -> list[str]:
    """Flags without --output."""
    return using(checkpoint, "--dataset_path", root, "--val_batchsize", 3)


def run(flags: list, out: Path, *more: object) -> int:
    return pseudo.main([*flags, "--output", str(out), *map(str, more)])


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.array(image)


def maps(root: Path, out: Path) -> list[np.ndarray]:
    """Scribbles, dense masks and pseudo-labels of the training images, (8, H, W) each."""
    folders = (root / "pascal_2012_scribble", root / "SegmentationClassAug", out)
    return [np.stack([pixels(folder / f"demo_{n:04d}.png") for n in range(NUM_IMAGES)]) for folder in folders]


def test_labels_keep_strokes_and_have_only_their_classes_and_the_background(words, root, tmp_path, capsys):
    out = tmp_path / "pseudo"
    assert run(words, out) == 0
    first, before = capsys.readouterr().out, contents(out)
    names = {f"demo_{n:04d}.png" for n in range(NUM_IMAGES)}
    assert set(before) == names | {"pseudo.json"}
    with Image.open(out / "demo_0000.png") as image:
        assert image.mode == "P"
        assert image.getpalette()[:15] == voc_colours()[:5].ravel().tolist()
    scribbles, _, labels = maps(root, out)
    stroked, labelled = scribbles != 255, labels != 255
    assert (labels[stroked] == scribbles[stroked]).all()
    for scribble, label in zip(scribbles, labels, strict=True):
        assert set(np.unique(label)) <= {*np.unique(scribble), 0, 255}
    assert 0.2 < labelled.mean() < 0.7  # above 0.7 if unsure pixels were labelled, too: the model had few steps
    assert f"{labelled.mean():.1%} of the pixels are labelled" in first
    # Started again, it leaves the labels as they are, and says the same.
    times = {path: path.stat().st_mtime_ns for path in out.glob("demo*")}
    assert run(words, out) == 0
    assert capsys.readouterr().out.splitlines() == first.splitlines()[-2:]
    assert contents(out) == before
    assert times == {path: path.stat().st_mtime_ns for path in out.glob("demo*")}


def test_strokes_that_are_all_empty_are_refused(words, root, tmp_path):
    run(words, tmp_path / "a")
    before = contents(tmp_path / "a")
    for path in (root / "pascal_2012_scribble").glob("*.png"):
        Image.fromarray(np.full_like(pixels(path), 255)).save(path)
    with pytest.raises(UserError, match="pascal_2012_scribble: no image has a stroke"):
        run(words, tmp_path / "a", "--overwrite")
    assert contents(tmp_path / "a") == before


def test_two_processes_write_the_same_bytes_or_say_one_line_each(words, root, tmp_path):
    run(words, tmp_path / "one")
    flags = [*words, "--output", str(tmp_path / "two"), "--distributed"]
    finish(start_group(2, flags, tmp_path, "pseudo.py"), status=0)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    (root / "JPEGImages/demo_0005.jpg").write_bytes(b"broken")
    one_line_each(finish(start_group(2, [*flags, "--overwrite"], tmp_path, "pseudo.py")), "demo_0005.jpg")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_stopped_and_started_again_ends_with_the_same_files(words, tmp_path, number):
    """Stopped once there is no label, some, most."""
    run(words, tmp_path / "whole")
    out = tmp_path / "stopped"
    written: dict[Path, int] = {}
    statuses = []
    for num_labels in (0, 2, 5):
        process = start([*words, "--output", str(out)], tmp_path, "pseudo.py")
        while process.poll() is None and not (out.is_dir() and len(list(out.glob("demo*"))) >= num_labels):
            time.sleep(0.002)
        process.send_signal(number)
        [(status, stdout, stderr)] = finish([process])
        assert status in (0, -number, STOPPED), stderr  # 0: it was faster
        assert ("run the same command again" in stdout) == (status == STOPPED)
        statuses.append(status)
        times = {path: path.stat().st_mtime_ns for path in out.glob("demo*")}
        assert written.items() <= times.items()  # no label is made again
        written = times
    assert (-number if number == signal.SIGKILL else STOPPED) in statuses
    assert run(words, out) == 0
    assert written.items() <= {path: path.stat().st_mtime_ns for path in out.glob("demo*")}.items()
    assert contents(out) == contents(tmp_path / "whole")


def test_data_of_other_class_names_are_said(checkpoint, words, root, tmp_path, capsys):
    (root / "classes.txt").write_text("a\nb\nc\nd\ne")
    assert run(words, tmp_path / "pseudo") == 0
    assert "class names" not in capsys.readouterr().out  # the model has no names
    content = torch.load(checkpoint, weights_only=True)
    content["config"]["classes"] = "names.txt"
    torch.save(content | {"texts": {"classes": "f\ng\nh\ni\nj"}}, tmp_path / "named.pt")
    words[words.index("--checkpoint") + 1] = str(tmp_path / "named.pt")
    assert run(words, tmp_path / "again") == 0
    said = capsys.readouterr().out
    assert f"{root / 'classes.txt'}: has other class names than the checkpoint" in said
    assert "use a model trained on the data set's classes: the pseudo-labels get its class numbers" in said


def test_labels_of_other_settings_are_not_mixed(words, root, tmp_path, capsys):
    out = tmp_path / "pseudo"
    path, image = root / "pascal_2012_scribble/demo_0003.png", next((root / "JPEGImages").glob("demo_0003.*"))
    assert run(words, out) == 0
    with pytest.raises(UserError, match=r"other settings \(scales, flip\), see .*pseudo\.json: .*--overwrite"):
        run(words, out, "--flip", "--scales", 2)
    scribble = pixels(path)
    scribble[:9, :9] = 4  # redrawn
    Image.fromarray(scribble).save(path)
    image.write_bytes(image.read_bytes() + b"\0")  # other content; it still decodes to the same pixels
    with pytest.raises(UserError, match=r"other settings \(pixels, scribbles\)"):
        run(words, out)
    assert run(words, out, "--overwrite") == 0
    assert (pixels(out / "demo_0003.png")[:9, :9] == 4).all()
    assert run(words, out, "--split", "val", "--overwrite") == 0
    assert "--train_split val" in capsys.readouterr().out.splitlines()[-1]
    assert not (out / "demo_0003.png").exists()  # of the training list


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--output", ""], "--output is not set"),
        (
            ["--output", "data", "--overwrite"],
            "but no pseudo.json, so pseudo.py may not have written it: name another folder",
        ),
        (["--output", "data/SegmentationClassAug"], "which programs read as input"),
        (["--dataset_path", ""], "--dataset_path is not set"),
        (["--checkpoint", ""], "--checkpoint is not set"),
        (["--train_path", "nowhere"], "nowhere: no such folder"),
        (["--label_map", "any.txt"], "--label_map any.txt: pseudo-labels hold class numbers"),
        (["--dataset", "Folder"], "--train_path is not set: --dataset Folder needs the folder of the scribbles"),
    ],
)
def test_wrong_flags_are_named(words, root, tmp_path, more, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = contents(root)
    with pytest.raises(UserError, match=re.escape(message)):
        run(words, tmp_path / "out", *more)
    assert contents(root) == before
    assert not list(tmp_path.glob("out/demo*"))


PLACES = {
    "images/SPLIT": ("images/{split}/{name}.jpg", "{kind}/{split}/{name}.png", "{split}/{name}.png"),
    "SPLIT/images": ("{split}/images/{name}.jpg", "{split}/{kind}/{name}.png", "{name}.png"),
    "list": ("images/{name}.jpg", "{kind}/{name}.png", "{name}.png"),
    "one folder": ("{split}/{name}_sat.jpg", "{split}/{name}_{kind}.png", "{name}_{kind}.png"),
    "VOC": ("JPEGImages/{name}.jpg", "{kind}/{name}_gt.png", "{name}_gt.png"),
}


@pytest.mark.parametrize("place", list(PLACES))
def test_the_printed_command_trains_on_labels_of_other_layouts(checkpoint, tmp_path, capsys, place):
    image_at, label_at, expected = PLACES[place]
    root, out = tmp_path / "my data", tmp_path / "my labels"
    names = {"train": ["a b", "sub/c"], "val": ["d"]} if place != "VOC" else {"train": ["a", "b"], "val": ["d"]}
    for split, own in names.items():
        for name in own:
            image, mask, scribble, _ = draw_sample(len(name))
            put(root / image_at.format(split=split, name=name), image)
            for kind, label in (("masks", mask), ("strokes", scribble)):
                put(root / label_at.format(split=split, name=name, kind=kind), label)
        if place in ("list", "VOC"):
            lists = root / ("ImageSets/Segmentation" if place == "VOC" else "")
            lists.mkdir(parents=True, exist_ok=True)
            (lists / f"{split}.txt").write_text("\n".join(own))
    flags = ["--dataset", "Folder", "--train_path", "strokes"]
    if place == "one folder":  # validation reads the strokes, too: the ending holds for all labels
        flags = ["--dataset", "Folder", "--image_path", ".", "--train_path", ".", "--val_path", "."]
        flags += ["--image_suffix", "_sat", "--label_suffix", "_strokes"]
    elif place == "VOC":
        flags = ["--train_path", "strokes", "--val_path", "masks", "--label_suffix", "_gt", "--long_side", "80"]
    assert run(using(checkpoint, "--dataset_path", root, *flags), out) == 0
    said = capsys.readouterr().out
    for name in names["train"]:
        values = {"split": "train", "name": name, "kind": "strokes"}
        label, scribble = (pixels(path / at.format(**values)) for path, at in ((out, expected), (root, label_at)))
        assert (label[scribble != 255] == scribble[scribble != 255]).all()
        assert (label != 255).mean() > (scribble != 255).mean()
    words = shlex.split(said.splitlines()[-1].partition("to train on them: ")[2])[2:]
    assert ("--long_side" in words) == (place == "VOC")
    short = [word for name, value in TINY.items() if name not in ("dataset", "numclasses")
             for word in (f"--{name}", str(value))]  # fmt: skip
    assert train.main([*words, *short, "--logdir", str(tmp_path / "log")]) == 0
    lines = read_metrics(next((tmp_path / "log").iterdir()), "train")
    assert all(math.isfinite(line["loss"]) for line in lines)
    assert lines[0]["losses"].get("pseudo", 0) > 0 or place != "VOC"
