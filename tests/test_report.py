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
from data.overlays import contours
from inference.evaluation import Evaluation
from inference.report import MAX_POINTS, TEMPLATE, page, update, with_new_curves
from support.errors import UserError
from support.files import write_atomic
from training.scores import class_counts, confusion_matrix

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
COLOUR = (200, 100, 50)  # of every image


class Example(NamedTuple):
    """An image's label and prediction, (H, W) uint8."""

    name: str
    label: np.ndarray
    predicted: np.ndarray


def counted(name: str, counts: dict[tuple[int, int], int]) -> Example:
    """An example with this many columns of each (label, prediction)."""
    pairs = np.repeat(np.array([*counts], np.uint8), [*counts.values()], axis=0)
    return Example(name, *(np.tile(pairs[:, axis], (20, 1)) for axis in (0, 1)))


EXAMPLES = [  # of an mIoU of 0.5, 0.3 and 1
    counted("fair.png", {(0, 0): 9, (0, 1): 3, (1, 0): 3, (1, 1): 4}),  # IoU of sky 9 / 15 = 0.6, of road 4 / 10 = 0.4
    counted("bad.png", {(1, 1): 3, (1, 2): 6, (2, 1): 6, (2, 2): 8}),  # of road 3 / 15 = 0.2, of car 8 / 20 = 0.4
    counted(HOSTILE, {(0, 0): 9, (255, 1): 3}),
]


class Shown(list):
    """Examples as the data set of a split."""

    names = property(lambda self: [item.name for item in self])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        label = super().__getitem__(index).label
        return {"image": np.full((*label.shape, 3), COLOUR, np.uint8), "label": label}


def write(
    folder: Path, *, classes=CLASSES, confusion=CONFUSION, curves=CURVES, split: str = HOSTILE, shown=EXAMPLES
) -> Path:
    """Write a page of best.pt in a new folder."""
    (folder / "classes.txt").write_text("\n".join(classes))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in curves))
    cfg = SimpleNamespace(
        classes=str(folder / "classes.txt"), numclasses=len(classes), dataset_path="data", background_class=0,
        model_type="res50_ASPP", network="ResNet-18", texts={},
    )  # fmt: skip
    counts = np.ones((7, 3, len(classes)), np.int64)
    for own, item in zip(counts, shown, strict=False):
        predicted, label = map(torch.from_numpy, (item.predicted, item.label))
        own[:] = class_counts(confusion_matrix(predicted, label, len(classes)))
    result = Evaluation(["x"] * 7, torch.tensor(confusion), counts)
    result.scores_with_interval = result.scores | INTERVAL
    predictions = {number: label_png(item.predicted) for number, item in enumerate(shown)}
    text = page(folder / "best.pt", 20, cfg, Shown(shown), split, "raw weights", result, predictions)
    write_atomic(folder / "new/index.html", text, parents=True)
    return folder / "new/index.html"


class Elements(HTMLParser):
    """Tags with their attributes, and the text within each script and title, as a browser takes the page apart."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(path.read_text(encoding="ascii"))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.setdefault(self.lasttag, []).append(data)

    def data(self) -> dict:
        return json.loads(self.texts["script"][0])


def pixels(url: str, mode: str = "RGB") -> np.ndarray:
    kind, _, content = url.partition(";base64,")
    assert kind in ("data:image/png", "data:image/jpeg")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert(mode))


def test_the_page_is_one_file_that_loads_nothing(tmp_path):
    path = write(tmp_path)
    assert list(path.parent.iterdir()) == [path]
    tags = Elements(path).tags
    targets = [attrs[name] for _, attrs in tags for name in ("src", "href", "srcset", "data") if name in attrs]
    assert targets
    assert [target for target in targets if not target.startswith(("#", "data:"))] == []
    policies = [attrs["content"] for _, attrs in tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert [policy.split(";")[0] for policy in policies] == ["default-src 'none'"]


def test_names_with_markup_or_not_in_utf8_stay_names_and_scores_are_right(tmp_path):
    other = EXAMPLES[1]._replace(name=b"caf\xe9.png".decode("utf-8", "surrogateescape"))
    elements = Elements(write(tmp_path, shown=[EXAMPLES[0], other, EXAMPLES[2], counted("ignored", {(255, 1): 9})]))
    assert len([tag for tag, _ in elements.tags if tag == "script"]) == 2
    assert [tag for tag, _ in elements.tags if tag in ("img", "b")] == []
    data, title = elements.data(), f"{tmp_path / 'best.pt'} on {HOSTILE}"
    assert (data["title"], elements.texts["title"][0]) == (title, title)
    names, values = zip(*data["facts"], strict=True)
    assert names == ("checkpoint", "data", "how", "model", "written")
    about = (f"{tmp_path / 'best.pt'}, step 20", f"data, {HOSTILE}, 7 images", "raw weights")
    assert values[:4] == (*about, "res50_ASPP, ResNet-18, 4 classes")
    assert data["scores"]["iou"] == pytest.approx([90 / 122, 60 / 123, 35 / 70, None])
    assert (data["scores"]["images"], data["scores"]["share"]) == (7, [0.4, 0.4, 0.2, 0])
    assert [(entry["name"], entry["miou"], entry["iou"]) for entry in data["examples"]] == [
        ("fair.png", 0.5, [0.6, 0.4, None, None]),
        (other.name, pytest.approx(0.3), [None, 0.2, 0.4, None]),
        (HOSTILE, 1, [1, None, None, None]),
        ("ignored", None, [None] * 4),
    ]


def test_pictures_of_an_example(tmp_path):
    """Columns of classes 0, 1 and ignored; 0 is predicted but for the right half of class 1."""
    item = counted("a", {(0, 0): 13, (1, 0): 6, (1, 1): 7, (255, 0): 14})
    large = Example("large", *(np.kron(values, np.ones((40, 40), np.uint8)) for values in item[1:]))
    entry, shrunk = Elements(write(tmp_path, shown=[item, large])).data()["examples"]
    np.testing.assert_allclose(pixels(entry["input"]), np.full((20, 40, 3), COLOUR), atol=4)
    colours = voc_colours()
    for name, label in (("label", item.label), ("predicted", item.predicted)):
        fill, lines = entry[name]
        np.testing.assert_array_equal(pixels(fill), colours[label])
        # Clear at class 0, the background.
        np.testing.assert_array_equal(pixels(fill, "RGBA")[..., 3], np.where(label == 0, 0, 255))
        drawn = contours(label, 0)
        np.testing.assert_array_equal(pixels(lines, "RGBA")[..., 3], np.where(drawn, 255, 0))
        np.testing.assert_array_equal(pixels(lines)[drawn], colours[label][drawn])
    errors = pixels(entry["errors"], "RGBA")
    assert (errors[:, [*range(13), *range(19, 26)], 3] == 0).all()  # right: the input shows through
    assert (errors[:, 13:19] == (255, 59, 48, 255)).all()  # class 1, predicted as 0
    assert (errors[:, 26:, 3] == 255).all()  # ignored, whatever is predicted
    assert not (errors[:, 26:] == (255, 59, 48, 255)).all(axis=2).any()
    assert shrunk["size"] == [640, 320]  # 1600 x 800 by 640 / 1600, without new classes
    assert {pixels(url).shape for url in (shrunk["input"], *shrunk["label"], shrunk["errors"])} == {(320, 640, 3)}
    assert set(map(tuple, pixels(shrunk["label"][0]).reshape(-1, 3))) == set(map(tuple, colours[[0, 1, 255]]))


def test_no_text_gives_a_number_the_wrong_ending():
    """Every 2th line: the number is known only in the browser."""
    assert not re.search(r"\$\{\w+\}(st|nd|rd|th)\b", TEMPLATE.read_text("utf-8"))


def test_curves_are_thinned_out_damaged_lines_skipped_and_new_ones_added(tmp_path):
    lines = [CURVES[0] | {"step": step} for step in range(1, 2 * MAX_POINTS + 2)]
    path = write(tmp_path, curves=lines)
    before = Elements(path).data()
    curves = before.pop("curves")
    # Over twice MAX_POINTS: every third one, counted from the last.
    assert curves["every"] == 3
    assert len(curves["train"]) == -(-len(lines) // 3)
    assert curves["train"][-1]["step"] == lines[-1]["step"]
    good = [json.dumps(line) for line in CURVES]
    damaged = ["not JSON", "[1]", *good, good[0].replace("2.5", "NaN"), good[0][:9]]
    (tmp_path / "new/metrics.jsonl").write_text("\n".join(damaged))
    path.write_text(with_new_curves(path))
    after = Elements(path).data()
    curves = after.pop("curves")
    assert after == before
    assert [line["loss"] for line in curves["train"]] == [2.5, 1.25, None]
    assert [line["step"] for line in curves["val"]] == [10, 20]
    path.write_text("a page of another program")
    with pytest.raises(UserError, match="damaged"):
        with_new_curves(path)
    update(20, None, None, None, {}, none := tmp_path / "none.html")
    assert not none.exists()
