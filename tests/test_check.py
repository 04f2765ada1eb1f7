"""The data check names every fault by its code and file, calls clean data clean, and changes nothing."""

import json
import re
import shlex
import shutil
from pathlib import Path
from unittest import mock

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
    turned,
)
from PIL import Image
from test_layout import put

from data.label_check import infer_num_classes
from data.layout import find_split
from support.errors import UserError
from tools.check import commands
from tools.check.__main__ import check, main
from tools.check.rules import ERRORS, WARNINGS
from tools.convert.__main__ import main as convert

# Codes with a test of their own
ELSEWHERE = """split-missing label-binary-255 label-not-listed no-split palette-differs strokes-dense mask-colour
class-alike nothing-labelled one-class label-other-ending image-missing-values image-of-one-value"""


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
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.rglob("*") if path.is_file()}


def report(root: Path, capsys, status: int, *words: str) -> str:
    """The report of a check that ends with this status."""
    assert main([str(root), "--workers", "0", *words]) == status
    return capsys.readouterr().out


def test_each_fault_is_named_by_its_code_and_file(faulty, tmp_path):
    assert found(faulty) == FAULTY
    assert found(draw_faulty_lists(tmp_path)) == FAULTY_LISTS
    assert {*ERRORS, *WARNINGS} == {*FAULTY, *FAULTY_LISTS, *ELSEWHERE.split()}


def test_labels_out_of_the_given_range(faulty):
    assert found(faulty, numclasses=4)["label-out-of-range"] == ["masks/train/odd.png", "masks/val/good.png"]
    assert found(faulty, numclasses=255)["class-absent"]  # and 254 is a class
    assert "label-out-of-range" not in found(faulty, numclasses=255)


def palette_of(values: np.ndarray, *colours: list[int]) -> Image.Image:
    image = Image.fromarray(values)
    image.putpalette(np.ravel(colours).tolist())
    return image


COLOURS = np.array([[0, 0, 0], [200, 30, 30], [255, 255, 255]], np.uint8)
GREYS = [[255 - value] * 3 for value in range(256)]
GREY_RED_GREEN = palette_of(label(0, 1, 2), [90] * 3, [255, 0, 0], [0, 255, 0])
GREY_GREEN_RED = palette_of(label(0, 1, 2), [90] * 3, [0, 255, 0], [255, 0, 0])


ONE_CLASS = {"class-only-in-val": ["class 0"], "one-class": ["train"]}  # warnings


@pytest.mark.parametrize(
    ("masks", "options", "findings"),
    [
        ({"train/a": label(0, 1, 2)}, {}, {"split-missing": ["val"]}),
        ({"train/a": label(0, 1, 2)}, {"splits": ["train"]}, {}),
        # A palette, and three equal channels
        ({"train/a": palette_of(label(0, 1, 2), *GREYS), "val/b": np.dstack([label(0, 1, 2)] * 3)}, {}, {}),
        ({"train/a": label(1, 255), "val/b": label(0, 1)}, {}, ONE_CLASS),
    ],
)
def test_small_data_sets(tmp_path, masks, options, findings):
    Drawn(tmp_path).pairs(masks)
    assert found(tmp_path, **options) == findings


@pytest.mark.parametrize(
    ("names", "is_alike"),
    [
        ("tree trea", True),
        ("tree TREE", True),
        ("car cars", True),
        ("tree three", True),
        ("banana bahana", True),  # a letter that occurs again after the slip
        ("tree true-ly", False),
        ("lane1 lane2", False),
        ("class_a class_b", False),
        ("a1 a", False),
    ],
)
@pytest.mark.parametrize("usual", [3, 4])
def test_a_rare_class_that_is_spelt_almost_as_another(tmp_path, names, is_alike, usual):
    """Class 1 is in 3 or 4 images, class 2 in one: 4 times are enough."""
    drawn = Drawn(tmp_path)
    drawn.pairs({f"train/{number}": label(0, 1) for number in range(usual)} | {"val/last": label(0, 2)})
    (tmp_path / "classes.txt").write_text("\n".join(["background", *names.split()]))
    alike = [f"class {names.split()[1]}"] if is_alike and usual == 4 else []
    assert found(tmp_path).get("class-alike", []) == alike


def test_plain_folders_with_lists(tmp_path):
    drawn = Drawn(tmp_path)
    drawn.pairs(dict.fromkeys(("a b", "sub/c", "d")))
    drawn.pair("e", picture("a b"))  # a split may have a picture twice
    (tmp_path / "train.txt").write_text("a b.png\nsub/c\ne\n")
    (tmp_path / "val.txt").write_text("d\nsub/c.png\n")
    assert found(tmp_path) == {"in-two-splits": ["images/sub/c.png"]}
    assert found(tmp_path, dataset="Folder", splits=["val"]) == {}


def test_images_that_the_training_list_repeats_count_as_in_training(tmp_path, capsys, monkeypatch):
    Drawn(tmp_path).pairs(dict.fromkeys("abv"))
    (tmp_path / "train.txt").write_text("a\nb\n" + "a\na.png\n" * 2 + "x" * 4000)
    (tmp_path / "val.txt").write_text("v\n")
    out = report(tmp_path, capsys, 2)
    assert "  4 more line(s) for train repeat images: training reads all lines\n" in out  # a, a.png, a, a.png
    assert max(map(len, out.splitlines())) < 520
    (tmp_path / "train.txt").write_text("a\nb\na\n")
    names, _ = find_split(tmp_path, "Folder", "train", {"label": ""}).pairs
    recipe = mock.Mock(wraps=commands.Recipe)
    monkeypatch.setattr(commands, "Recipe", recipe)
    commands.training_lines(check(tmp_path)[0])
    assert [call.args[3] for call in recipe.call_args_list] == [len(names)] == [3]


def test_report_names_the_fault_its_files_and_what_to_do(faulty, tmp_path, capsys):
    before = snapshot(faulty)
    assert main([str(faulty), "--workers", "2", "--json", str(tmp_path / "report.json")]) == 2
    text = capsys.readouterr().out
    assert "plain folders, for --dataset Folder" in text
    for line in (
        "error   label-out-of-range (1): a label value is not a class number\n        to do: correct the labels",
        "masks/train/odd.png: 254 in ",
        "masks/train/colour.png: 3 colour(s): ",
        "EXIF rotates 2 image(s) but not their labels",  # rotated, upside_down
    ):
        assert line in text
    assert snapshot(faulty) == before
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["status"], report["num_classes"]) == (2, 5)
    codes = {finding["code"]: finding["files"] for finding in report["findings"]}
    assert codes == FAULTY


def test_clean_data_is_clean_and_warnings_alone_give_1(clean, tmp_path, capsys):
    assert "nothing wrong found" in report(clean, capsys, 0, "--numclasses", "3")
    assert "class-absent (1)" in report(clean, capsys, 1, "--numclasses", "4")


def test_classes_of_the_data_sets_own_file(clean, tmp_path, capsys):
    root = shutil.copytree(clean, tmp_path / "data")
    (root / "classes.txt").write_text("ground\ndisc #ff0000\nsquare\n")
    counts, findings = check(root)
    assert [row.name for row in counts.classes] == ["ground", "disc", "square"]
    assert (counts.class_file, findings.status) == (str(root / "classes.txt"), 0)
    assert f"classes: --numclasses 3 (named by {root / 'classes.txt'})" in report(root, capsys, 0)
    # Its colours are known where a mask has them.
    Drawn(root).pair("train/colour", mask=np.array([[0, 0, 0], [255, 0, 0]], np.uint8)[label(0, 1)])
    assert "#ff0000 = class 1" in report(root, capsys, 2)
    with pytest.raises(UserError, match=r"classes\.txt: 3 names, but --numclasses is 4"):
        check(root, numclasses=4)
    assert check(root, numclasses=21, classes="voc")[0].class_file == "voc"


def test_last_line_is_the_whole_training_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    root = tmp_path / "my data"
    drawn = Drawn(root, image="pictures", mask="the labels")
    drawn.pairs(dict.fromkeys([*(f"train/{number}" for number in range(16)), "val/x"]))
    words = ["--dataset", "Folder", "--image_path", "pictures"]
    words += ["--train_path", "the labels", "--val_path", "the labels"]
    said = report(root, capsys, 0, *words)
    # The images' longer side is 64 pixels, and 1000 steps / 20 validations of 8 images are 25 passes over 16 images.
    for setting in ("layers 18", "crop_size 65", "batchsize 8", "max_steps 1000", "repeat 25", "lr 0.01"):
        assert f"\n  --{setting} " in said
    python, program, *given = shlex.split(said.splitlines()[-1].removeprefix("to train: "))
    assert given == ["--dataset_path", str(root), *words]  # train.py finds the rest by itself
    assert shutil.which(python)
    assert Path(program).samefile(REPO / "train.py")


def test_a_stage_of_a_config_gives_flags_and_stays_in_the_command(clean, tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("numclasses: 3\nworkers: 1\nstages:\n  many:\n    numclasses: 4\n")
    words = ["--config", str(tmp_path / "c.yaml"), "--stage", "many"]
    said = report(clean, capsys, 1, *words)
    assert "class-absent (1)" in said
    assert shlex.split(said.splitlines()[-1])[-6:] == [*words, "--dataset_path", str(clean)]


def test_long_lists_are_cut_and_say_so(tmp_path, capsys):
    """6 sizes, of which 4 are shown; 6 files with a fault, of which 3; 7 values, of which 6."""
    drawn = Drawn(tmp_path)
    for width in range(64, 70):
        drawn.pair(f"train/{width}", picture(str(width), 48, width), label(0, 1, *range(240, 247), width=width))
    drawn.pair("val/a", mask=label(0, 1))
    said = report(tmp_path, capsys, 2)
    for text in (" (1), and 2 more\n", "240, 241, 242, 243, 244, 245, ... in ", "  and 3 more (--json lists all)\n"):
        assert text in said


def test_splits_that_cannot_be_trained_are_said_so(clean, capsys):
    said = report(clean, capsys, 0, "--splits", "val", "--train_path", "masks")
    assert shlex.split(said.splitlines()[-1])[-5:] == [str(clean), "--dataset", "Folder", "--train_path", "masks"]


def test_what_is_no_data_set_is_said_so(tmp_path):
    (tmp_path / "things").mkdir()
    with pytest.raises(UserError, match=r"neither images and masks .* but things; pass its root folder"):
        check(tmp_path)
    with pytest.raises(UserError, match="nowhere: no such folder"):
        check(tmp_path / "nowhere")
    with pytest.raises(UserError, match="--numclasses 1: must be at least 2 and at most 255"):
        main([str(tmp_path), "--numclasses", "1"])


def test_an_image_is_not_checked_as_its_own_label(tmp_path):
    for split in ("train", "val"):
        Drawn(tmp_path, image="").put("image", f"{split}/a.png", label(0, 1, 2))
    paths = {"image_path": ".", "train_path": ".", "val_path": "."}
    assert found(tmp_path, dataset="Folder", **paths)["image-without-label"] == ["train/a.png", "val/a.png"]


def test_annotations_in_csv_are_named(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "train.csv").write_text("ImageId,EncodedPixels\na.jpg,10 5\n")
    with pytest.raises(UserError, match=r"train\.csv: annotations in CSV are not read: write them as COCO's JSON"):
        check(tmp_path)
    (tmp_path / "train.csv").write_text("name,r,g,b\nroad,1,2,3\n")  # the classes of an export
    with pytest.raises(UserError, match="no data set"):
        check(tmp_path)


def test_numbers_of_the_summary(clean):
    counts, _ = check(clean, val_path="masks")
    assert counts.images == {"train": 3, "val": 1}
    assert counts.sizes == {"64x48": 4}
    assert counts.num_classes == 3
    # Stripes of 64 columns in three: 22, 21, 21 wide
    assert [row.pixels["val"] for row in counts.classes] == [22 * 48, 21 * 48, 21 * 48]
    assert [row.images["train"] for row in counts.classes] == [3, 3, 3]
    assert infer_num_classes([]) == 2  # as few as --numclasses may be


def test_masks_of_two_kinds_are_told_apart_mask_by_mask(tmp_path, capsys):
    drawn = Drawn(tmp_path)
    both = label(0, 1)
    drawn.pairs({"train/a": both, "train/b": label(0, 255), "train/c": label(0), "val/d": both})
    said = report(tmp_path, capsys, 2)
    # Half of 64 columns are 255 in one of four masks.
    assert "label-binary-255 (1)" in said
    assert "masks/train/b.png: 50.0% of its pixels are 255; 25% of the masks are so" in said
    assert main([*shlex.split(said.splitlines()[-1])[5:], "--workers", "0"]) == 0
    assert check(tmp_path, label_map="binary")[0].classes[1].pixels == {"train": 64 * 48, "val": 32 * 48}
    drawn.pair("train/e", mask=label(0, 1, 255))  # 255 is what is ignored
    capsys.readouterr()
    assert "1 of 5 masks hold only 0 and 255 (ignored): is 255 an object" in report(tmp_path, capsys, 0)
    drawn.pair("train/e", mask=label(0, 2))
    assert "to fix" not in report(tmp_path, capsys, 2)  # binary has no class 2
    drawn.pair("train/e", mask=label(0, 1))
    assert "to fix" in report(tmp_path, capsys, 2)
    (tmp_path / "classes.txt").write_text("ground\ncar\ntree\n")
    assert "to fix" not in report(tmp_path, capsys, 2)


def test_masks_of_255_beside_strokes_get_no_command(tmp_path, capsys):
    """--label_map binary would read the strokes' 255, no stroke, as the object."""
    drawn = scribblesup_like(tmp_path)
    for name in ("a", "b"):
        drawn.pair(name, mask=label(0, 255))
        drawn.put("scribble", f"{name}.png", label(0, 1, 255))
    drawn.write_lists(train="a", val="b")
    said = report(tmp_path, capsys, 2, "--dataset", "ScribbleOnly")
    assert "label-binary-255 (2)" in said
    assert "if the data set has strokes, where 255 means no stroke, write the object as 1" in said
    assert "to fix" not in said


def test_objects_of_255_without_splits_are_read_as_train_py_will(tmp_path, capsys):
    Drawn(tmp_path).pairs(dict.fromkeys("abcd", label(0, 255)))
    said = report(tmp_path, capsys, 2)
    assert "label-binary-255" not in said
    assert "no-split (1)" in said
    assert re.fullmatch(r"to fix: .*tools\.split .* --label_map binary", said.splitlines()[-1])


def test_real_dense_data_is_clean(camvid):
    counts, findings = check(camvid, numclasses=11, classes="camvid", workers=2)
    assert [finding.code for finding in findings.sorted()] == []
    assert counts.images == {"train": 367, "val": 101}
    assert counts.sizes == {"480x360": 468}


def test_class_numbers_whose_colours_differ_between_palettes_are_an_error(tmp_path, capsys):
    """In VOC's layout; the printed command reads the colours."""
    drawn = Drawn(tmp_path / "data", image="JPEGImages", mask="SegmentationClass")
    drawn.pairs({"a": GREY_RED_GREEN, "b": GREY_GREEN_RED})
    drawn.write_lists(train="a", val="b")
    text = report(drawn.root, capsys, 2)
    assert "palette-differs (1)" in text
    assert "SegmentationClass/b.png: 1 is #00ff00, but #ff0000 in SegmentationClass/a.png" in text
    assert convert([*shlex.split(text.splitlines()[-1])[5:], "--workers", "0"]) == 0
    files = tmp_path.rglob("data_masks/masks/**/*.png")
    masks = {path.stem: np.array(Image.open(path))[0, ::22].tolist() for path in files}
    assert masks == {"a": [1, 2, 0], "b": [1, 0, 2]}  # the classes are the colours in order: green, grey, red
    assert commands.new_folder(drawn.root).name == "data_masks2"  # the first name is taken now
    # Beside class numbers they cannot be converted.
    drawn.pair("c", mask=label(0, 1, 2))
    drawn.write_lists(train="ac", val="b")
    said = report(drawn.root, capsys, 2)
    found = "b.png: 1 is #00ff00, but #ff0000 in SegmentationClass/a.png; class numbers in SegmentationClass/c.png"
    assert f"SegmentationClass/{found}" in said
    assert "mask-mixed (1)" in said
    assert "to fix: " not in said


RED, WHITE = COLOURS[label(0, 1)], COLOURS[label(0, 2)]


def channels(values: np.ndarray, *more: np.ndarray) -> np.ndarray:
    return np.dstack([values, values, values, *more])


@pytest.mark.parametrize(
    ("masks", "code"),
    [
        ([label(0, 1, 255), label(0, 2), RED], "mask-mixed"),
        ([label(0, 255), RED], "mask-mixed"),
        ([channels(label(0, 1)), RED], "mask-mixed"),
        ([channels(label(0, 1), label(255)), RED], "mask-mixed"),
        ([palette_of(label(0, 1), *GREYS[::-1]), RED], "mask-mixed"),  # a palette of greys: 1 is #010101
        # Pictures without one of the colours, whose three channels are equal
        ([channels(label(0, 0)), channels(label(0, 255)), RED, WHITE], "mask-colour"),
        ([palette_of(label(0, 1), [0, 0, 0], [0, 0, 200]), RED], "mask-colour"),
        ([channels(label(0, 255), label(255)), channels(label(0, 255), label(255))], "mask-colour"),
    ],
)
@pytest.mark.parametrize("folders", [{}, {"image": "JPEGImages", "mask": "SegmentationClass"}])
def test_colours_among_class_numbers_are_not_converted(tmp_path, capsys, folders, masks, code):
    """The command would read the numbers as colours, such as #010101."""
    drawn = Drawn(tmp_path, **folders)
    *names, last = "abcd"[: len(masks)]
    drawn.pairs(dict(zip([*names, last], masks, strict=True)))
    if folders:
        drawn.write_lists(train=names, val=last)
    said = report(tmp_path, capsys, 2)
    assert f"error   {code} (" in said
    assert ("to fix: " in said) == (code == "mask-colour")
    assert ("; class numbers in " in said) == (code == "mask-mixed")


def test_strokes_of_other_shares_and_skipped_classes_are_named(tmp_path, capsys):
    """Val has 1/2, 1/4, 1/4 of the classes 0, 1, 2 in both images; the strokes 20, 30, 10 pixels, of 2 in one of three.

    20/60 / (1/2) = 0.67, which is near 1; 30/60 / (1/4) = 2; 10/60 / (1/4) = 0.67.
    """
    mask = np.zeros((40, 40), np.uint8)
    mask[20:, :20], mask[20:, 20:] = 1, 2
    names = {"train": ["a", "b", "c"], "val": ["d", "e"]}
    for split in names:
        for name in names[split]:
            rng = np.random.default_rng(ord(name))
            put(tmp_path / f"JPEGImages/{name}.jpg", rng.integers(0, 255, (40, 40, 3), dtype=np.uint8))
            if split == "val":
                put(tmp_path / f"SegmentationClass/{name}.png", mask)
    Drawn(tmp_path).write_lists(**names)
    for name, counts in {"a": (10, 10, 0), "b": (10, 10, 0), "c": (0, 10, 10)}.items():
        stroke = np.full((40, 40), 255, np.uint8)
        for value, count in enumerate(counts):
            stroke[3 * value, :count] = value
        put(tmp_path / f"pascal_2012_scribble/{name}.png", stroke)
    said = report(tmp_path, capsys, 0, "--dataset", "ScribbleOnly")
    assert "  share of the strokes / share of the pixels in val: class 1 2.0: for information" in said
    assert f"tools.scribbles.pipeline {tmp_path} log/scribbles --numclasses 3" in said.splitlines()[-1]
    shares = "images with a stroke in train / images that show it in val: class 2 33% / 100%"
    assert f"  {shares}: draw more of these" in said
    words = ["--dataset", "ScribbleOnly", "--train_path", "SegmentationClass", "--train_split", "val"]
    said = report(tmp_path, capsys, 1, *words)
    assert "share of the strokes" not in said  # the same labels
    assert "val: 100% of the pixels are labelled" in said


def test_strokes_that_are_empty_missing_or_in_colours(tmp_path, capsys):
    stroke = np.full((40, 40), 255, np.uint8)
    files = {"JPEGImages/a.jpg": None, "JPEGImages/v.jpg": None, "pascal_2012_scribble/a.png": stroke}
    for name, values in (files | {"SegmentationClass/v.png": np.eye(40, dtype=np.uint8)}).items():
        put(tmp_path / "data" / name, values)
    drawn = Drawn(tmp_path / "data")
    drawn.write_lists(val="v")
    words = [tmp_path / "data", capsys, 2, "--dataset", "ScribbleOnly"]
    assert "train.txt: no such list" in report(*words)
    drawn.write_lists(train="a")
    said = report(*words)
    assert "nothing-labelled (1)" in said
    assert "to train:" not in said
    assert "strokes-dense" not in said
    colours = np.zeros((40, 40, 3), np.uint8)
    colours[3, :20], colours[9, :20] = (200, 0, 0), (0, 200, 0)
    put(tmp_path / "data/pascal_2012_scribble/a.png", colours)
    command = shlex.split(report(*words).splitlines()[-1].removeprefix("to fix: "))
    assert convert([*command[command.index("colours") :], "--workers", "0"]) == 0
    said = capsys.readouterr()
    assert "1 image(s) have no stroke, such as " in said.out  # v is for validation
    assert "background" not in said.out + said.err
    fixed = tmp_path / "data_masks/pascal_2012_scribble/a.png"
    stroke[3, :20], stroke[9, :20] = 1, 0  # in the order of the colours
    assert (np.array(Image.open(fixed)) == stroke).all()
    for text, is_used in (("a\nb\n", False), ("a #c80000\nb #00c800\n", True)):  # names alone do not say what is red
        (tmp_path / "data/classes.txt").write_text(text)
        assert (f"--classes {tmp_path / 'data/classes.txt'}" in report(*words).splitlines()[-1]) == is_used


@pytest.mark.parametrize(("ending", "other"), [("_mask", "_mask_1"), ("_organ", "_tumour"), (".m", "-2.m2")])
def test_labels_of_other_endings_are_named_if_only_some_images_have_them(tmp_path, ending, other):
    drawn = Drawn(tmp_path)
    for name in ("train/a (1)", "train/a (10)", "train/a (1)_2", "val/b", "val/c"):
        drawn.put("image", f"{name}.jpg", picture(name))
        for end in (ending, "_colour"):
            drawn.put("mask", f"{name}{end}.png", label(0, 1))
    expected = [drawn.put("mask", f"{name}{other}.png", label(0, 2)) for name in ("train/a (1)_2", "val/c")]
    files = {"label-other-ending": [path.relative_to(tmp_path).as_posix() for path in expected]}
    assert found(tmp_path, label_suffix=ending) == files
    for path in tmp_path.rglob("*_colour.png"):  # a second label of each image is of another kind
        path.unlink()
    assert found(tmp_path) == files


def test_colours_under_alpha_0_are_black_as_in_the_converter(tmp_path, capsys):
    rgba = np.dstack([np.full((48, 64, 3), (200, 30, 30)), label(0, 255)]).astype(np.uint8)
    Drawn(tmp_path / "in").pairs({"train/a": rgba, "train/b": rgba[..., :3], "val/c": rgba})
    said = report(tmp_path / "in", capsys, 2)
    assert "  2 mask(s) have painted colours under alpha 0: read as unlabelled" in said
    assert "train/a.png: 2 colour(s): #000000" in said  # half of the columns each
    assert convert([*shlex.split(said.splitlines()[-1])[5:], "--workers", "0"]) == 0
    assert "\n2 mask(s) have painted colours under alpha 0" in capsys.readouterr().out
    for path in (tmp_path / "in/masks").rglob("*.png"):
        Image.fromarray(rgba * np.array([1, 1, 1, 0], np.uint8)).save(path)
    with pytest.raises(UserError, match=r"a\.png: painted colours under alpha 0"):
        convert(["colours", str(tmp_path / "in"), str(tmp_path / "out")])


def test_exif_is_blamed_for_sides_in_another_order_only_if_there_is_some(tmp_path):
    drawn = Drawn(tmp_path)
    drawn.pair("train/a", mask=label(0, 1, 2).T)
    drawn.pair("val/b", **turned("b", 6))
    [finding] = check(tmp_path)[1].sorted()
    assert finding.notes == ["48x64, but its image 64x48", "64x48, but its image 48x64; does EXIF turn one of them?"]


def test_masks_in_colours_get_no_table_of_classes(tmp_path, capsys):
    red = np.full((8, 9, 3), (200, 30, 30), np.uint8)
    for split in ("train", "val"):
        Drawn(tmp_path).pair(f"{split}/a", image=red, mask=red)
    said = report(tmp_path, capsys, 2)
    assert "  classes: no label has a pixel with a class number\n\n" in said
    assert "numclasses" not in said
