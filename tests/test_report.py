"""The report's page: what is in the file, and what it does in a browser without a network."""

import base64
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.classes import voc_colours
from errors import UserError
from evaluation.pictures import contours
from evaluation.report import MAX_POINTS, Example, write_report

HOSTILE = "</script><img src=x onerror=alert(1)>{{title}}<!--<script>.png"
CLASSES = ["sky", "road", "car", "<b>moon</b>"]
CONFUSION = np.array([[90, 10, 0, 0], [20, 60, 20, 0], [2, 13, 35, 0], [0, 0, 0, 0]])
# IoU = correct / (row + column - correct): 90/(100+112-90), 60/(100+83-60), 35/(50+55-35).
IOU = [90 / 122, 60 / 123, 35 / 70, None]
SCORES = {
    "images": 7, "pixels": 250, "miou": sum(IOU[:3]) / 3, "pixel_acc": 185 / 250, "mean_acc": 0.7333,
    "fwiou": 0.5902, "boundary_miou": 0.25, "miou_ci": [0.55, 0.65], "iou": IOU, "acc": [0.9, 0.6, 0.7, None],
    "precision": [90 / 112, 60 / 83, 35 / 55, None], "boundary_iou": [0.3, 0.2, 0.25, None], "share": [0.4, 0.4, 0.2, 0.0],
}  # fmt: skip
CURVES = [
    {"kind": "train", "epoch": 1, "step": 10, "loss": 2.5, "losses": {"seg": 1.5, "lorm": 1.0}, "lr": 0.01},
    {"kind": "val", "epoch": 1, "step": 10, "miou": 0.2, "pixel_acc": 0.5},
    {"kind": "train", "epoch": 2, "step": 20, "loss": 1.25, "losses": {"seg": 1.0, "lorm": 0.25}, "lr": 0.005},
    {"kind": "val", "epoch": 2, "step": 20, "miou": 0.6, "pixel_acc": 0.7},
]


def example(name: str, miou: float, iou: list, size=(30, 40)) -> Example:
    """Columns of classes 0, 1 and, at the right, ignored; predicted is 0 but for the right half of class 1."""
    height, width = size
    third = width // 3
    label = np.full(size, 255, np.uint8)
    label[:, :third], label[:, third : 2 * third] = 0, 1
    predicted = np.zeros(size, np.uint8)
    predicted[:, third + third // 2 : 2 * third] = 1
    image = np.full((height, width, 3), (200, 100, 50), np.uint8)
    return Example(name, image, label, predicted, miou, iou)


def examples() -> list[Example]:
    return [
        example("fair.png", 0.5, [0.6, 0.4, None, None]),
        example("bad.png", 0.3, [None, 0.2, 0.4, None]),
        example(HOSTILE, 0.9, [0.9, None, None, None]),
    ]


def write(folder: Path, **changes) -> Path:
    content = {
        "title": HOSTILE, "facts": {"Checkpoint": "log/x/best.pt\nstep 20", "2": "kept in order", "1": HOSTILE},
        "scores": SCORES, "class_names": CLASSES, "colours": voc_colours(), "confusion": CONFUSION, "curves": CURVES,
        "examples": examples(),
    }  # fmt: skip
    return write_report(folder, **(content | changes))


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


# ---- The file


def test_the_page_is_one_file_that_loads_nothing(tmp_path):
    path = write(tmp_path / "new" / "report")
    assert path == tmp_path / "new" / "report" / "index.html"
    assert list(path.parent.iterdir()) == [path]
    tags = Elements(path).tags
    targets = [attrs[name] for _, attrs in tags for name in ("src", "href", "srcset", "data") if name in attrs]
    assert targets
    assert [target for target in targets if not target.startswith(("#", "data:"))] == []
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", path.read_text())
    policies = [attrs["content"] for _, attrs in tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert [policy.split(";")[0] for policy in policies] == ["default-src 'none'"]


def test_names_with_markup_stay_names(tmp_path):
    elements = Elements(write(tmp_path))
    assert len([tag for tag, _ in elements.tags if tag == "script"]) == 2
    assert [tag for tag, _ in elements.tags if tag in ("img", "b")] == []
    assert elements.titles == [HOSTILE]
    data = elements.data()
    assert data["title"] == HOSTILE
    assert [entry["name"] for entry in data["examples"]] == ["fair.png", "bad.png", HOSTILE]
    assert data["facts"] == [["Checkpoint", "log/x/best.pt\nstep 20"], ["2", "kept in order"], ["1", HOSTILE]]


def test_a_name_that_is_not_utf8_and_a_score_that_is_not_a_number(tmp_path):
    name = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    path = write(tmp_path, title=name, examples=[example(name, float("nan"), [None] * 4)])
    (entry,) = Elements(path).data()["examples"]
    assert entry["name"] == name
    assert entry["miou"] is None


def test_pictures_of_an_example(tmp_path):
    (entry,) = Elements(write(tmp_path, examples=examples()[:1])).data()["examples"]
    assert picture(entry["input"]).format == "JPEG"
    np.testing.assert_allclose(np.asarray(picture(entry["input"])), np.full((30, 40, 3), (200, 100, 50)), atol=4)
    colours = voc_colours()
    for name, shown in (("label", examples()[0].label), ("predicted", examples()[0].predicted)):
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
    (entry,) = Elements(write(tmp_path, examples=[example("large", 0.5, [0.5] * 4, (900, 1200))])).data()["examples"]
    assert entry["size"] == [640, 480]  # 1200 x 900 by 640 / 1200
    for url in (entry["input"], *entry["label"], *entry["predicted"], entry["errors"]):
        assert picture(url).size == (640, 480)
    shown = {tuple(colour) for colour in np.asarray(picture(entry["label"][0]).convert("RGB")).reshape(-1, 3).tolist()}
    assert shown == {tuple(voc_colours()[k].tolist()) for k in (0, 1, 255)}


def test_without_a_background_every_class_is_painted(tmp_path):
    (entry,) = Elements(write(tmp_path, examples=examples()[:1], background=None)).data()["examples"]
    assert (np.asarray(picture(entry["label"][0]).convert("RGBA"))[..., 3] == 255).all()


def test_long_curves_are_thinned_out_and_keep_their_end(tmp_path):
    lines = [CURVES[0] | {"step": step} for step in range(1, 2 * MAX_POINTS + 2)]
    curves = Elements(write(tmp_path, curves=lines)).data()["curves"]
    # Over twice MAX_POINTS: every third one, counted from the last.
    assert curves["every"] == 3
    assert len(curves["train"]) == -(-len(lines) // 3)
    assert curves["train"][-1]["step"] == lines[-1]["step"]
    assert curves["val"] == []


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "file"))):
        write(tmp_path / "file")


def test_a_full_disk_leaves_the_old_page(small_disk):
    path = write(small_disk)
    before = path.read_bytes()
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    with pytest.raises(UserError, match=r"index\.html: cannot be written \(No space left on device\)"):
        write(small_disk)
    assert path.read_bytes() == before
    assert sorted(file.name for file in small_disk.iterdir()) == ["filler", "index.html"]
