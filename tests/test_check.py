"""The data check names every fault by its code and file, calls clean data clean, and changes nothing."""

import hashlib
import json
import os
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import REPO
from faulty_data import (
    FAULTY,
    FAULTY_LISTS,
    Drawn,
    draw_clean,
    draw_faulty,
    draw_faulty_lists,
    label,
    picture,
    scribblesup_like,
)
from PIL import Image

import tools.check.__main__
import tools.convert.__main__
from support.errors import UserError
from tools.check.__main__ import check, main
from tools.check.findings import ERRORS, WARNINGS, Findings
from tools.check.measure import Facts, measure
from tools.check.rules import check_strokes
from tools.check.survey import Paths, Sample

# Codes with a test of their own
ELSEWHERE = {
    "split-missing",
    "label-out-of-range",
    "label-binary-255",
    "class-file",
    "ade20k-labels",
    "label-not-listed",
    "no-split",
    "palette-differs",
}


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    return draw_clean(tmp_path_factory.mktemp("clean"))


@pytest.fixture(scope="module")
def faulty(tmp_path_factory) -> Path:
    return draw_faulty(tmp_path_factory.mktemp("faulty"))


def found(root: Path, **options) -> dict[str, list[str]]:
    _, findings = check(root, **options)
    return {finding.code: finding.files for finding in findings.sorted()}


def snapshot(root: Path) -> dict:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files}


def test_each_fault_is_named_by_its_code_and_file(faulty, tmp_path):
    assert found(faulty) == FAULTY
    assert found(draw_faulty_lists(tmp_path)) == FAULTY_LISTS
    assert {*ERRORS, *WARNINGS} == {*FAULTY, *FAULTY_LISTS, *ELSEWHERE}


def test_labels_out_of_the_given_range(faulty):
    assert found(faulty, num_classes=4)["label-out-of-range"] == ["masks/train/odd.png", "masks/val/good.png"]
    assert "label-out-of-range" not in found(faulty, num_classes=255)


def test_missing_split(tmp_path, capsys):
    Drawn(tmp_path).pair("train/a")
    assert main([str(tmp_path), "--workers", "0"]) == 2
    assert "split-missing (1)" in capsys.readouterr().out
    assert main([str(tmp_path), "--workers", "0", "--splits", "train"]) == 0


def test_plain_folders_with_lists(tmp_path):
    drawn = Drawn(tmp_path)
    for name in ("a b", "sub/c", "d", "spare"):
        drawn.pair(name)
    (tmp_path / "train.txt").write_text("a b.png\nsub/c\n")
    (tmp_path / "val.txt").write_text("d\nsub/c.png\n")
    assert found(tmp_path) == {"in-two-splits": ["images/sub/c.png"], "not-listed": ["images/spare.png"]}
    assert found(tmp_path, dataset="Folder", splits=["val"]) == {"not-listed": ["images/spare.png"]}


def test_report_names_the_fault_its_files_and_what_to_do(faulty, tmp_path, capsys):
    before = snapshot(faulty)
    assert main([str(faulty), "--workers", "2", "--json", str(tmp_path / "report.json")]) == 2
    text = capsys.readouterr().out
    assert "plain folders, for --dataset Folder" in text
    for line in (
        "error   label-odd-value (1): a label value lies far above the others\n        to do: correct the labels",
        "masks/train/odd.png: 254 in ",
        "  masks/train/cut_label.png: not a whole, readable image (",
        "masks/train/colour.png: 3 colour(s): ",
        "#800000 = class 1",
    ):
        assert line in text
    assert snapshot(faulty) == before
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["status"], report["num_classes"]) == (2, 5)
    codes = {finding["code"]: finding["files"] for finding in report["findings"]}
    assert codes == FAULTY


def test_clean_data_is_clean_and_warnings_alone_give_1(clean, tmp_path, capsys):
    assert main([str(clean), "--workers", "0", "--numclasses", "3"]) == 0
    assert "nothing wrong found" in capsys.readouterr().out
    assert main([str(clean), "--workers", "0", "--numclasses", "4"]) == 1
    assert "class-absent (1)" in capsys.readouterr().out


def test_classes_of_the_data_sets_own_file(clean, tmp_path, capsys):
    root = shutil.copytree(clean, tmp_path / "data")
    (root / "classes.txt").write_text("ground\ndisc #ff0000\nsquare\n")
    summary, findings = check(root)
    assert [row.name for row in summary.classes] == ["ground", "disc", "square"]
    assert (summary.class_file, findings.status) == (str(root / "classes.txt"), 0)
    assert main([str(root), "--workers", "0"]) == 0
    assert f"--classes {root / 'classes.txt'} " in capsys.readouterr().out.splitlines()[-1]
    # Its colours are known where a mask has them.
    Drawn(root).pair("train/colour", mask=np.array([[0, 0, 0], [255, 0, 0]], np.uint8)[label(0, 1)])
    assert main([str(root), "--workers", "0"]) == 2
    assert "#ff0000 = class 1" in capsys.readouterr().out
    # Another number of classes, or another file: it is not used.
    assert found(root, num_classes=4)["class-file"] == ["classes.txt"]
    assert "class-file" not in found(root, num_classes=21, classes="voc")


def last_command(root, capsys, *words: str) -> list[str]:
    assert main([str(root), "--workers", "0", *words]) < 2
    line = capsys.readouterr().out.splitlines()[-1]
    return shlex.split(line.rsplit(": ", 1)[1])


def test_last_line_is_the_whole_training_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    root = tmp_path / "my data"
    drawn = Drawn(root, image="pictures", mask="the labels")
    for number in range(16):
        drawn.pair(f"train/{number}")
    drawn.pair("val/x")
    folders = ["--image_path", "pictures", "--train_path", "the labels", "--val_path", "the labels"]
    words = ["--dataset", "Folder", "--dataset_path", str(root), "--numclasses", "3"]
    python, program, *given = last_command(root, capsys, *folders)
    # The images' longer side is 64 pixels, and 1000 steps / 20 validations of 8 images are 25 passes over 16 images.
    settings = shlex.split("--layers 18 --crop_size 65 --total_batchsize 8 --max_steps 1000 --repeat 25 --lr 0.01")
    assert given == [*words, *folders, *settings]
    assert shutil.which(python)
    assert Path(program).samefile(REPO / "train.py")
    words[-1] = "11"
    given = last_command(root, capsys, *folders, "--classes", "camvid")[2:]
    assert given == [*words, "--classes", "camvid", *folders, *settings]


def test_splits_that_cannot_be_trained_are_said_so(clean, capsys):
    command = last_command(clean, capsys, "--splits", "val", "--train_path", "masks")
    words = [str(clean), "--dataset", "Folder", "--train_path", "masks"]
    assert words in (command[2:], command[3:])  # after python FILE or python -m tools.check


def killed(sample, label_map):
    os._exit(9)


def test_a_killed_process_ends_the_check_with_one_line(clean, monkeypatch):
    monkeypatch.setattr(tools.check.__main__, "measure", killed)
    with pytest.raises(UserError, match=r"a process of --workers 1 was killed.*--workers 0"):
        main([str(clean), "--workers", "1"])


def test_what_is_no_data_set_is_said_so(tmp_path):
    (tmp_path / "things").mkdir()
    with pytest.raises(UserError, match=r"neither images and masks .* but things; give its root"):
        check(tmp_path)
    with pytest.raises(UserError, match="nowhere: no such folder"):
        check(tmp_path / "nowhere")
    with pytest.raises(UserError, match="--numclasses 1: must be 2 to 255"):
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
    drawn = Drawn(tmp_path)
    palette = Image.fromarray(label(0, 1, 2), mode="P")
    palette.putpalette(list(range(255, -1, -1)) * 3)
    drawn.pair("train/a", mask=palette)
    drawn.pair("val/b", mask=np.dstack([label(0, 1, 2)] * 3))
    assert found(tmp_path) == {}


def test_scribbles_and_classes_of_the_demo(demo_root):
    summary, findings = check(demo_root, classes=str(demo_root / "classes.txt"))
    assert (summary.dataset, summary.num_classes) == ("ScribblePseudo", 5)
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
    # Two images of 20 classes: all that is wrong with them
    assert [(finding.code, finding.count) for finding in findings.sorted()] == [("class-absent", 18)]
    assert summary.agreement["scribble"] > 0.98


def stroked(root: Path, number: int, scribble: np.ndarray, mask: np.ndarray | None) -> Facts:
    """What the check measures of a scribble, and of a mask if there is one."""
    labels = {"scribble": scribble} | ({} if mask is None else {"mask": mask})
    drawn = scribblesup_like(root)
    image = drawn.put("image", f"{number}.png", picture("a"))
    files = {kind: drawn.put(kind, f"{number}.png", values) for kind, values in labels.items()}
    return measure(Sample(("train",), image, files))


def without_stroke(facts: list[Facts]) -> list[tuple[str, str]]:
    findings = Findings(Path("."))
    check_strokes(facts, ["sky", "1", "car"], findings)
    assert {finding.code for finding in findings.sorted()} <= {"class-without-stroke"}
    return [pair for item in findings.sorted() for pair in zip(item.files, item.notes, strict=True)]


def test_classes_without_a_stroke_are_counted_by_the_masks(tmp_path):
    scribbles = [label(0, 255, 2), label(0, 1), label(255, 1), label(255)]  # the last one has a finding of its own
    masks = [label(0, 1, 2), label(0, 1, 2), label(0, 1), label(0, 1)]
    facts = [stroked(tmp_path, number, *pair) for number, pair in enumerate(zip(scribbles, masks, strict=True))]
    assert without_stroke(facts) == [
        ("class 0 (sky)", "in 1 of 3 images with it"),
        ("class 1", "in 1 of 3 images with it"),
        ("class 2 (car)", "in 1 of 2 images with it"),
    ]
    assert without_stroke(facts[3:]) == []


def test_without_masks_a_class_with_strokes_in_few_of_many_images_is_named(tmp_path):
    """Below 1 % of at least 100 images: 1 of 101, but not 1 of 100, and not 2 of 101."""
    common, rare = (stroked(tmp_path, number, label(*values), None) for number, values in enumerate([(0, 1), (0, 2)]))
    note = "strokes in 1 of 101 images, which have no masks to compare with"
    assert without_stroke([common] * 100 + [rare]) == [("class 2 (car)", note)]
    assert without_stroke([common] * 99 + [rare]) == []
    assert without_stroke([common] * 99 + [rare] * 2) == []
    assert without_stroke([common] * 200) == []  # "class-absent" says that class 2 has no stroke at all


@pytest.mark.parametrize("dataset", ["Folder", "Dense"])
def test_class_numbers_whose_colours_differ_between_palettes_are_an_error(tmp_path, capsys, dataset):
    folders = {"image": "JPEGImages", "mask": "SegmentationClass"} if dataset == "Dense" else {}
    drawn = Drawn(tmp_path / "data", **folders)
    grey, red, green = ([90] * 3, [255, 0, 0], [0, 255, 0])
    for name, palette in {"a": [grey, red, red], "b": [grey, red, green], "c": [grey, green, red]}.items():
        mask = Image.fromarray(label(0, 1) if name == "a" else label(0, 1, 2))
        mask.putpalette(np.ravel(palette).tolist())
        drawn.pair(name, mask=mask)
    lists = drawn.root / "ImageSets/Segmentation" if dataset == "Dense" else drawn.root
    lists.mkdir(parents=True, exist_ok=True)
    (lists / "train.txt").write_text("a\nb\n")
    (lists / "val.txt").write_text("c\n")
    assert main([str(drawn.root), "--workers", "0"]) == 2
    text = capsys.readouterr().out
    masks = drawn.folders["mask"]
    assert "palette-differs (1): " in text
    assert f"{masks}/c.png: 1 is #00ff00, but #ff0000 in {masks}/a.png" in text
    (tmp_path / "same.txt").write_text("0 0\n1 1\n2 2\n")
    assert "palette-differs" not in found(drawn.root, paths=Paths(label_map=str(tmp_path / "same.txt")))
    for command in text.splitlines()[-1].removeprefix("to fix: ").split(" && "):
        assert tools.convert.__main__.main([*shlex.split(command)[3:], "--workers", "0"]) == 0
    # The classes are the colours in order: 0 green, 1 grey, 2 red; a has no green, and c is b with its colours swapped.
    numbers = {
        path.stem: np.array(Image.open(path))[0, ::22].tolist() for path in tmp_path.rglob("data_masks/masks/**/*.png")
    }
    assert numbers == {"a": [1, 1, 2], "b": [1, 2, 0], "c": [1, 0, 2]}
