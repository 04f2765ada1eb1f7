"""pseudo.py as a user starts it: what it writes, in any number of processes, killed and started again."""

import functools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import finish, one_line_each, random_checkpoint, read_metrics, run_train, start, start_group
from PIL import Image

import pseudo
from data.classes import voc_colours
from support.errors import STOPPED, UserError

NUM_IMAGES = 8
FAULT = "tests/pseudo_with_fault.py"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("run") / "best.pt", num_classes=5)


@pytest.fixture
def words(checkpoint, demo_root) -> list[str]:
    """Flags with a model, without --output."""
    fixed = ["--dataset_path", str(demo_root), "--workers", "0", "--device", "cpu", "--val_batchsize", "3"]
    return ["--checkpoint", str(checkpoint), *fixed]


@pytest.fixture
def without_model(demo_root) -> list[str]:
    return ["--dataset_path", str(demo_root), "--numclasses", "5", "--workers", "0", "--device", "cpu"]


def run(flags: list, out: Path, *more: object) -> int:
    return pseudo.main([*flags, "--output", str(out), *map(str, more)])


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.array(image)


def maps(demo_root: Path, out: Path) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Scribble, dense mask and pseudo-label of each training image."""
    folders = (demo_root / "pascal_2012_scribble", demo_root / "SegmentationClassAug", out)
    return [tuple(pixels(folder / f"demo_{n:04d}.png") for folder in folders) for n in range(NUM_IMAGES)]


def content(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_labels_keep_strokes_and_are_scored(words, demo_root, tmp_path, capsys):
    out = tmp_path / "pseudo"
    assert run(words, out) == 0
    first, before = capsys.readouterr().out, content(out)
    names = {f"demo_{n:04d}.png" for n in range(NUM_IMAGES)}
    assert set(before) == names | {"pseudo.json", "scores.json"}
    with Image.open(out / "demo_0000.png") as image:
        assert image.mode == "P"
        assert image.getpalette()[:15] == voc_colours()[:5].ravel().tolist()
    everything = maps(demo_root, out)
    for scribble, mask, label in everything:
        assert label.shape == mask.shape
        stroked = scribble != 255
        assert (label[stroked] == scribble[stroked]).all()
        assert set(np.unique(label)) <= {*np.unique(scribble), 0}  # of the classes with a stroke, and the background
    scores = json.loads((out / "scores.json").read_text())
    scribbles, masks, labels = (np.concatenate([m.ravel() for m in column]) for column in zip(*everything, strict=True))
    assert scores["labelled"] == pytest.approx((labels != 255).mean())
    assert 0.5 < scores["labelled"] < 1
    assert scores["stroked"] == pytest.approx((scribbles != 255).mean())
    found = scores["ways"]["pseudo-labels"]
    counted = (masks != 255) & (labels != 255)
    assert found["labelled"] == pytest.approx(counted.sum() / (masks != 255).sum())
    ious = []
    for number in range(5):
        is_mask, is_label = (values[counted] == number for values in (masks, labels))
        ious.append((is_mask & is_label).sum() / (is_mask | is_label).sum())
    assert found["iou"] == pytest.approx(ious)
    assert list(scores["ways"]) == ["model", "joined", "pseudo-labels"]
    assert scores["ways"]["joined"]["labelled"] == 1
    row = next(line for line in first.splitlines() if line.split()[:1] == ["mIoU"]).split()
    assert row[1:] == [f"{100 * way['miou']:.2f}" for way in scores["ways"].values()]
    # Started again, it leaves everything as it is, and says the same.
    times = {path: path.stat().st_mtime_ns for path in out.glob("demo*")}
    assert run(words, out) == 0
    assert capsys.readouterr().out == first
    assert content(out) == before
    assert times == {path: path.stat().st_mtime_ns for path in out.glob("demo*")}


def test_strokes_alone_need_no_model(without_model, demo_root, tmp_path):
    out = tmp_path / "pseudo"
    assert run(without_model, out, "--threshold", 0) == 0
    scores = json.loads((out / "scores.json").read_text())
    assert list(scores["ways"]) == ["strokes", "pseudo-labels"]
    assert scores["labelled"] == 1  # threshold 0
    assert scores["ways"]["strokes"]["miou"] > 0.6  # textured shapes on textured ground
    for scribble, _, label in maps(demo_root, out):
        assert (label[scribble != 255] == scribble[scribble != 255]).all()


def test_thresholds_leave_pixels_unsure(words, tmp_path):
    """A random model: none of the pixels without a stroke is surely labelled, unless a share is kept."""
    shares = []
    for keep in (0, 0.5):
        out = tmp_path / str(keep)
        run(words, out, "--threshold", 1, "--keep", keep, "--strokes", "none")
        scores = json.loads((out / "scores.json").read_text())
        assert list(scores["ways"]) == ["model", "pseudo-labels"]
        shares.append((scores["labelled"] - scores["stroked"]) / (1 - scores["stroked"]))
    assert shares[0] == 0
    assert 0.5 <= shares[1] < 0.6  # a level may hold more pixels than are needed


def test_images_without_masks_are_labelled_without_scores(without_model, demo_root, tmp_path, capsys):
    root = tmp_path / "data"
    shutil.copytree(demo_root, root, ignore=shutil.ignore_patterns("SegmentationClassAug"))
    flags = [str(root) if word == str(demo_root) else word for word in without_model]
    assert run(flags, tmp_path / "pseudo") == 0
    said = capsys.readouterr().out
    assert "SegmentationClassAug (--val_path) has no dense masks of these images" in said
    assert f"{NUM_IMAGES} pseudo-labels" in said
    shutil.copytree(demo_root / "SegmentationClassAug", root / "SegmentationClassAug")
    (root / "SegmentationClassAug" / "demo_0002.png").unlink()
    assert run(flags, tmp_path / "pseudo") == 0  # scores what is there
    assert f"against {NUM_IMAGES - 1} dense masks of " in capsys.readouterr().out
    mask = root / "SegmentationClassAug" / "demo_0002.png"
    Image.fromarray(np.zeros((3, 4), np.uint8)).save(mask)
    with pytest.raises(UserError, match=r"demo_0002\.png: 4x3 pixels, but its image has 160x120"):
        run(flags, tmp_path / "pseudo")


def test_two_processes_write_the_same_bytes_or_say_one_line_each(words, demo_root, tmp_path):
    run(words, tmp_path / "one")
    flags = [*words, "--output", str(tmp_path / "two"), "--distributed"]
    results = finish(start_group(2, flags, tmp_path, "pseudo.py"))
    assert [status for status, _, _ in results] == [0, 0], results
    assert content(tmp_path / "two") == content(tmp_path / "one")
    shutil.copytree(demo_root, tmp_path / "data")
    (tmp_path / "data/JPEGImages/demo_0005.jpg").write_bytes(b"broken")
    flags = ["data" if word == str(demo_root) else word for word in flags]
    one_line_each(finish(start_group(2, [*flags, "--overwrite"], tmp_path, "pseudo.py")), "demo_0005.jpg")


# Files are moved in this order: the settings, 8 drafts, for each label a part and the label, the scores.
# Files are moved in this order: the settings, 8 drafts, 8 labels, the scores.
@pytest.mark.parametrize(
    ("signal", "moves"),
    [
        ("SIGKILL", (1, 8, 4)),
        ("SIGTERM", (11,)),
        *(pytest.param("SIGKILL", moves, marks=pytest.mark.slow) for moves in ((0, 4, 14), (9, 6), (17, 0))),
        pytest.param("SIGTERM", (4,), marks=pytest.mark.slow),
    ],
)
def test_stopped_and_started_again_ends_with_the_same_files(words, tmp_path, signal, moves):
    run(words, tmp_path / "whole")
    out = tmp_path / "killed"
    written: dict[Path, int] = {}
    for number in moves:
        [(status, stdout, stderr)] = finish(
            [start([str(number), signal, *words, "--output", str(out)], tmp_path, FAULT)]
        )
        if not status:  # finished before this many files were moved
            break
        assert status == (-9 if signal == "SIGKILL" else STOPPED), stderr
        assert ("run the same command again" in stdout) == (signal == "SIGTERM")
        times = {path: path.stat().st_mtime_ns for path in out.rglob("demo*.png")}
        assert written.items() <= times.items()
        # A batch of drafts is done again unless all of it was written. Batches have 3 images.
        drafts = [path for path in times if path.parent != out]
        written = {path: time for path, time in times.items() if path not in drafts or len(drafts) == NUM_IMAGES}
    assert run(words, out) == 0
    assert all(path.stat().st_mtime_ns == time for path, time in written.items() if path.parent == out)
    assert content(out) == content(tmp_path / "whole")


def test_scores_that_cannot_be_are_refused_before_the_work(words, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"--val_path .*empty: has no dense mask of any image of train"):
        run(words, tmp_path / "out", "--val_path", tmp_path / "empty")
    assert not (tmp_path / "out").exists()


def test_labels_of_other_settings_are_not_mixed(words, demo_root, tmp_path):
    root, out = tmp_path / "data", tmp_path / "pseudo"
    shutil.copytree(demo_root, root)
    flags = [str(root) if word == str(demo_root) else word for word in words]
    path, image = root / "pascal_2012_scribble/demo_0003.png", next((root / "JPEGImages").glob("demo_0003.*"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(UserError, match=r"demo_0003\.png"):
        run(flags, out)
    path.write_bytes(whole)
    shutil.rmtree(out / ".unfinished", ignore_errors=True)
    assert run(flags, out) == 0  # there was no label yet: the settings may change
    with pytest.raises(UserError, match=r"other settings \(keep, threshold\), see .*pseudo\.json: .*--overwrite"):
        run(flags, out, "--keep", 0.1, "--threshold", 1)
    scribble = pixels(path)
    scribble[:9, :9] = 4  # redrawn
    Image.fromarray(scribble).save(path)
    image.write_bytes(image.read_bytes() + b"\0")  # other content; it still decodes to the same pixels
    with pytest.raises(UserError, match=r"other settings \(pixels, scribbles\)"):
        run(flags, out)
    assert run(flags, out, "--overwrite") == 0
    assert (pixels(out / "demo_0003.png")[:9, :9] == 4).all()
    assert run(flags, out, "--split", "val", "--overwrite") == 0
    assert not (out / "demo_0003.png").exists()  # of the training list
    (out / "pseudo.json").write_text("{")
    with pytest.raises(UserError, match="other settings"):
        run(flags, out)
    (out / "pseudo.json").unlink()
    with pytest.raises(UserError, match=r"demo_\d+\.png, which pseudo\.py did not write: name another folder"):
        run(flags, out, "--overwrite")


def test_labels_are_scored_again_with_other_masks(words, demo_root, tmp_path):
    root, out = tmp_path / "data", tmp_path / "pseudo"
    shutil.copytree(demo_root, root)
    flags = [str(root) if word == str(demo_root) else word for word in words]
    run(flags, out)
    shutil.copytree(root / "SegmentationClassAug", root / "other")
    for path in (root / "other").glob("*.png"):
        Image.fromarray(np.full_like(pixels(path), 4)).save(path)
    run(flags, out, "--val_path", "other")
    ways = json.loads((out / "scores.json").read_text())["ways"]
    labels = np.concatenate([label.ravel() for _, _, label in maps(root, out)])
    assert list(ways) == ["pseudo-labels"]  # the drafts of the others are gone
    assert ways["pseudo-labels"]["pixel_acc"] == pytest.approx((labels[labels != 255] == 4).mean())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--output", ""], "--output is not set"),
        (["--output", "DATA/JPEGImages/x"], "--output DATA/JPEGImages/x: is, contains or is in a folder of"),
        (["--output", "DATA"], "--output DATA: is, contains or is in a folder of the data set"),
        (["--output", "mine", "--dataset_path", "mine/data", "--overwrite"], "contains or is in a folder of the data"),
        (["--output", "DATA/classes.txt"], "--output DATA/classes.txt: is a file: name a folder"),
        (["--dataset_path", ""], "--dataset_path is not set"),
        (["--scales", "0.5"], "--scales without --checkpoint"),
        (["--strokes", "none"], "--strokes none without --checkpoint"),
        (["--train_path", "nowhere"], "nowhere: no such folder"),
        (["--numclasses", "3"], "with --numclasses 3 labels are 0..2"),
        (["--label_map", "binary", "--numclasses", "2"], "--label_map binary: pseudo-labels hold class numbers"),
        (["--dataset", "Folder"], "--train_path is not set: --dataset Folder needs the folder of the scribbles"),
    ],
)
def test_wrong_flags_are_named(without_model, demo_root, tmp_path, more, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DATA").symlink_to(demo_root)
    shutil.copytree(demo_root, tmp_path / "mine/data")
    with pytest.raises(UserError) as error:
        run(without_model, tmp_path / "out", *more)
    assert message in str(error.value)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("demo*"))


def test_training_reads_them_with_lorm(words, demo_root, tmp_path):
    out = tmp_path / "pseudo"
    run(words, out)
    train = functools.partial(run_train, dataset_path=demo_root, logdir=tmp_path / "log", model_type="res50_ASPP_lorm")
    lines = read_metrics(
        train(dataset="ScribblePseudo", pseudo_path=out, max_steps=2, epochs=None, crop_size=97), "train"
    )
    assert lines
    for line in lines:
        assert math.isfinite(line["loss"])
        assert line["losses"]["pseudo"] > 0
        assert line["losses"]["lorm"] > 0
