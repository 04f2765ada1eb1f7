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
    assert run(words, out, "--json", tmp_path / "scores.json") == 0
    said = capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {
        *(f"demo_{n:04d}.png" for n in range(NUM_IMAGES)), "pseudo.json", "scores.json"
    }  # fmt: skip
    with Image.open(out / "demo_0000.png") as image:
        assert image.mode == "P"
        assert image.getpalette()[:15] == voc_colours()[:5].ravel().tolist()
    everything = maps(demo_root, out)
    for scribble, mask, label in everything:
        assert label.shape == mask.shape
        stroked = scribble != 255
        assert (label[stroked] == scribble[stroked]).all()
        assert set(np.unique(label)) <= {*np.unique(scribble), 0}  # of the classes with a stroke, and the background
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores == json.loads((out / "scores.json").read_text())
    scribbles, masks, labels = (np.concatenate([m.ravel() for m in column]) for column in zip(*everything, strict=True))
    assert scores["labelled"] == pytest.approx((labels != 255).mean())
    assert 0.5 < scores["labelled"] < 1
    assert scores["stroked"] == pytest.approx((scribbles != 255).mean())
    found = scores["ways"]["pseudo-labels"]
    known = masks != 255
    counted = known & (labels != 255)
    assert found["labelled"] == pytest.approx(counted.sum() / known.sum())
    ious = []
    for number in range(5):
        is_mask, is_label = (values[counted] == number for values in (masks, labels))
        ious.append((is_mask & is_label).sum() / (is_mask | is_label).sum())
        assert found["labelled_by_class"][number] == pytest.approx(
            counted[masks == number].sum() / (masks == number).sum()
        )
    assert found["iou"] == pytest.approx(ious)
    assert found["miou"] == pytest.approx(np.mean(ious))
    assert list(scores["ways"]) == ["model", "joined", "pseudo-labels"]
    row = next(line for line in said.splitlines() if line.split()[:1] == ["mIoU"]).split()
    assert row[1:] == [f"{100 * way['miou']:.2f}" for way in scores["ways"].values()]
    assert scores["ways"]["joined"]["labelled"] == 1


def test_a_finished_folder_is_left_as_it_is(words, tmp_path, capsys):
    out = tmp_path / "pseudo"
    run(words, out)
    first, before = capsys.readouterr().out, content(out)
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


def test_one_stroked_class_is_not_spread_without_a_model(without_model, demo_root, tmp_path):
    root = tmp_path / "data"
    shutil.copytree(demo_root, root)
    for path in (root / "pascal_2012_scribble").iterdir():
        scribble = pixels(path)
        Image.fromarray(np.where(scribble == 0, scribble, np.uint8(255))).save(path)
    flags = [str(root) if word == str(demo_root) else word for word in without_model]
    run(flags, tmp_path / "alone", "--threshold", 0)
    for scribble, _, label in maps(root, tmp_path / "alone"):
        assert (label == scribble).all()


def test_thresholds_leave_pixels_unsure(words, tmp_path):
    """A random model and walkers of less than certainty: none of the pixels without a stroke is surely labelled."""
    out = tmp_path / "pseudo"
    run(words, out, "--threshold", 1, "--keep", 0, "--strokes", "none")
    scores = json.loads((out / "scores.json").read_text())
    assert scores["labelled"] == scores["stroked"]
    run(words, tmp_path / "half", "--threshold", 1, "--keep", 0.5, "--strokes", "none")
    half = json.loads((tmp_path / "half" / "scores.json").read_text())
    share = (half["labelled"] - half["stroked"]) / (1 - half["stroked"])
    assert 0.5 <= share < 0.6  # a level may hold more pixels than are needed
    assert list(half["ways"]) == ["model", "pseudo-labels"]


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


def test_two_processes_write_the_same_bytes(words, tmp_path):
    run(words, tmp_path / "one")
    flags = [*words, "--output", str(tmp_path / "two"), "--distributed"]
    results = finish(start_group(2, flags, tmp_path, "pseudo.py"))
    assert [status for status, _, _ in results] == [0, 0], results
    assert content(tmp_path / "two") == content(tmp_path / "one")


# Files are moved in this order: the settings, 8 drafts, for each label a part and the label, the scores.
@pytest.mark.parametrize(
    "moves", [(1, 8, 14), *(pytest.param(moves, marks=pytest.mark.slow) for moves in ((0, 4, 25), (15, 12), (26, 0)))]
)
def test_killed_and_started_again_ends_with_the_same_files(words, tmp_path, moves):
    run(words, tmp_path / "whole")
    out = tmp_path / "killed"
    flags = [*words, "--output", str(out)]
    written: dict[Path, int] = {}
    for number in moves:
        [(status, _, stderr)] = finish([start([str(number), "SIGKILL", *flags], tmp_path, FAULT)])
        if not status:  # finished before this many files were moved
            break
        assert status == -9, stderr
        times = {path: path.stat().st_mtime_ns for path in out.rglob("demo*.png") if "parts" not in path.parts}
        assert written.items() <= times.items()
        # A batch of drafts is done again unless all of it was written. Batches have 3 images.
        drafts = [path for path in times if path.parent != out]
        written = {path: time for path, time in times.items() if path not in drafts or len(drafts) == NUM_IMAGES}
    assert run(words, out) == 0
    assert all(path.stat().st_mtime_ns == time for path, time in written.items() if path.parent == out)
    assert content(out) == content(tmp_path / "whole")


@pytest.mark.parametrize("moves", [pytest.param(4, marks=pytest.mark.slow), 14])
def test_stopped_by_a_signal(words, tmp_path, moves):
    run(words, tmp_path / "whole")
    flags = [*words, "--output", str(tmp_path / "out")]
    [(status, stdout, _)] = finish([start([str(moves), "SIGTERM", *flags], tmp_path, FAULT)])
    assert status == STOPPED
    assert "run the same command again" in stdout
    assert run(words, tmp_path / "out") == 0
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_folder_without_labels_takes_new_settings(words, demo_root, tmp_path):
    """A run that failed before its first label needs no --overwrite after its data are mended."""
    root, out = tmp_path / "data", tmp_path / "pseudo"
    shutil.copytree(demo_root, root)
    flags = [str(root) if word == str(demo_root) else word for word in words]
    path = root / "pascal_2012_scribble" / "demo_0000.png"
    good = path.read_bytes()
    path.write_bytes(good[:-40])
    with pytest.raises(UserError, match=r"demo_0000\.png"):
        run(flags, out)
    path.write_bytes(good)
    assert run(flags, out) == 0


def test_scores_that_cannot_be_are_refused_before_the_work(words, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"--val_path .*empty: has no dense mask of any image of train"):
        run(words, tmp_path / "out", "--val_path", tmp_path / "empty")
    with pytest.raises(UserError, match=r"--json .*empty: is a folder: name a file"):
        run(words, tmp_path / "out", "--json", tmp_path / "empty")
    assert not (tmp_path / "out").exists()


def test_labels_of_other_settings_are_not_mixed(words, demo_root, tmp_path):
    root, out = tmp_path / "data", tmp_path / "pseudo"
    shutil.copytree(demo_root, root)
    flags = [str(root) if word == str(demo_root) else word for word in words]
    run(flags, out)
    with pytest.raises(
        UserError, match=r"made with other settings \(keep, threshold\), see .*pseudo\.json: .*--overwrite"
    ):
        run(flags, out, "--keep", 0.1, "--threshold", 1)
    path = root / "pascal_2012_scribble" / "demo_0003.png"
    scribble = pixels(path)
    scribble[:9, :9] = 4  # redrawn
    Image.fromarray(scribble).save(path)
    with pytest.raises(UserError, match=r"other settings \(scribbles\)"):
        run(flags, out)
    image = next((root / "JPEGImages").glob("demo_0003.*"))
    image.write_bytes(image.read_bytes() + b"\0")  # other content; it still decodes to the same pixels
    with pytest.raises(UserError, match=r"other settings \(pixels, scribbles\)"):
        run(flags, out)
    assert run(flags, out, "--overwrite") == 0
    assert (pixels(out / "demo_0003.png")[:9, :9] == 4).all()
    assert run(flags, out, "--split", "val", "--overwrite") == 0
    assert not (out / "demo_0003.png").exists()  # of the training list
    (out / "pseudo.json").write_text("{")
    with pytest.raises(UserError, match=r"pseudo\.json: damaged: use --overwrite"):
        run(flags, out)
    assert run(flags, out, "--overwrite") == 0
    (out / "pseudo.json").unlink()
    with pytest.raises(UserError, match=r"demo_\d+\.png, which pseudo\.py did not write: name another folder"):
        run(flags, out, "--overwrite")


def test_the_folder_that_contains_the_data_is_not_taken(words, demo_root, tmp_path):
    """--overwrite would remove the masks."""
    root = tmp_path / "mine" / "data"
    shutil.copytree(demo_root, root)
    flags = [str(root) if word == str(demo_root) else word for word in words]
    for out in (tmp_path / "mine", tmp_path):
        with pytest.raises(UserError, match=r"contains or is in a folder of the data set \(.*data/JPEGImages\)"):
            run(flags, out, "--overwrite")


def test_other_image_statistics_are_other_settings(words, tmp_path):
    out, stats = tmp_path / "pseudo", tmp_path / "stats.json"
    run(words, out)
    stats.write_text('{"dtype": "uint8", "mean": [0, 0, 0], "std": [1, 1, 1]}')
    with pytest.raises(UserError, match=r"other settings \(image_stats\)"):
        run(words, out, "--image_stats", stats)


def test_scores_are_kept_as_long_as_the_masks_are_the_same(words, demo_root, tmp_path, monkeypatch):
    root, out = tmp_path / "data", tmp_path / "pseudo"
    shutil.copytree(demo_root, root)
    flags = [str(root) if word == str(demo_root) else word for word in words]
    run(flags, out)
    first = json.loads((out / "scores.json").read_text())
    monkeypatch.chdir(tmp_path)
    run(["data" if word == str(root) else word for word in flags], out)  # another spelling of the path
    again = json.loads((out / "scores.json").read_text())
    assert again["ways"] == first["ways"]
    for path in (root / "SegmentationClassAug").glob("*.png"):
        Image.fromarray(np.full_like(pixels(path), 4)).save(path)
    run(flags, out)
    ways = json.loads((out / "scores.json").read_text())["ways"]
    labels = np.concatenate([label.ravel() for _, _, label in maps(root, out)])
    assert list(ways) == ["pseudo-labels"]  # the drafts of the others are gone
    assert ways["pseudo-labels"]["pixel_acc"] == pytest.approx((labels[labels != 255] == 4).mean())


def test_the_printed_command_finds_the_same_data(words, demo_root, tmp_path, capsys):
    root = tmp_path / "data"
    shutil.copytree(demo_root, root)
    (root / "ImageSets/SegmentationAug").rename(root / "my_lists")
    (root / "my_lists/train.txt").rename(root / "my_lists/few.txt")
    flags = [str(root) if word == str(demo_root) else word for word in words]
    more = ["--list_path", "my_lists", "--split", "few"]
    assert run(flags, tmp_path / "pseudo", *more) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert "--list_path my_lists" in line
    assert "--train_split few" in line
    assert "--numclasses 5" in line


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--output", ""], "--output is not set"),
        (
            ["--output", "DATA/JPEGImages/x"],
            "--output DATA/JPEGImages/x: is, contains or is in a folder of",
        ),
        (["--output", "DATA"], "--output DATA: is, contains or is in a folder of the data set"),
        (["--output", "DATA/classes.txt"], "--output DATA/classes.txt: is a file: name a folder"),
        (["--dataset_path", ""], "--dataset_path is not set"),
        (["--scales", "0.5"], "--scales without --checkpoint"),
        (["--no_only_stroked_classes"], "--only_stroked_classes without --checkpoint"),
        (["--strokes", "none"], "--strokes none without --checkpoint"),
        (["--strokes", "walk"], "did you mean walker"),
        (["--keep", "1.5"], "--keep 1.5: must be at least 0 and at most 1"),
        (["--train_path", "nowhere"], "nowhere: no such folder"),
        (["--split", "test"], "test.txt: the list cannot be read"),
        (["--numclasses", "3"], "with --numclasses 3 labels are 0..2"),
        (["--label_map", "binary", "--numclasses", "2"], "--label_map binary: pseudo-labels hold class numbers"),
        (["--dataset", "Folder"], "--train_path is not set: --dataset Folder needs the folder of the scribbles"),
        (["--checkpoint", "nowhere.pt"], "nowhere.pt"),
    ],
)
def test_wrong_flags_are_named(without_model, demo_root, tmp_path, more, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DATA").symlink_to(demo_root)
    with pytest.raises(UserError) as error:
        run(without_model, tmp_path / "out", *more)
    assert message in str(error.value)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("demo*"))


def test_an_error_is_one_line_on_every_rank(words, demo_root, tmp_path):
    root = tmp_path / "data"
    shutil.copytree(demo_root, root)
    (root / "JPEGImages" / "demo_0005.jpg").write_bytes(b"broken")
    flags = [str(root) if word == str(demo_root) else word for word in words]
    results = finish(start_group(2, [*flags, "--output", "out", "--distributed"], tmp_path, "pseudo.py"))
    one_line_each(results, "demo_0005.jpg")


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
