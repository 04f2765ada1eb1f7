"""The report's page: what is in the file. test_report_page.py opens it in a browser."""

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from data.classes import voc_colours
from data.images import label_png
from evaluation.metrics import class_counts, confusion_matrix
from evaluation.pictures import contours
from evaluation.report import MAX_POINTS, page, with_new_curves
from evaluation.scoring import Result
from runs import checkpoint
from support.errors import UserError
from support.files import write_atomic

HOSTILE = "</script><img src=x onerror=alert(1)>{{title}}<!--<script>.png"
CLASSES = ["sky", "road", "car", "<b>moon</b>"]
# Of 250 labelled pixels 90, 60 and 35 are right. IoU = correct / (row + column - correct):
# 90 / (100 + 112 - 90) = 0.7377, 60 / (100 + 83 - 60) = 0.4878, 35 / (50 + 55 - 35) = 0.5.
CONFUSION = [[90, 10, 0, 0], [20, 60, 20, 0], [2, 13, 35, 0], [0, 0, 0, 0]]
INTERVAL = {"miou_ci": (0.55, 0.65)}
CURVES = [
    {"kind": "train", "epoch": 1, "step": 10, "loss": 2.5, "losses": {"seg": 1.5, "lorm": 1.0}, "lr": 0.01},
    {"kind": "val", "epoch": 1, "step": 10, "miou": 0.2, "pixel_acc": 0.5},
    {"kind": "train", "epoch": 2, "step": 20, "loss": 1.25, "losses": {"seg": 1.0, "lorm": 0.25}, "lr": 0.005},
    {"kind": "val", "epoch": 2, "step": 20, "miou": 0.6, "pixel_acc": 0.7},
]
NAMES = ["fair.png", "bad.png", HOSTILE]


class Example(NamedTuple):
    name: str
    label: np.ndarray
    predicted: np.ndarray


def counted(name: str, counts: dict[tuple[int, int], int]) -> Example:
    """An example with this many columns of each (label, prediction)."""
    label, predicted = (np.repeat([pair[axis] for pair in counts], [*counts.values()]) for axis in (0, 1))
    return Example(name, np.tile(label, (20, 1)), np.tile(predicted, (20, 1)))


def examples(names=NAMES) -> list[Example]:
    """Images with an mIoU of 0.5, 0.3 and 1."""
    return [
        counted(
            names[0], {(0, 0): 9, (0, 1): 3, (1, 0): 3, (1, 1): 4}
        ),  # IoU of sky 9 / 15 = 0.6, of road 4 / 10 = 0.4
        counted(names[1], {(1, 1): 3, (1, 2): 6, (2, 1): 6, (2, 2): 8}),  # of road 3 / 15 = 0.2, of car 8 / 20 = 0.4
        counted(names[2], {(0, 0): 9, (255, 1): 3}),
    ]


def columns(height: int = 30, width: int = 40) -> Example:
    """Columns of classes 0, 1 and ignored; 0 is predicted but for the right half of class 1."""
    third = width // 3
    label, predicted = np.full((height, width), 255), np.zeros((height, width), np.int64)
    label[:, :third], label[:, third : 2 * third] = 0, 1
    predicted[:, third + third // 2 : 2 * third] = 1
    return Example("columns", label, predicted)


def config(folder: Path, classes: list[str], background: int | None = 0) -> SimpleNamespace:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "classes.txt").write_text("\n".join(classes))
    model = {"model_type": "res50_ASPP", "network": "ResNet-18", "numclasses": len(classes)}
    model |= {"display": lambda image: image}
    return SimpleNamespace(
        classes=str(folder / "classes.txt"), dataset_path="data", background_class=background, **model
    )


class Shown(list):
    """Examples as the data set of a split."""

    @property
    def names(self) -> list[str]:
        return [item.name for item in self]

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        label = super().__getitem__(index).label.astype(np.uint8)
        return {"image": np.full((*label.shape, 3), (200, 100, 50), np.uint8), "label": label}


def draw(folder: Path, *, classes=CLASSES, confusion=CONFUSION, **other) -> str:
    cfg = config(folder, classes, other.get("background", 0))
    shown = Shown(other.get("shown", examples()))
    counts = np.ones((7, 3, len(classes)), np.int64)
    for own, item in zip(counts, shown, strict=False):
        maps = (torch.from_numpy(values.astype(np.uint8)) for values in (item.predicted, item.label))
        own[:] = class_counts(confusion_matrix(*maps, len(classes))).numpy()
    result = Result(["x"] * 7, torch.tensor(confusion), counts)
    result.scores_with_interval = result.scores | INTERVAL
    predictions = {number: label_png(item.predicted.astype(np.uint8)) for number, item in enumerate(shown)}
    split = other.get("split", HOSTILE)
    return page(folder / "best.pt", 20, cfg, shown, split, "raw weights", result, predictions)


def write_curves(folder: Path, curves: list[dict]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in curves))


def write(folder: Path, *, curves=CURVES, **values) -> Path:
    write_curves(folder, curves)
    write_atomic(folder / "new/index.html", draw(folder, **values), parents=True)
    return folder / "new/index.html"


class Elements(HTMLParser):
    """Tags with their attributes, and the text within each script, as a browser takes the page apart."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.scripts: list[str] = []
        self.titles: list[str] = []
        self.feed(path.read_text(encoding="ascii"))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.lasttag == "script":
            self.scripts.append(data)
        elif self.lasttag == "title" and data.strip():
            self.titles.append(data)

    def data(self) -> dict:
        return json.loads(self.scripts[0])


def picture(url: str) -> Image.Image:
    kind, _, content = url.partition(";base64,")
    assert kind in ("data:image/png", "data:image/jpeg")
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_the_page_is_one_file_that_loads_nothing(tmp_path):
    path = write(tmp_path)
    assert list(path.parent.iterdir()) == [path]
    tags = Elements(path).tags
    targets = [attrs[name] for _, attrs in tags for name in ("src", "href", "srcset", "data") if name in attrs]
    assert targets
    assert [target for target in targets if not target.startswith(("#", "data:"))] == []
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", path.read_text())
    policies = [attrs["content"] for _, attrs in tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert [policy.split(";")[0] for policy in policies] == ["default-src 'none'"]


def test_names_with_markup_or_not_in_utf8_stay_names(tmp_path):
    names = [NAMES[0], b"caf\xe9.png".decode("utf-8", "surrogateescape"), HOSTILE]
    elements = Elements(write(tmp_path, shown=examples(names)))
    assert len([tag for tag, _ in elements.tags if tag == "script"]) == 2
    assert [tag for tag, _ in elements.tags if tag in ("img", "b")] == []
    title = f"{tmp_path / 'best.pt'} on {HOSTILE}"
    assert elements.titles == [title]
    data = elements.data()
    assert data["title"] == title
    assert [entry["name"] for entry in data["examples"]] == names
    assert [name for name, _ in data["facts"]] == ["checkpoint", "data", "how", "model", "written"]
    values = [f"{tmp_path / 'best.pt'}, step 20", f"data, {HOSTILE}, 7 images", "raw weights"]
    assert [text for _, text in data["facts"][:4]] == [*values, "res50_ASPP, ResNet-18, 4 classes"]


def test_scores_and_examples(tmp_path):
    data = Elements(write(tmp_path)).data()
    assert data["scores"]["iou"] == pytest.approx([90 / 122, 60 / 123, 35 / 70, None])
    assert (data["scores"]["images"], data["scores"]["share"]) == (7, [0.4, 0.4, 0.2, 0])
    assert [entry["miou"] for entry in data["examples"]] == pytest.approx([0.5, 0.3, 1])
    assert [entry["iou"] for entry in data["examples"]] == [
        [0.6, 0.4, None, None],
        [None, 0.2, 0.4, None],
        [1, None, None, None],
    ]
    ignored = Elements(write(tmp_path, shown=[counted("ignored", {(255, 1): 9})])).data()["examples"]
    assert (ignored[0]["miou"], ignored[0]["iou"]) == (None, [None] * 4)


def test_pictures_of_an_example(tmp_path):
    (entry,) = Elements(write(tmp_path, shown=[columns()])).data()["examples"]
    assert picture(entry["input"]).format == "JPEG"
    np.testing.assert_allclose(np.asarray(picture(entry["input"])), np.full((30, 40, 3), (200, 100, 50)), atol=4)
    colours = voc_colours()
    for name, shown in (("label", columns().label), ("predicted", columns().predicted)):
        fill, lines = map(picture, entry[name])
        assert (fill.mode, lines.mode) == ("P", "P")
        np.testing.assert_array_equal(np.asarray(fill.convert("RGB")), colours[shown])
        # Clear at class 0, the background.
        np.testing.assert_array_equal(np.asarray(fill.convert("RGBA"))[..., 3], np.where(shown == 0, 0, 255))
        drawn = contours(shown, 0)
        np.testing.assert_array_equal(np.asarray(lines.convert("RGBA"))[..., 3], np.where(drawn, 255, 0))
        np.testing.assert_array_equal(np.asarray(lines.convert("RGB"))[drawn], colours[shown][drawn])
    errors = np.asarray(picture(entry["errors"]).convert("RGBA"))
    assert (errors[:, :13, 3] == 0).all()  # class 0, predicted as 0: the input shows through
    assert (errors[:, 13:19] == (255, 59, 48, 255)).all()  # class 1, predicted as 0
    assert (errors[:, 19:26, 3] == 0).all()
    assert (errors[:, 26:, 3] == 255).all()  # ignored, whatever is predicted
    assert not (errors[:, 26:] == (255, 59, 48, 255)).all(axis=2).any()


def test_large_pictures_are_made_smaller_without_new_classes(tmp_path):
    (entry,) = Elements(write(tmp_path, shown=[columns(900, 1200)])).data()["examples"]
    assert entry["size"] == [640, 480]  # 1200 x 900 by 640 / 1200
    for url in (entry["input"], *entry["label"], *entry["predicted"], entry["errors"]):
        assert picture(url).size == (640, 480)
    shown = {tuple(colour) for colour in np.asarray(picture(entry["label"][0]).convert("RGB")).reshape(-1, 3).tolist()}
    assert shown == {tuple(voc_colours()[k].tolist()) for k in (0, 1, 255)}


def test_long_curves_are_thinned_out_and_damaged_lines_skipped(tmp_path):
    lines = [CURVES[0] | {"step": step} for step in range(1, 2 * MAX_POINTS + 2)]
    path = write(tmp_path, curves=lines)
    curves = Elements(path).data()["curves"]
    # Over twice MAX_POINTS: every third one, counted from the last.
    assert curves["every"] == 3
    assert len(curves["train"]) == -(-len(lines) // 3)
    assert curves["train"][-1]["step"] == lines[-1]["step"]
    assert curves["val"] == []

    good = [json.dumps(line) for line in CURVES]
    (tmp_path / "metrics.jsonl").write_text(
        "\n".join(["not JSON", "[1]", *good, good[0].replace("2.5", "NaN"), good[0][:9]])
    )
    (tmp_path / "report.html").write_text(draw(tmp_path))
    data = Elements(tmp_path / "report.html").data()
    assert [line["loss"] for line in data["curves"]["train"]] == [2.5, 1.25, None]
    assert len(data["curves"]["val"]) == 2


def test_new_curves_leave_the_rest_of_the_page(tmp_path):
    assert with_new_curves(tmp_path / "report.html") is None
    write_curves(tmp_path, CURVES)
    (tmp_path / "report.html").write_text(draw(tmp_path))
    before = Elements(tmp_path / "report.html").data()
    write_curves(tmp_path, [*CURVES, CURVES[-1] | {"step": 30, "miou": 0.5}])
    (tmp_path / "report.html").write_text(with_new_curves(tmp_path / "report.html"))
    after = Elements(tmp_path / "report.html").data()
    assert [line["step"] for line in after["curves"]["val"]] == [10, 20, 30]
    assert after | {"curves": before["curves"]} == before
    (tmp_path / "report.html").write_text("a page of another program")
    assert with_new_curves(tmp_path / "report.html") is None


@pytest.mark.parametrize("fault", ["drawing", "writing"])
def test_report_that_fails_is_named_and_the_checkpoint_is_written(tmp_path, caplog, fault):
    path = tmp_path / "report.html"
    if fault == "writing":
        path.mkdir()

    def report() -> None:
        if fault == "drawing":
            raise UserError("photo.jpg: cannot be read")
        write_atomic(path, "a page")

    writer = checkpoint.Writer()
    writer.save({"step": 3}, [tmp_path / "best.pt", tmp_path / "last.pt"], {}, report)
    writer.wait()
    assert [checkpoint.step_of(tmp_path / name) for name in ("best.pt", "last.pt")] == [3, 3]
    named = {"drawing": "photo.jpg: cannot be read", "writing": f"{path}: cannot be written (Is a directory)"}[fault]
    assert caplog.messages == [f"no report: {named}"]
