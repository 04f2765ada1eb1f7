"""The data check recognises what a folder holds, and prints one command that fixes it or trains on it."""

import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from faulty_data import Drawn, draw_clean, label, picture, put
from PIL import Image
from test_check import report

from data.guess import GUESSED, guess_endings, guess_flags
from support.errors import UserError
from tools.check.__main__ import check, main
from tools.convert.__main__ import main as convert
from tools.convert.find import find_kinds
from tools.split import main as divide


def last_words(root: Path, capsys, status: int, *flags: str, mark: str) -> list[str]:
    """The words after PYTHON PROGRAM of the command at the end, which follows `mark`."""
    line = report(root, capsys, status, *flags).splitlines()[-1]
    assert line.startswith(mark), line
    words = shlex.split(line.removeprefix(mark))
    return words[3:] if words[1] == "-m" else words[2:]


SATELLITE = "--train_split training --val_split validation --image_suffix _sat --label_suffix _gt"
HERE = "--image_path . --train_path . --val_path ."
MM = "--image_path img_dir --train_path ann_dir --val_path ann_dir"
KAGGLE = "--image_path . --train_path ../train_labels --val_path ../val_labels"


@pytest.mark.parametrize(  # S stands for the split, N for the image's name
    ("image", "mask", "splits", "flags"),
    [
        ("S/images/N.jpg", "S/masks/N.png", "train valid", "--val_split valid"),
        ("images/S/N.png", "labels/S/N.png", "train val", ""),
        ("S/N.jpg", "S/N_mask.png", "train valid", f"{HERE} --val_split valid --label_suffix _mask"),
        ("images/S/N_sat.jpg", "annotations/S/N_gt.png", "training validation", SATELLITE),
        ("images/S/N.jpg", "masks/S/N_L.png", "train val", "--label_suffix _L"),
        ("images/S/N.jpg", "mask/S/N.png", "train val", "--image_path images --train_path mask --val_path mask"),
        ("image/S/N.jpg", "label/S/N.png", "train val", "--image_path image --train_path label --val_path label"),
        # mmsegmentation, SMP's CamVid and Kaggle's
        ("img_dir/S/N_rgb.jpg", "ann_dir/S/N.png", "train val", f"{MM} --image_suffix _rgb"),
        ("S/N.png", "Sannot/N.png", "train val", "--image_path . --train_path ../trainannot --val_path ../valannot"),
        ("S/N.png", "S_labels/N_L.png", "train val", f"{KAGGLE} --label_suffix _L"),
    ],
)
def test_layouts_and_names_are_read_as_they_are(tmp_path, capsys, image, mask, splits, flags):
    root = tmp_path / "data"
    for split, names in zip(splits.split(), (("a1", "a10", "b"), ("c",)), strict=True):
        for name in names:
            put(root / image.replace("S", split).replace("N", name), picture(name))
            put(root / mask.replace("S", split).replace("N", name), label(0, 1, 2))
    assert last_words(root, capsys, 0, mark="to train: ") == ["--dataset_path", str(root)]
    found = guess_flags(root, "", dict.fromkeys(GUESSED, ""))
    assert found == ("Folder", dict.fromkeys(GUESSED, "") | dict(re.findall(r"--(\w+) (\S+)", flags)))


def test_folders_that_the_user_names_stay(tmp_path):
    drawn = Drawn(tmp_path, image="photos")
    drawn.pair("train/a")
    drawn.pair("val/b")
    assert check(tmp_path, image_path="photos")[0].flags == {"image_path": "photos"}
    with pytest.raises(UserError, match="--image_path fotos: no such folder below"):
        check(tmp_path, image_path="fotos")
    for name in ("pascal_2012_scribble", "mine"):
        (tmp_path / "voc" / name).mkdir(parents=True)
    given = dict.fromkeys(GUESSED, "") | {"pseudo_path": "mine"}
    assert guess_flags(tmp_path / "voc", "", given)[0] == "ScribblePseudoDsDc"


def test_ends_of_names():
    images = [f"x/{number}_rgb" for number in range(20)]
    labels = [f"x/{number}_{kind}" for number in range(20) for kind in ("seg", "depth")]
    with pytest.raises(UserError, match=r"masks: labels of the images end in _depth and _seg: choose one with"):
        guess_endings(images, labels, Path("masks"))
    assert guess_endings(images, labels[::2], Path("masks")) == ("_rgb", "_seg")
    assert guess_endings(images, [*images, *labels], Path("masks")) == ("", "")  # equal names need no ends
    assert guess_endings(images, labels[:4:2], Path("masks")) == ("", "")  # 2 of 20 are no rule
    assert guess_endings([], labels, Path("masks")) == ("", "")
    # Two words, as in GOOSE
    images, labels = ([f"x/{number}_{kind}" for number in range(9)] for kind in ("windshield_vis", "labelids"))
    assert guess_endings(images, labels, Path("masks")) == ("_windshield_vis", "_labelids")
    with pytest.raises(UserError, match="choose one with --image_suffix _windshield_vis and --label_suffix"):
        guess_endings(images, [*labels, *(f"x/{number}_color" for number in range(9))], Path("masks"))


@pytest.mark.parametrize("number", [9, 10, 12])
def test_images_with_a_label_of_their_name_are_not_dropped(number):
    left = [f"{at}_left" for at in range(10)]
    assert guess_endings([*left, *(f"{at}_right" for at in range(number))], left, Path("masks")) == ("", "")
    # The ending _right is not that of all images.
    masks = [f"{at}_mask" for at in range(number)]
    assert guess_endings(["a", *(f"{at}_right" for at in range(number))], ["a", *masks], Path("masks")) == ("", "")


COLOURS = np.array([[0, 0, 0], [255, 0, 0], [0, 0, 255]], np.uint8)


def test_other_json_and_damaged_files_are_no_annotations(tmp_path):
    (tmp_path / "package.json").write_text('{"name": "x", "objects": [], "images": []}')
    (tmp_path / "broken.json").write_bytes(b"\xff\xfe\x00shapes")
    (tmp_path / "voc.xml").write_text("<annotation><object/></annotation>")
    assert find_kinds(tmp_path) == {}
    # COCO's file of 100 MB has its categories at the end.
    (tmp_path / "large.json").write_text('{"images": [' + " " * 300_000 + '], "annotations": [], "categories": []}')
    (tmp_path / "a.json").write_text('{"shapes": [], "imagePath": "a.jpg"}')
    with pytest.raises(UserError, match=r"choose one: .* labelme .* or .* coco "):
        check(tmp_path)
    # With masks there, annotations beside them are not in the way.
    draw_clean(tmp_path)
    assert main([str(tmp_path), "--workers", "0"]) == 0


def test_pipes_among_labels_are_named_and_boxes_of_voc_are_no_masks(tmp_path):
    """Opening a pipe would wait for a writer."""
    for name in ("a.json", "a.xml", "labels/a.txt", "ImageSets/Segmentation/train.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / name)
    assert find_kinds(tmp_path) == {}
    with pytest.raises(UserError, match=r"a\.json: not a regular file"):
        convert([str(tmp_path), str(tmp_path / "../out")])
    with pytest.raises(UserError, match=r"train\.txt: the list cannot be read \(not a regular file\)"):
        check(tmp_path)
    put(tmp_path / "voc/JPEGImages/a.jpg", picture("a"))
    (tmp_path / "voc/Annotations").mkdir()
    box = "<annotation><object><bndbox><xmin>1</xmin></bndbox></object></annotation>"
    (tmp_path / "voc/Annotations/a.xml").write_text(box)
    with pytest.raises(UserError, match=r"Annotations/a\.xml: PASCAL VOC's XML files hold boxes, which are no masks"):
        check(tmp_path / "voc")


@pytest.mark.parametrize(
    ("image", "mask", "flags"),
    [
        ("imagesTr/{}_0000.png", "labelsTr/{}.png", "--image_path imagesTr --label_path labelsTr --image_suffix _0000"),
        ("images/{}.png", "labels/{}.png", "--label_path labels"),
        ("images/{}.jpg", "mask/{}.png", "--label_path mask"),
        ("JPEGImages/{}.jpg", "Annotations/{}.png", "--image_path JPEGImages --label_path Annotations"),
        ("JPEGImages/{}.jpg", "SegmentationClass/{}.png", "--image_path JPEGImages --label_path SegmentationClass"),
    ],
)
def test_layouts_without_a_split_are_split_by_the_printed_command(tmp_path, capsys, image, mask, flags):
    """nnU-Net, PaddleX without lists, and VOC without lists; PaddleX's own lists name image and mask."""
    for name in ("a1", "a2", "b"):
        put(tmp_path / image.format(name), picture(name))
        put(tmp_path / mask.format(name), label(0, 1, 2))
    words = last_words(tmp_path, capsys, 2, mark="to fix: ")
    assert words == [str(tmp_path), "--val", "0.2", *flags.split()]
    counts, findings = check(tmp_path)
    assert [row.pixels["all"] for row in counts.classes] == [3 * 22 * 48, 3 * 21 * 48, 3 * 21 * 48]
    assert [(finding.code, finding.notes) for finding in findings.sorted()] == [("no-split", ["no train and no val"])]
    divide(words)
    check_words = shlex.split(capsys.readouterr().out.splitlines()[-1].partition("tools.check ")[2])
    assert main([*check_words, "--workers", "0"]) == 0
    for part, names in (("train", ("a1", "a2")), ("val", "b")):
        (tmp_path / f"{part}.txt").unlink()
        lines = [f"{image.format(name)} {mask.format(name)}\n" for name in names]
        (tmp_path / f"{part}_list.txt").write_text("".join(lines))
    assert " --train_split train_list --val_split val_list" in report(tmp_path, capsys, 0)
    (tmp_path / mask.format("b")).unlink()
    assert "to fix: " not in report(tmp_path, capsys, 2)  # a split would stop at the image without a mask


def test_one_folder_of_images_and_masks_needs_no_flag_once_it_is_split(tmp_path, capsys):
    for name in ("a1", "a2", "b"):
        put(tmp_path / f"{name}.jpg", picture(name))
        put(tmp_path / f"{name}_mask.png", label(0, 1, 2))
    words = last_words(tmp_path, capsys, 2, mark="to fix: ")
    expected = ["--val", "0.2", "--image_path", ".", "--label_path", ".", "--label_suffix", "_mask"]
    assert words == [str(tmp_path), *expected]
    divide(words)
    assert report(tmp_path, capsys, 0).splitlines()[-1].endswith(f"train.py --dataset_path {tmp_path}")


def test_colours_in_folders_of_each_split_are_converted_split_by_split(tmp_path, capsys, monkeypatch):
    root = tmp_path / "painted"
    for split in ("train", "valid"):
        put(root / split / "images/a.png", picture(split))
        put(root / split / "masks/a.png", COLOURS[label(0, 1)])
    monkeypatch.chdir(root)
    commands = report(Path(), capsys, 2).splitlines()[-1].removeprefix("to fix: ").split(" && ")  # "." has no name
    for command, split, role in zip(commands, ("train", "valid"), ("train", "val"), strict=True):
        expected = ["colours", f"{split}/masks", f"{root}_masks", "--images", f"{split}/images", "--split", role]
        assert shlex.split(command)[-7:] == expected


@pytest.mark.parametrize(
    ("image", "mask", "number"),
    [("S/N.png", "Sannot/N.png", 2), ("S/N.png", "S_labels/N.png", 2), ("S/N.png", "S/N_mask.png", 1),
     ("img_dir/S/N.png", "ann_dir/S/N.png", 1), ("images/S/N.png", "labels/S/N.png", 1)],
)  # fmt: skip
def test_colours_in_the_folders_of_other_trainers_are_converted_by_the_printed_commands(
    tmp_path, capsys, image, mask, number
):
    for split in ("train", "val"):
        for name in "ab":
            put(tmp_path / "in" / image.replace("S", split).replace("N", name), picture(split + name))
            put(tmp_path / "in" / mask.replace("S", split).replace("N", name), COLOURS[label(0, 1, 2)])
    commands = report(tmp_path / "in", capsys, 2).splitlines()[-1].removeprefix("to fix: ").split(" && ")
    assert len(commands) == number
    for command in commands:
        assert convert([*shlex.split(command)[3:], "--workers", "0"]) == 0
    capsys.readouterr()
    assert "  train: 2 images" in report(tmp_path / "in_masks", capsys, 0)


@pytest.mark.parametrize(
    ("images", "masks", "names", "line"),
    [
        ("images", "masks", "train val", "{}"),
        ("images", "mask", "train val", "images/{}.png mask/{}.png"),
        ("images", "labels", "train_list val_list", "images/{}.png,labels/{}.png"),
    ],
)
def test_lists_of_masks_in_colours_stay(tmp_path, capsys, images, masks, names, line):
    root = tmp_path / "in"
    for name in "abc":
        put(root / images / f"{name}.png", picture(name))
        put(root / masks / f"{name}.png", COLOURS[label(0, 1, 2)])
    for name, part in zip(names.split(), ("ca", "b"), strict=True):
        (root / f"{name}.txt").write_text("".join(f"{line.format(letter, letter)}\n" for letter in part))
    (root / "notes.txt").write_text("no list\n")
    (command,) = report(root, capsys, 2).splitlines()[-1].removeprefix("to fix: ").split(" && ")
    assert convert([*shlex.split(command)[3:], "--workers", "0"]) == 0
    made = {path.relative_to(tmp_path / "in_masks").as_posix() for path in (tmp_path / "in_masks/masks").rglob("*.png")}
    assert made == {"masks/train/a.png", "masks/train/c.png", "masks/val/b.png"}
    (root / "lists").mkdir()
    for path in root.glob("*.txt"):
        path.rename(root / "lists" / path.name)
    words = ["--list_path", "lists", *shlex.split("--train_split {} --val_split {}".format(*names.split()))]
    assert "to fix:" not in report(root, capsys, 2, *words)  # no command would keep them


@pytest.mark.parametrize(
    ("text", "is_used"),
    [("ground\ncar\ntree\n", False), ("0: ground\n1: car\n2: tree\n", False), ("# ours\nground\ncar\n", False),
     ("ground #000000\ncar #ff0000\r\ntree #0000ff\n", True),
     ("tree:0,0,255::\nbackground:0,0,0::\ncar:255,0,0::\n", True)],
)  # fmt: skip
@pytest.mark.parametrize("images", ["S/images", "images/S"])
def test_names_without_colours_do_not_number_masks_in_colours(tmp_path, capsys, images, text, is_used):
    for split in ("train", "val"):
        put(tmp_path / "in" / images.replace("S", split) / "a.png", picture(split))
        masks = images.replace("images", "masks").replace("S", split)
        put(tmp_path / "in" / masks / "a.png", COLOURS[label(0, 1, 2)])
    (tmp_path / "in/classes.txt").write_text(text)
    *_, note, commands = report(tmp_path / "in", capsys, 2).splitlines()
    assert (f"{tmp_path / 'in/classes.txt'}: has no colours, which would say which" in note) != is_used
    for command in commands.removeprefix("to fix: ").split(" && "):
        assert convert([*shlex.split(command)[3:], "--workers", "0"]) == 0
    names = [line.split()[0] for line in (tmp_path / "in_masks/classes.txt").read_text().splitlines()]
    assert ("car" in names) == is_used
    assert len(names) == 3
    made = [np.asarray(Image.open(path)) for path in (tmp_path / "in_masks/masks").rglob("*.png")]
    assert [len(np.unique(mask)) for mask in made] == [3, 3]
    assert 255 not in np.unique(made)


def test_values_that_the_map_lacks_are_a_finding(tmp_path):
    drawn = Drawn(tmp_path)
    drawn.pair("train/a", mask=label(0, 128, 255))
    drawn.pair("val/b", mask=label(0, 255))
    counts, findings = check(tmp_path, label_map="binary")
    found = {finding.code: (finding.files, finding.notes) for finding in findings.sorted()}
    assert found == {"label-not-listed": (["masks/train/a.png"], [f"128 in {21 * 48} pixel(s)"])}
    assert counts.num_classes == 2
