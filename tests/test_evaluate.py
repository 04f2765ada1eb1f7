"""evaluate.py as a user starts it."""

import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import finish, one_line_each, read_metrics, run_train, start_group, succeed, wait_until
from PIL import Image
from test_report import Elements, picture

import evaluate
from evaluation import metrics
from evaluation.metrics import scores
from evaluation.scoring import Result, compare, images_to_show
from support.errors import UserError

WINDOWS = ["--scales", "0.5", "1", "1.25", "--flip", "--window", "65", "--stride_rate", "0.5", "--long_side", "128"]


@pytest.fixture(scope="module")
def run(demo_root, tmp_path_factory):
    """The folder of a short run, with an average of weights, whose validation says something."""
    return run_train(
        dataset_path=demo_root,
        logdir=tmp_path_factory.mktemp("log"),
        dataset="Dense",
        model_type="res50_ASPP",
        epochs=2,
        lr=0.05,
        ema=0.5,
        val_batchsize=2,
    )


def score(run, tmp_path, *words: str) -> dict:
    file = tmp_path / "scores.json"
    assert evaluate.main(["--checkpoint", str(run / "last.pt"), "--device", "cpu", "--json", str(file), *words]) == 0
    return json.loads(file.read_text())


def test_says_what_the_run_said(run, tmp_path):
    found = score(run, tmp_path)
    logged = read_metrics(run, "val")[-1]
    assert {name: found[name] for name in logged if name not in ("kind", "epoch", "step")} == {
        name: value for name, value in logged.items() if name not in ("kind", "epoch", "step")
    }
    raw = score(run, tmp_path, "--weights", "raw")
    assert raw["confusion"] != found["confusion"]
    assert score(run, tmp_path, "--weights", "ema")["confusion"] == found["confusion"]


def test_scores_are_those_of_the_masks_it_writes(run, demo_root, tmp_path, capsys):
    found = score(run, tmp_path, "--save_dir", str(tmp_path / "masks"), *WINDOWS)
    names = (demo_root / "ImageSets/SegmentationAug/val.txt").read_text().split()
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
    said = capsys.readouterr().out
    assert "ema weights, long side 128, scales 0.5 1 1.25, windows of 65, step 0.5, mirrored too" in said
    assert re.search(rf"mIoU +{100 * found['miou']:.2f}", said)


@pytest.mark.parametrize("words", [[], WINDOWS], ids=["single_scale", "windows"])
def test_same_confusion_matrix_at_any_number_of_processes(run, tmp_path, words):
    """Promise 2: 3 images, in batches of 2 and 1, over 1, 2 and 4 processes; of 4 two have none."""
    found = []
    for world_size in (1, 2, 4):
        file = tmp_path / f"{world_size}.json"
        given = ["--checkpoint", str(run / "last.pt"), "--device", "cpu", "--workers", "0", "--json", str(file), *words]
        results = finish(start_group(world_size, [*given, "--distributed"], tmp_path, "evaluate.py"))
        assert [status for status, _, _ in results] == [0] * world_size, results
        found.append(json.loads(file.read_text()))
    assert found[1] == found[0]
    assert found[2] == found[0]
    assert np.sum(found[0]["confusion"]) == 3 * 120 * 160


def test_another_split_and_other_folders(run, demo_root, tmp_path):
    found = score(run, tmp_path, "--split", "train")
    assert (found["images"], found["pixels"]) == (8, 8 * 120 * 160)
    found = score(run, tmp_path, "--val_path", "pascal_2012_scribble")
    assert 0 < found["pixels"] < 3 * 120 * 160 / 2
    with pytest.raises(UserError, match="test"):
        score(run, tmp_path, "--split", "test")


def test_comparison(run, tmp_path, capsys):
    same = score(run, tmp_path, "--compare", str(run / "last.pt"))["comparison"]
    assert (same["difference"], same["interval"], same["higher"]) == (0, [0, 0], 0)
    content = torch.load(run / "last.pt", weights_only=True)
    other = tmp_path / "other.pt"
    raw = content["model"]
    raw["head.aspp.bn1.bias"] += torch.tensor([50.0, 0, 0, 0, 0])  # everything is class 0
    torch.save({"model": raw, "config": content["config"]}, other)
    capsys.readouterr()
    words = ["--report", str(tmp_path / "report"), "--save_dir", str(tmp_path / "masks")]
    result = score(run, tmp_path, "--compare", str(other), *words)
    first, second = result["miou"], result["comparison"]["miou"]
    assert result["comparison"]["difference"] == pytest.approx(first - second)
    assert result["comparison"]["interval"][0] <= first - second <= result["comparison"]["interval"][1]
    assert f"over {other}: {100 * (first - second):+.2f} points" in capsys.readouterr().out
    page = Elements(tmp_path / "report/index.html").data()
    assert page["comparison"]["names"] == [str(run / "last.pt"), str(other)]
    assert [name for name, text in page["facts"] if str(other) in text] == ["compared with"]
    for entry in page["examples"]:
        # What the other model predicts is class 0, the background, which an overlay leaves clear: it has no contours.
        for layer in entry["other"]:
            assert np.asarray(picture(layer).convert("RGBA"))[..., 3].max() == 0
        assert entry["other_miou"] < 1
    masks = [np.asarray(Image.open(path)) for path in (tmp_path / "masks").iterdir()]
    assert len(masks) == 3
    assert (masks[0] > 0).any()  # of the first model


def test_bootstrap_of_images():
    # Two images of one class: all 10 pixels right, and none. Drawn twice with replacement: both, or one of them twice.
    counts = np.array([[[10, 0], [10, 0], [10, 0]], [[0, 0], [10, 0], [0, 10]]])
    drawn = metrics.mean_iou(metrics.bootstrap(counts, num_samples=4000))
    assert set(drawn.round(9)) == {0.0, 0.5, 1.0}  # 10 of 20 labelled, union 20
    assert [np.mean(drawn == value) for value in (0.0, 0.5, 1.0)] == pytest.approx([1 / 4, 1 / 2, 1 / 4], abs=0.04)
    assert metrics.interval(np.arange(101)) == pytest.approx((2.5, 97.5))


def test_comparison_of_each_class():
    # Correct, labelled and predicted pixels of 3 classes in 2 images. The other model has class 1 right in both images
    # where the first has half of it; class 0 is alike, and class 2 is in neither label nor prediction.
    first = np.array([[[6, 2, 0], [6, 4, 0], [8, 2, 0]], [[6, 1, 0], [6, 2, 0], [7, 1, 0]]])
    second = np.array([[[6, 4, 0], [6, 4, 0], [6, 4, 0]], [[6, 2, 0], [6, 2, 0], [6, 2, 0]]])
    results = []
    for counts in (first, second):
        correct, labelled, predicted = counts.sum(0)
        confusion = torch.diag(torch.tensor(correct))
        confusion[1, 0] = int(labelled[1] - correct[1])  # what is not found of class 1 is taken for class 0
        assert confusion.sum(0).tolist() == predicted.tolist()
        results.append(Result([], confusion, counts))
    found = compare(*results)
    # Class 0: 12 / 15, then 12 / 12. Class 1: 3 / 6, then 6 / 6.
    assert found["iou"] == [1, 1, None]
    assert found["iou_difference"] == [pytest.approx(-3 / 15), pytest.approx(-1 / 2), None]
    assert found["difference"] == pytest.approx(-(3 / 15 + 1 / 2) / 2)
    # Every drawn data set finds half of class 1. Of class 0 it finds 6 / 8
    # if the first image is drawn twice, 6 / 7 if the second is.
    assert found["iou_interval"][1] == pytest.approx((-1 / 2, -1 / 2))
    assert found["iou_interval"][0] == pytest.approx((6 / 8 - 1, 6 / 7 - 1))
    assert found["iou_interval"][2] is None
    assert found["higher"] == 0


def test_images_to_show_are_also_those_that_differ_most():
    # One pixel of class 0 in 40 images. The first model is right if n < 20, the second, but for n < 4 if n is even.
    right = np.arange(40) < 20
    other = np.where(np.arange(40) < 4, np.arange(40) % 2 == 0, right)
    both = []
    for correct in (right, other):
        counts = np.zeros((40, 3, 2), np.int64)
        counts[:, 0, 0], counts[:, 1, 0], counts[np.arange(40), 2, 1 - correct] = correct, 1, 1
        both.append(counts)
    alone, compared = images_to_show(both[0]), images_to_show(*both)
    assert {1, 3} <= set(compared) - set(alone)  # right by the first model alone
    assert set(alone) <= set(compared)
    assert len(compared) == len(set(compared)) <= len(alone) + 6
    assert [right[index] for index in compared] == sorted(right[index] for index in compared)  # the worst first


def test_images_without_labels_have_no_score():
    # correct, labelled, predicted pixels: one of two right; nothing labelled
    counts = np.array([[[1, 0], [2, 0], [1, 1]], [[0, 0], [0, 0], [5, 0]]])
    assert metrics.image_scores(counts) == [{"miou": 0.5, "iou": [0.5, 0]}, {"miou": None, "iou": [0, None]}]


def page_of(path: Path) -> dict:
    """What is on a page, but for the time."""
    data = Elements(path).data()
    return data | {"facts": [fact for fact in data["facts"] if fact[0] != "written"]}


def test_report_of_the_run_is_that_of_its_best_checkpoint(run, tmp_path):
    """Number, images and curves are those that evaluate.py gives of best.pt, in one process or two."""
    page = page_of(run / "report.html")
    best = max(read_metrics(run, "val"), key=lambda line: line["miou"])
    assert page["scores"]["miou"] == best["miou"]
    assert page["facts"][0] == ["checkpoint", f"{run / 'best.pt'}, step {best['step']}"]
    assert len(page["examples"]) == 3
    words = ["--checkpoint", str(run / "best.pt"), "--device", "cpu", "--workers", "0", "--report"]
    evaluate.main([*words, str(tmp_path / "one")])
    succeed(start_group(2, [*words, "two", "--distributed"], tmp_path, "evaluate.py"))
    for name in ("one", "two"):
        assert page_of(tmp_path / name / "index.html") == page


def test_released_weights_are_scored_with_the_flags_of_their_model(run, demo_root, tmp_path):
    content = torch.load(run / "last.pt", weights_only=True)
    torch.save(
        {"state_dict": {f"module.{name}": value for name, value in content["model"].items()}}, tmp_path / "w.pth"
    )
    words = ["--checkpoint", str(tmp_path / "w.pth"), "--device", "cpu", "--json", str(tmp_path / "w.json")]
    words += ["--amp", "none"]  # as in the run
    with pytest.raises(UserError, match="does not say which model its weights belong to"):
        evaluate.main(words)
    model = ["--model_type", "res50_ASPP", "--layers", "18", "--numclasses", "5", "--val_batchsize", "2"]
    model += ["--amp", "none"]
    assert evaluate.main([*words, *model, "--dataset_path", str(demo_root)]) == 0
    assert (
        json.loads((tmp_path / "w.json").read_text())["confusion"]
        == score(run, tmp_path, "--weights", "raw")["confusion"]
    )
    assert evaluate.main([*words, "--config", str(run / "config.yaml")]) == 0


def test_signal_ends_it_on_all_ranks(run, tmp_path):
    words = ["--checkpoint", str(run / "last.pt"), "--device", "cpu", "--split", "train", "--val_batchsize", "1"]
    words += ["--scales", *["2"] * 40, "--save_dir", "masks", "--distributed"]
    group = start_group(2, words, tmp_path, "evaluate.py")
    wait_until(lambda: list(tmp_path.glob("masks/*.png")), group)  # of 4 images of each process
    group[1].send_signal(signal.SIGTERM)
    results = finish(group)
    assert [status for status, _, _ in results] == [75, 75], results
    assert "stopped by a signal" in results[0][1]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--checkpoint", ""], "--checkpoint is not set"),
        (["--checkpoint", "{run}/config.yaml"], "not an intact checkpoint"),
        (["--checkpoint", "damaged.pt"], "damaged.pt: damaged"),
        (["--checkpoint", "nan.pt"], "nan.pt: backbone.conv1.weight is not finite"),
        (["--dataset_path", "nowhere"], "--dataset_path nowhere"),
        (["--window", "-3"], "--window -3: must be at least 0"),
        (["--classes", "voc"], "21 names, but --numclasses is 5"),
        (["--json", "{run}/last.pt/x.json"], "cannot be written"),
        (["--json", "."], "--json .: is a folder"),
        (["--save_dir", "{data}/masks"], "is in the data set"),
        (["--report", "{data}/masks/report"], "is in the data set"),
        (["--json", "{data}/masks/scores.json"], "is in the data set"),
        (["--dataset_path", "{data}", "--val_path", "empty"], "nothing to score"),
    ],
)
def test_wrong_flags_and_files_are_named(run, demo_root, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    data = bytearray((run / "last.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "damaged.pt").write_bytes(data)
    content = torch.load(run / "last.pt", weights_only=True)
    content["ema"]["backbone.conv1.weight"][0] = torch.nan
    torch.save(content, tmp_path / "nan.pt")
    shutil.copytree(demo_root, tmp_path / "data")
    (tmp_path / "data/SegmentationClassAug").rename(tmp_path / "data/masks")
    (tmp_path / "data/empty").mkdir()
    for path in (tmp_path / "data/masks").iterdir():
        Image.new("L", (160, 120), 255).save(tmp_path / "data/empty" / path.name)
    fixed = ["--checkpoint", str(run / "last.pt"), "--dataset_path", "data", "--val_path", "masks", "--device", "cpu"]
    with pytest.raises(UserError, match=re.escape(named)):
        evaluate.main([*fixed, *(word.format(run=run, data=tmp_path / "data") for word in words)])


def test_what_is_wrong_is_said_in_one_line_by_each_process(run, tmp_path):
    words = ["--checkpoint", f"{run}/last.pt", "--dataset_path", "nowhere", "--device", "cpu"]
    one_line_each(finish(start_group(2, words, tmp_path, "evaluate.py")), "--dataset_path nowhere")
