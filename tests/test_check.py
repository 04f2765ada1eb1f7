"""The data doctor names every fault by its code and file, calls clean data clean, and changes nothing."""

import hashlib
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from data import rules
from data.check import DATASETS, check, main
from data.duplicates import hamming
from data.findings import CATALOG
from data.histogram import class_weights, label_histogram
from data.measure import difference_hash
from data.survey import Paths
from utils import MAPS

HEIGHT, WIDTH = 48, 64


def picture(seed: str, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Coarse coloured clouds, their own for each seed, (H, W, 3) uint8."""
    rng = np.random.default_rng(list(seed.encode()))
    return cv2.resize(rng.integers(0, 256, (8, 9, 3), dtype=np.uint8), (width, height), interpolation=cv2.INTER_LINEAR)


def label(*values: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Vertical stripes of the values, (H, W) uint8."""
    return np.repeat(np.array(values, np.uint8)[np.arange(width) * len(values) // width][None], height, axis=0)


class Drawn:
    """A data set that is drawn file by file, in plain folders or the layout of ScribbleSup."""

    def __init__(self, root: Path, **folders: str):
        self.root = root
        self.folders = {"image": "images", "mask": "masks"} | folders

    def put(self, kind: str, file: str, values: np.ndarray | Image.Image, **options) -> Path:
        path = self.root / self.folders[kind] / file
        path.parent.mkdir(parents=True, exist_ok=True)
        (values if isinstance(values, Image.Image) else Image.fromarray(values)).save(path, **options)
        return path

    def pair(self, name: str, image=None, mask=None, *, suffix: str = ".png", **options) -> None:
        self.put("image", name + suffix, picture(name) if image is None else image, **options)
        self.put("mask", name + ".png", label(0, 1, 2) if mask is None else mask)


def scribblesup_like(root: Path) -> Drawn:
    return Drawn(
        root, image="JPEGImages", mask="SegmentationClass", scribble="pascal_2012_scribble", pseudo="bmp_pseudolabel"
    )


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def turned(name: str, orientation: int) -> dict:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return {"image": picture(name), "suffix": ".jpg", "exif": exif}


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    data = Drawn(tmp_path_factory.mktemp("clean"))
    for name in ("train/a", "train/b", "train/sub/c d", "val/a"):
        data.pair(name)
    return data.root


@pytest.fixture(scope="module")
def faulty(tmp_path_factory) -> Path:
    """Plain folders with one of each fault that a file there can have."""
    data = Drawn(tmp_path_factory.mktemp("faulty"))
    data.pair("train/good")
    data.pair("val/good", mask=label(0, 1, 2, 4))  # class 4 only here, class 3 nowhere
    data.put("image", "train/no_label.png", picture("no_label"))
    data.put("mask", "train/no_image.png", label(0, 1))
    data.pair("train/twice")
    data.put("image", "train/twice.jpg", picture("twice"))
    for name, kind in (("cut_image", "image"), ("cut_label", "mask")):
        data.pair(f"train/{name}")
        cut(data.root / data.folders[kind] / f"train/{name}.png")
    data.pair("train/size", mask=label(0, 1, 2, width=WIDTH - 1))
    data.pair("train/rotated", **turned("rotated", 6))
    data.pair("train/upside_down", **turned("upside_down", 3))
    data.pair("train/deep", picture("deep")[..., 0].astype(np.uint16) * 200)
    data.pair("train/cmyk", Image.fromarray(picture("cmyk")).convert("CMYK"), suffix=".jpg")
    data.pair("train/glass", np.dstack([picture("glass"), label(0, 255)]))
    data.pair("train/grey", picture("grey")[..., 0])
    data.pair("train/small", picture("small", 20, 20), label(0, 1, 2, height=20, width=20))
    data.pair("train/huge", picture("huge", 300, 200), label(0, 1, 2, height=300, width=200))
    colours = np.array([[0, 0, 0], [128, 0, 0], [1, 2, 3]], np.uint8)[label(0, 1, 2)]
    data.pair("train/colour", mask=colours)
    data.pair("train/mode", mask=Image.fromarray(label(0, 1)).convert("LA"))
    data.put("image", "train/jpeg.png", picture("jpeg"))
    data.put("mask", "train/jpeg.jpg", label(0, 1, 2))
    data.put("image", "train/webp.png", picture("webp"))
    data.put("mask", "train/webp.webp", label(0, 1, 2), quality=80)
    data.pair("train/odd", mask=label(0, 1, 254))
    data.pair("train/void", mask=label(255))
    data.pair("train/one", mask=label(2))
    data.pair("train/same", picture("train/good"))
    data.pair("train/leak", picture("leak"))
    data.pair("val/leak", picture("leak"))
    data.pair("train/near", picture("near"))
    data.pair("val/near", picture("near"), suffix=".jpg", quality=80)
    return data.root


FAULTY = {
    "image-without-label": ["images/train/no_label.png"],
    "two-files-of-one-name": ["images/train/twice.jpg"],
    "label-without-image": ["masks/train/no_image.png"],
    "image-unreadable": ["images/train/cut_image.png"],
    "label-unreadable": ["masks/train/cut_label.png"],
    "size-mismatch": ["masks/train/size.png"],
    "exif-rotated": ["masks/train/rotated.png"],
    "exif-turned": ["masks/train/upside_down.png"],
    "image-16-bit": ["images/train/deep.png"],
    "image-cmyk": ["images/train/cmyk.jpg"],
    "image-transparent": ["images/train/glass.png"],
    "image-grey": ["images/train/grey.png"],
    "image-small": ["images/train/small.png"],
    "image-huge": ["images/train/huge.png"],
    "sizes-differ": ["images/train/small.png"],
    "mask-colour": ["masks/train/colour.png"],
    "mask-mode": ["masks/train/mode.png"],
    "mask-lossy": ["masks/train/jpeg.jpg", "masks/train/webp.webp"],
    "label-odd-value": ["masks/train/odd.png"],
    "class-absent": ["class 3"],
    "class-only-in-val": ["class 4"],
    "mask-empty": ["masks/train/void.png"],
    "mask-one-class": ["masks/train/one.png"],
    "duplicate": ["images/train/good.png"],
    "duplicate-across-splits": ["images/train/leak.png"],
    "near-duplicate": ["images/val/near.jpg"],
}


@pytest.fixture(scope="module")
def faulty_lists(tmp_path_factory) -> Path:
    """The layout of ScribbleSup with one of each fault of lists, scribbles and pseudo-labels."""
    data = scribblesup_like(tmp_path_factory.mktemp("lists"))
    scribble = np.where(np.arange(HEIGHT)[:, None] % 12 == 0, label(0, 1, 2), 255).astype(np.uint8)
    changed = {
        "no_stroke": {"scribble": label(255)},
        "lacking": {"scribble": np.where(scribble == 2, 255, scribble).astype(np.uint8)},
        "wrong": {"scribble": np.where(scribble == 2, 1, np.where(scribble == 1, 2, scribble)).astype(np.uint8)},
        "no_pseudo": {"pseudo": label(255)},
        "other": {"pseudo": label(1, 2, 0)},
    }
    for name in ("a", "both", "again", "v", "forgotten", *changed):
        files = {"mask": label(0, 1, 2), "scribble": scribble, "pseudo": label(0, 1, 2)} | changed.get(name, {})
        data.put("image", f"{name}.jpg", picture(name))
        for kind, values in files.items():
            data.put(kind, f"{name}.png", values)
    data.put("pseudo", "lonely.png", label(0, 1))
    lists = data.root / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("\n".join(["a", "both", "again", "again", "gone", *changed]))
    (lists / "val.txt").write_text("v\nboth")
    return data.root


FAULTY_LISTS = {
    "listed-image-missing": ["train: gone"],
    "in-two-splits": ["JPEGImages/both.jpg"],
    "listed-twice": ["train: again"],
    "label-without-image": ["bmp_pseudolabel/lonely.png"],
    "not-listed": ["forgotten"] * 3,  # by its mask, scribble and pseudo-label
    "scribble-empty": ["pascal_2012_scribble/no_stroke.png"],
    "pseudo-empty": ["bmp_pseudolabel/no_pseudo.png"],
    "scribble-lacks-class": ["pascal_2012_scribble/lacking.png"],
    "scribble-contradicts-mask": ["pascal_2012_scribble/wrong.png"],
    "pseudo-disagrees": ["bmp_pseudolabel/other.png"],
}
ELSEWHERE = {"split-missing", "label-out-of-range", "label-binary-255"}


def found(root: Path, **options) -> dict[str, list[str]]:
    _, findings = check(root, **options)
    return {finding.code: finding.files for finding in findings.sorted()}


def snapshot(root: Path) -> dict:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files}


def test_each_fault_is_named_by_its_code_and_file(faulty, monkeypatch):
    monkeypatch.setattr(rules, "HUGE_AREA", 50_000)
    assert found(faulty) == FAULTY


def test_each_fault_of_lists_and_scribbles_is_named(faulty_lists):
    assert found(faulty_lists) == FAULTY_LISTS


def test_every_code_is_tested():
    assert set(CATALOG) == {*FAULTY, *FAULTY_LISTS, *ELSEWHERE}


def test_labels_out_of_the_range_that_is_given(faulty):
    assert found(faulty, num_classes=4)["label-out-of-range"] == ["masks/train/odd.png", "masks/val/good.png"]
    assert "label-out-of-range" not in found(faulty, num_classes=255)


def test_masks_of_0_and_255_are_not_taken_for_background_and_void(tmp_path):
    data = Drawn(tmp_path)
    data.pair("train/a", mask=label(0, 255))
    data.pair("val/b", mask=label(0))
    assert found(tmp_path)["label-binary-255"] == ["masks/train/a.png"]


def test_missing_split(tmp_path, capsys):
    Drawn(tmp_path).pair("train/a")
    assert main([str(tmp_path), "--workers", "0"]) == 2
    assert "split-missing (1)" in capsys.readouterr().out
    assert main([str(tmp_path), "--workers", "0", "--splits", "train"]) == 0


def test_report_names_the_fault_its_files_and_what_to_do(faulty, tmp_path, capsys):
    before = snapshot(faulty)
    assert main([str(faulty), "--workers", "2", "--json", str(tmp_path / "report.json")]) == 2
    text = capsys.readouterr().out
    assert "plain folders, for --dataset Folder" in text
    assert "error   label-odd-value (1): a label value lies far above" in text
    assert "masks/train/odd.png: 254 in " in text
    assert "masks/train/colour.png: 3 colour(s): " in text
    assert "#800000 = class 1" in text
    assert "images/val/near.jpg: like images/train/near.png" in text
    assert snapshot(faulty) == before
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["status"], report["layout"], report["num_classes"]) == (2, "Folder", 5)
    codes = {finding["code"]: finding["files"] for finding in report["findings"]}
    assert codes == {code: files for code, files in FAULTY.items() if code != "image-huge"}


def test_clean_data_is_clean_and_warnings_alone_give_1(clean, tmp_path, capsys):
    assert main([str(clean), "--workers", "0", "--numclasses", "3"]) == 0
    assert "nothing wrong found" in capsys.readouterr().out
    assert main([str(clean), "--workers", "0", "--numclasses", "4"]) == 1
    assert "class-absent (1)" in capsys.readouterr().out


def test_report_is_never_written_into_the_data(clean):
    before = snapshot(clean)
    with pytest.raises(ValueError, match="lies in the data set, where nothing is written"):
        main([str(clean), "--json", str(clean / "report.json")])
    assert snapshot(clean) == before


def test_what_is_no_data_set_is_said_so(tmp_path):
    (tmp_path / "things").mkdir()
    with pytest.raises(ValueError, match=r"neither images and masks .* but things; give its root"):
        check(tmp_path)
    with pytest.raises(ValueError, match="nowhere: no such folder"):
        check(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="--numclasses 1: must be 2 to 255"):
        main([str(tmp_path), "--numclasses", "1"])


def test_numbers_of_the_summary(clean):
    summary, _ = check(clean, paths=Paths(val_path="masks"))
    assert summary.images == {"train": 3, "val": 1}
    assert summary.sizes == {"64x48": 4}
    assert summary.num_classes == 3
    # Stripes of 64 columns in three: 22, 21, 21 wide
    assert [row.pixels["val"] for row in summary.classes] == [22 * 48, 21 * 48, 21 * 48]
    assert [row.images["train"] for row in summary.classes] == [3, 3, 3]
    assert summary.classes[0].weight == pytest.approx(1 / np.log(1.02 + 22 / 64), abs=1e-3)


def test_palette_masks_and_masks_of_three_equal_channels_are_fine(clean, tmp_path):
    data = Drawn(tmp_path)
    palette = Image.fromarray(label(0, 1, 2), mode="P")
    palette.putpalette(list(range(255, -1, -1)) * 3)
    data.pair("train/a", mask=palette)
    data.pair("val/b", mask=np.dstack([label(0, 1, 2)] * 3))
    assert found(tmp_path) == {}


def test_scribbles_and_classes_of_the_demo(demo_root):
    summary, findings = check(demo_root, classes=str(demo_root / "classes.txt"))
    assert (summary.layout, summary.dataset, summary.num_classes) == ("ScribbleSup", "ScribblePseudo", 5)
    assert findings.status < 2
    assert summary.agreement["scribble"] == 1.0  # drawn inside the mask
    assert 0.8 < summary.agreement["pseudo"] < 1.0  # faults as a classifier makes them
    assert all(0 < row.coverage < 1 for row in summary.classes)
    assert summary.classes[1].name == "disc"


def test_real_dense_data_is_clean(camvid):
    summary, findings = check(camvid, num_classes=11, classes="camvid", workers=2)
    assert [finding.code for finding in findings.sorted()] == []
    assert summary.images == {"train": 367, "val": 101}
    assert summary.sizes == {"480x360": 468}


def test_real_scribbles(scribblesup):
    summary, findings = check(scribblesup, num_classes=21, classes="voc")
    assert summary.layout == "ScribbleSup"
    # Two images of 20 classes: all that is wrong with them
    assert [(finding.code, finding.count) for finding in findings.sorted()] == [("class-absent", 18)]
    assert summary.agreement["scribble"] > 0.98


def test_class_weights_follow_enet():
    assert label_histogram(np.array([[0, 1, 1], [255, 3, 1]], np.uint8), 3).tolist() == [1, 3, 0]
    # 1 / ln(1.02 + p) with p = 1, 0
    assert class_weights(np.array([7, 0])).tolist() == pytest.approx([1.4222, 50.4983], abs=1e-3)
    assert np.isfinite(class_weights(np.zeros(3, int))).all()


def test_difference_hash_tells_copies_from_other_pictures():
    same = difference_hash(picture("a"))
    copy = difference_hash(cv2.resize(picture("a"), (128, 96), interpolation=cv2.INTER_LINEAR))
    other = difference_hash(picture("b"))
    assert hamming(np.array([same], np.uint64), copy)[0] <= 2
    assert hamming(np.array([same, 0, 2**64 - 1], np.uint64), other)[0] > 10
    assert hamming(np.array([0, 2**64 - 1, 0b1011], np.uint64), 0).tolist() == [0, 64, 3]
    assert difference_hash(np.full((20, 20, 3), 200, np.uint8)) is None


def test_datasets_are_those_of_training():
    assert set(DATASETS) == set(MAPS)
