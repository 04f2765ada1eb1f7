"""evaluate.py as a user starts it."""

import json
import re
import shutil
import signal
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import (
    DENSE,
    finish,
    random_checkpoint,
    read_metrics,
    refused,
    run_train,
    score,
    start_group,
    succeed,
    using,
    wait_until,
)
from faulty_data import label, put
from PIL import Image
from test_report import Elements

import evaluate
import predict
from support.errors import UserError
from training.scores import scores

WINDOWS = ["--scales", "0.5", "1", "1.25", "--flip", "--window", "65", "--stride_rate", "0.5", "--long_side", "128"]


@pytest.fixture(scope="module")
def run(demo_root, tmp_path_factory):
    """The folder of a short run, with an average of weights, whose validation says something."""
    data = {"dataset_path": demo_root, "logdir": tmp_path_factory.mktemp("log")}
    return run_train(**DENSE, **data, epochs=2, lr=0.05, ema=0.5, val_batchsize=2)


def test_says_what_the_run_said(run, tmp_path):
    found, logged = score(run / "last.pt", tmp_path), read_metrics(run, "val")[-1]
    about = {name: logged.pop(name) for name in ("kind", "epoch", "step")}
    assert found | logged == found, about
    assert score(run / "last.pt", tmp_path, "--weights", "raw")["confusion"] != found["confusion"]


def test_scores_are_those_of_the_masks_that_predict_writes(run, demo_root, tmp_path, capsys):
    found = score(run / "last.pt", tmp_path, *WINDOWS)
    said = capsys.readouterr().out
    names = (demo_root / "ImageSets/SegmentationAug/val.txt").read_text().split()
    images = [str(demo_root / "JPEGImages" / f"{name}.jpg") for name in names]
    assert predict.main(using(run / "last.pt", "--output", tmp_path, *WINDOWS, "--input", *images)) == 0
    confusion = np.zeros((5, 5), np.int64)
    for name, image in zip(names, found["per_image"], strict=True):
        with Image.open(tmp_path / "masks" / f"{name}.png") as mask:
            assert mask.mode == "P"
            predicted = np.array(mask)
        label = np.array(Image.open(demo_root / "SegmentationClassAug" / f"{name}.png"))
        of_image = np.zeros((5, 5), np.int64)
        np.add.at(of_image, (label[label != 255], predicted[label != 255]), 1)
        confusion += of_image
        assert image["name"] == name
        assert image["miou"] == pytest.approx(scores(torch.from_numpy(of_image))["miou"])
        union = of_image.sum(0) + of_image.sum(1) - of_image.diagonal()
        expected = [right / total if total else None for right, total in zip(of_image.diagonal(), union, strict=True)]
        assert image["iou"] == pytest.approx(expected)
    assert found["confusion"] == confusion.tolist()
    assert found["images"] == 3
    assert found["pixels"] == confusion.sum() == 3 * 120 * 160
    assert found["miou_ci"][0] <= found["miou"] <= found["miou_ci"][1]
    assert "ema weights, long side 128, scales 0.5 1 1.25, windows of 65, step 0.5, mirrored too" in said
    assert re.search(rf"mIoU +{100 * found['miou']:.2f}", said)


def test_same_confusion_matrix_at_any_number_of_processes(run, tmp_path):
    """Promise 2: 3 images, in batches of 2 and 1, over 1, 2 and 4 processes; of 4 two have none."""
    found = []
    for world_size in (1, 2, 4):
        file = tmp_path / f"{world_size}.json"
        given = using(run / "last.pt", "--json", file, *WINDOWS, "--distributed")
        succeed(start_group(world_size, given, tmp_path, "evaluate.py"))
        found.append(json.loads(file.read_text()))
    assert found[1] == found[0]
    assert found[2] == found[0]
    assert np.sum(found[0]["confusion"]) == 3 * 120 * 160


def test_workers_are_those_of_the_command_not_the_checkpoints(demo_root, tmp_path, monkeypatch):
    get_loader = mock.Mock(side_effect=UserError("enough"))
    monkeypatch.setattr(evaluate, "get_eval_loader", get_loader)
    file = random_checkpoint(tmp_path / "a.pt", num_classes=5, dataset_path=demo_root, val_workers=2)
    with refused("enough"):
        score(file, tmp_path)  # with --workers 0
    cfg = get_loader.call_args.args[0]
    assert (cfg.workers, cfg.val_workers) == (0, -1)  # -1: as many as --workers


def test_another_split_and_other_folders(run, demo_root, tmp_path):
    found = score(run / "last.pt", tmp_path, "--split", "train")
    assert (found["images"], found["pixels"]) == (8, 8 * 120 * 160)
    found = score(run / "last.pt", tmp_path, "--val_path", "pascal_2012_scribble")
    assert 0 < found["pixels"] < 3 * 120 * 160 / 2
    with pytest.raises(UserError, match="test"):
        score(run / "last.pt", tmp_path, "--split", "test")


def test_report_of_the_run_is_that_of_its_best_checkpoint(run, tmp_path):
    """Number, images and curves are those that evaluate.py gives of best.pt, in one process or two."""

    def page_of(path: Path) -> dict:
        data = Elements(path).data()
        return data | {"facts": data["facts"][:-1]}  # the last one is the time

    page = page_of(run / "report.html")
    best = max(read_metrics(run, "val"), key=lambda line: line["miou"])
    assert page["scores"]["miou"] == best["miou"]
    assert page["facts"][0] == ["checkpoint", f"{run / 'best.pt'}, step {best['step']}"]
    assert len(page["examples"]) == 3
    words = using(run / "best.pt", "--report")
    evaluate.main([*words, str(tmp_path / "one")])
    succeed(start_group(2, [*words, "two", "--distributed"], tmp_path, "evaluate.py"))
    for name in ("one", "two"):
        assert page_of(tmp_path / name / "index.html") == page


@pytest.fixture
def data(demo_root, tmp_path, monkeypatch) -> Path:
    """A copy of the demo data to change, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(demo_root, "data"))


SAID = "if they only rename the model's, add --classes {file}; if not, add a --label_map FILE"


@pytest.mark.parametrize(
    ("names", "more", "said"),
    [
        ("a\nb\nc\nd\ne", [], SAID),
        ("car\nroad\ntree\nsky\nground", [], SAID),
        ("a\nb", [], "whose names stay in use: add a --label_map FILE"),
        ("a\nb\nc\nd\ne", ["--label_map", "map.txt"], ""),
        ("a\nb\nc\nd\ne", ["--classes", "data/classes.txt"], ""),
        ("only", [], ""),
        (None, [], ""),
    ],
)
def test_data_of_other_class_names_are_said(run, data, tmp_path, capsys, names, more, said):
    Path("map.txt").write_text("".join(f"{number} {number}\n" for number in range(5)))
    if names:
        Path("data/classes.txt").write_text(names)
    score(run / "last.pt", tmp_path, "--dataset_path", "data", *more)
    lines = [line for line in capsys.readouterr().out.splitlines() if "other class names than the checkpoint" in line]
    assert len(lines) == bool(said)
    assert all(said.format(file="data/classes.txt") in line for line in lines)


def test_a_label_above_the_classes_has_a_remedy_that_works(run, data, tmp_path):
    """A checkpoint has a fixed number of classes, so raising --numclasses would only fail later."""
    path = min((data / "SegmentationClassAug").glob("*8.png"))
    label = np.array(Image.open(path))
    label[:3, :4] = 5
    Image.fromarray(label).save(path)
    words = ["--dataset_path", "data"]
    with refused(f"{path}: label 5 in 12 pixel(s): with --numclasses 5 labels are 0..4") as error:
        score(run / "last.pt", tmp_path, *words)
    assert "change its values with a --label_map FILE, or train a model with a higher --numclasses" in str(error.value)
    assert "raise --numclasses" not in str(error.value)
    Path("map.txt").write_text("".join(f"{number} {number}\n" for number in range(5)) + "5 255\n")
    assert score(run / "last.pt", tmp_path, *words, "--label_map", "map.txt")["pixels"] == 3 * 120 * 160 - 12


@pytest.mark.parametrize(
    ("values", "num_classes", "said"),
    [
        (
            [(0, 255)] * 3,
            2,
            "255 is ignored: if it is the object, map it to a class with --label_map binary",
        ),
        ([(0, 255)] * 3, 5, "255 is ignored: if it is the object, map it to a class with a --label_map FILE"),
        ([(0, 255), (0, 1), (0, 1)], 2, "1 of 3 masks hold only 0 and 255"),
        ([(0, 255), (0, 1, 255), (0, 1)], 2, ""),  # one mask has 1 beside 255: there it means ignored
        ([(0,), (0,), (0, 1)], 2, ""),
    ],
)
def test_objects_of_255_that_the_model_ignores_are_warned_of(data, tmp_path, capsys, values, num_classes, said):
    for name, of_mask in zip(Path("data/ImageSets/SegmentationAug/val.txt").read_text().split(), values, strict=True):
        put(data / f"gt/{name}.png", label(*of_mask, height=120, width=160))
    checkpoint = random_checkpoint(tmp_path / "x.pt", num_classes, dataset_path="data", val_path="gt")
    score(checkpoint, tmp_path)
    warnings = [line for line in capsys.readouterr().out.splitlines() if "hold only 0 and 255" in line]
    assert len(warnings) == bool(said)
    assert all(said in line for line in warnings)
    if said.endswith("binary"):
        score(checkpoint, tmp_path, "--label_map", "binary")
        assert "hold only" not in capsys.readouterr().out


@pytest.mark.parametrize(("background", "has_object"), [("0", True), ("none", False)])
def test_the_score_of_a_single_object_is_said_if_the_other_class_is_the_background(
    data, tmp_path, capsys, background, has_object
):
    for name in Path("data/ImageSets/SegmentationAug/val.txt").read_text().split():
        put(data / f"gt/{name}.png", label(0, 1, height=120, width=160))
    given = {"dataset_path": "data", "val_path": "gt", "background": background}
    score(random_checkpoint(tmp_path / "x.pt", 2, **given), tmp_path)
    assert ("IoU of class 1: " in capsys.readouterr().out) == has_object


def test_a_file_of_names_that_changed_since_the_training_is_said(run, data, tmp_path, capsys):
    content = torch.load(run / "last.pt", weights_only=True)
    content["config"] |= {"dataset_path": "data", "classes": "data/classes.txt"}
    content["texts"] = content["texts"] | {"classes": "a\nb\nc\nd\ne"}
    torch.save(content, "changed.pt")
    Path("data/classes.txt").write_text("a\nb\nc\ne\nd")
    score(Path("changed.pt"), tmp_path)
    assert "data/classes.txt: has other class names than the checkpoint" in capsys.readouterr().out


def test_released_weights_are_scored_with_the_flags_of_their_model(run, demo_root, tmp_path):
    content = torch.load(run / "last.pt", weights_only=True)
    weights = {f"module.{name}": value for name, value in content["model"].items()}
    torch.save({"state_dict": weights}, tmp_path / "w.pth")
    words = using(tmp_path / "w.pth", "--json", tmp_path / "w.json", "--amp", "none")  # as in the run
    with pytest.raises(UserError, match="does not say which model its weights belong to"):
        evaluate.main(words)
    model = ["--model_type", "res50_ASPP", "--layers", "18", "--numclasses", "5", "--val_batchsize", "2"]
    expected = score(run / "last.pt", tmp_path, "--weights", "raw")["confusion"]
    for flags in ([*model, "--dataset_path", str(demo_root)], ["--config", str(run / "config.yaml")]):
        assert evaluate.main([*words, *flags]) == 0
        assert json.loads((tmp_path / "w.json").read_text())["confusion"] == expected


def test_signal_ends_it_on_all_ranks(run, tmp_path):
    words = using(run / "last.pt", "--split", "train", "--val_batchsize", 1, "--scales", *[2] * 40, "--distributed")
    group = start_group(2, words, tmp_path, "evaluate.py")
    wait_until(lambda: "on 8 images of train" in group[0].texts()[0], group)  # it begins with 4 images of each process
    group[1].send_signal(signal.SIGTERM)
    results = finish(group, status=75)
    # evaluate.py has no --overwrite.
    assert "stopped by SIGTERM on rank 1; to finish, run the same command again\n" in results[0][1]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--checkpoint", ""], "--checkpoint is not set"),
        (["--json", ""], "--json is empty: give a value, or drop it"),
        (["--report", ""], "--report is empty"),
        (["--checkpoint", "damaged.pt"], "damaged.pt: damaged"),
        (["--checkpoint", "nan.pt"], "nan.pt: backbone.conv1.weight is not finite"),
        (["--dataset_path", "nowhere"], "--dataset_path nowhere"),
        (["--classes", "voc"], "21 names, but --numclasses is 5"),
        (["--json", "{run}/last.pt/x.json"], "last.pt is a file: name a folder"),
        (["--json", "{run}/last.pt"], "last.pt, which programs read as input"),
        (["--json", "link.json"], "--json link.json: a link or a device"),
        (["--json", "nan.pt"], "--json nan.pt: exists, and is not an earlier result"),
        (["--json", "data/classes.txt"], "--json data/classes.txt: programs read such files"),
        (["--json", "train.txt"], "--json train.txt: programs read such files"),
        (["--report", "damaged.pt"], "damaged.pt is a file: name a folder"),
        (["--json", "."], "--json .: is a folder"),
        (["--report", "{data}/gt/report"], "which programs read as input"),
        (["--dataset_path", "{data}", "--val_path", "empty"], "nothing to score"),
    ],
)
def test_wrong_flags_and_files_are_named(run, data, words, named):
    damaged = bytearray((run / "last.pt").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    Path("damaged.pt").write_bytes(damaged)
    content = torch.load(run / "last.pt", weights_only=True)
    content["ema"]["backbone.conv1.weight"][0] = torch.nan
    torch.save(content, "nan.pt")
    Path("link.json").symlink_to("data/classes.txt")
    (data / "SegmentationClassAug").rename(data / "gt")
    for path in (data / "gt").iterdir():
        put(data / "empty" / path.name, Image.new("L", (160, 120), 255))
    fixed = ["--checkpoint", str(run / "last.pt"), "--dataset_path", "data", "--val_path", "gt", "--device", "cpu"]
    with refused(named):
        evaluate.main([*fixed, *(word.format(run=run, data=data.resolve()) for word in words)])
