"""What python -m tools.convert does to OUT: nothing is overwritten, and an interrupted start goes on."""

import os
import shlex
from pathlib import Path
from unittest import mock

import annotated
import numpy as np
import pytest
from annotated import Picture, draw_pictures
from conftest import contents, refused
from faulty_data import exif
from PIL import Image
from test_convert import convert, drawn, mask_of

from data.classes import read_classes
from support.errors import UserError
from tools.convert import output
from tools.convert.__main__ import main
from tools.split import main as split_main


@pytest.fixture
def source(tmp_path) -> Path:
    return annotated.write_labelme(tmp_path / "in", draw_pictures(4, kinds="polygon mask"))


def test_other_content_is_refused_before_work(tmp_path, source):
    (tmp_path / "out/images").mkdir(parents=True)
    (tmp_path / "out/images/mine.txt").write_text("mine")
    with pytest.raises(UserError, match=r"out: has .*mine\.txt but no \.made_from\.json, so tools.convert may not"):
        convert("labelme", source, tmp_path / "out")
    assert contents(tmp_path / "out")["images/mine.txt"] == b"mine"
    with pytest.raises(UserError, match=r"mine\.txt: is a file"):
        convert("labelme", source, tmp_path / "out/images/mine.txt")
    for place, *words in ((source / "out",), (tmp_path / "out/images/x", "--images", str(tmp_path / "out"))):
        with pytest.raises(UserError, match="which programs read as input"):
            convert("labelme", source, place, *words)
    for folder, make in (("a", Path.mkdir), ("b", lambda path: path.symlink_to("no")), ("c", os.mkfifo)):
        (tmp_path / folder).mkdir()
        make(tmp_path / folder / "classes.txt")
        with pytest.raises(UserError, match=r"classes\.txt: lists other classes"):
            convert("labelme", source, tmp_path / folder)
    (tmp_path / "d").mkdir()
    (tmp_path / "d/.made_from.json").write_text("[1]")  # not ours, but no result is there
    assert convert("labelme", source, tmp_path / "d") in (0, 1)


def test_interrupted_then_started_again_equals_an_uninterrupted_one(tmp_path, source, monkeypatch):
    (tmp_path / "whole").mkdir()  # an empty folder is accepted
    convert("labelme", source, tmp_path / "whole")
    paint = output.paint

    def interrupt(entry, *rest):
        if entry.name == "picture_2":
            raise KeyboardInterrupt
        return paint(entry, *rest)

    monkeypatch.setattr(output, "paint", interrupt)
    with pytest.raises(KeyboardInterrupt):
        convert("labelme", source, tmp_path / "out")
    assert len(list((tmp_path / "out/masks").iterdir())) == 2
    monkeypatch.undo()
    convert("labelme", source, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    with pytest.raises(UserError, match=r"out: has results made with other settings \(line_width\)"):
        convert("labelme", source, tmp_path / "out", "--line_width", "3")


def test_files_that_differ_are_named_and_kept(tmp_path, source, capsys):
    convert("labelme", source, tmp_path / "out")
    assert os.path.samefile(source / "picture_0.png", tmp_path / "out/images/picture_0.png")  # a hard link
    edited = np.zeros((47, 61), np.uint8)
    Image.fromarray(edited).save(tmp_path / "out/masks/picture_0.png")
    assert convert("labelme", source, tmp_path / "out") == 1
    assert "masks/picture_0.png: exists and differs: not overwritten" in capsys.readouterr().err
    assert (np.asarray(Image.open(tmp_path / "out/masks/picture_0.png")) == edited).all()
    for number, make in enumerate((Path.mkdir, os.mkfifo, lambda path: path.symlink_to("no"))):
        (tmp_path / f"out/masks/picture_{number}.png").unlink()
        make(tmp_path / f"out/masks/picture_{number}.png")
    (tmp_path / "out/images/picture_3.png").unlink()
    (tmp_path / "out/images/picture_3.png").symlink_to("no")
    with pytest.raises(UserError, match="no image could be converted"):
        convert("labelme", source, tmp_path / "out")
    assert capsys.readouterr().err.count(": exists and differs: not overwritten; remove it") == 4


def test_masks_whose_labels_are_gone_and_a_second_label_of_an_image_are_named(tmp_path, source, capsys):
    convert("labelme", source, tmp_path / "out")
    (source / "picture_0.json").unlink()
    (source / "picture_3.json").write_text((source / "picture_2.json").read_text())  # its image is picture_2.png
    assert convert("labelme", source, tmp_path / "out") == 1
    second, stale = [line for line in capsys.readouterr().err.splitlines() if "skipped" in line or "earlier" in line]
    image, label = (source / f"picture_2{suffix}" for suffix in (".png", ".json"))
    assert second == f"{source}/picture_3.json: its image {image} is that of {label}: skipped"
    assert stale.startswith(f"2 mask(s) of an earlier start, such as {tmp_path / 'out/masks/picture_0.png'}: ")
    assert len(list((tmp_path / "out/masks").iterdir())) == 4


def test_names_of_classes_that_look_like_colours_or_have_line_breaks(tmp_path, capsys):
    shapes = [(name, "box", [0, 0, 4, 2]) for name in ("#ff0000", "x\ny", "x y")]
    annotated.write_labelme(tmp_path / "in", [Picture("a", np.zeros((6, 8, 3), np.uint8), shapes)])
    assert convert("labelme", tmp_path / "in", tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "several classes are named 'x y': they become one" in said
    assert "named by colour" not in said
    file = tmp_path / "in/a.json"
    file.write_text(file.read_text().replace("#ff0000", "# cat"))
    with pytest.raises(UserError, match="a class is named '# cat', which is a comment"):
        convert("labelme", tmp_path / "in", tmp_path / "two")


def test_splits_share_a_folder(tmp_path, capsys):
    pictures = draw_pictures(2, kinds="polygon")
    train = annotated.write_coco(tmp_path / "train", pictures[:1])
    val = annotated.write_coco(tmp_path / "val", pictures[1:])
    convert("coco", train, tmp_path / "out", "--split", "train")
    assert "convert the other one, or divide this: " in capsys.readouterr().out
    convert("coco", val, tmp_path / "out", "--split", "val")
    assert "tools.split" not in capsys.readouterr().out
    for split, picture in zip(("train", "val"), pictures, strict=True):
        assert (mask_of(tmp_path / "out", f"{split}/{picture.name}") == drawn(picture)).all()
    with pytest.raises(UserError, match="has results made with other settings"):
        convert("coco", val, tmp_path / "out", "--split", "train")
    val.write_text(val.read_text().replace('"cat"', '"bird"'))
    with pytest.raises(UserError, match="lists other classes than this export"):
        convert("coco", val, tmp_path / "out", "--split", "test")


@pytest.mark.parametrize("others", [False, True])
def test_remedy_for_a_second_export_works(tmp_path, others):
    """With other classes, in another order, or with the same ones: OUT gets all images, and tools.split reads them."""
    one, two = (pictures[:2] for pictures in (draw_pictures(2, kinds="polygon"), draw_pictures(2, seed=1, kinds="box")))
    annotated.write_labelme(tmp_path / "labelme", one)
    file = annotated.write_coco(tmp_path / "my coco", two)
    if others:
        file.write_text(file.read_text().replace('"cat"', '"zebra"'))
    out, words = tmp_path / "out", []
    convert("labelme", tmp_path / "labelme", out)
    said = []
    while len(said) < 3:  # the message on the classes, and then that on the settings, if its remedy fails
        try:
            convert("coco", tmp_path / "my coco", out, *words)
            break
        except UserError as error:
            said.append(str(error))
            words = shlex.split(said[-1].rpartition(" by ")[2])
    assert len(said) == 1
    assert words[-2:] == ["--split", "my coco"]
    assert (words[:2] == ["--classes", str(out / "classes.txt")]) == others
    assert len(list((out / "masks").rglob("*.png"))) == 4
    split_main([str(out), "--val", "0.5"])
    names = (out / "train.txt").read_text().splitlines() + (out / "val.txt").read_text().splitlines()
    assert sorted(names) == ["my coco/picture_0", "my coco/picture_1", "picture_0", "picture_1"]


@pytest.mark.parametrize("inner", [".", "annotations"])
def test_folders_of_annotation_files_are_splits(tmp_path, capsys, inner):
    """Roboflow's COCO export: train/_annotations.coco.json beside its images, valid likewise."""
    pictures = draw_pictures(2, kinds="mask")
    for folder, picture in zip(("train", "valid"), pictures, strict=True):
        file = annotated.write_coco(tmp_path / "in" / folder, [picture])
        (file.parent / inner).mkdir(exist_ok=True)
        file.rename(file.parent / inner / "_annotations.coco.json")
        (file.parent / f"images/{picture.name}.png").rename(file.parent / f"{picture.name}.png")
    assert convert("coco", tmp_path / "in", tmp_path / "out") == 0
    for folder, picture in zip(("train", "val"), pictures, strict=True):
        assert (mask_of(tmp_path / "out", f"{folder}/{picture.name}") == drawn(picture)).all()
    assert "tools.split" not in capsys.readouterr().out


def test_two_images_of_one_name_are_named(tmp_path, source, capsys):
    for suffix in (".json", ".png"):
        (source / f"PICTURE_0{suffix}").write_bytes((source / f"picture_0{suffix}").read_bytes())
    assert convert("labelme", source, tmp_path / "out") == 1
    assert "would replace that of" in capsys.readouterr().err
    assert len(list((tmp_path / "out/masks").iterdir())) == 4


def test_subfolders_stay_and_references_that_lead_out_do_not(tmp_path):
    source = annotated.write_coco(tmp_path / "in", draw_pictures(2, kinds="mask"))
    text = source.read_text().replace("picture_0", "night/picture_0")
    source.write_text(text.replace("picture_1", "../../picture_1"))
    (tmp_path / "in/images/night").mkdir()
    (tmp_path / "in/images/picture_0.png").rename(tmp_path / "in/images/night/picture_0.png")
    assert convert("coco", source, tmp_path / "out") == 0
    found = {path.relative_to(tmp_path / "out/masks").as_posix() for path in (tmp_path / "out/masks").rglob("*.png")}
    assert found == {"night/picture_0.png", "picture_1.png"}


def test_classes_background_and_ignored_of_labelme(tmp_path):
    """LabelMe's own labels.txt begins with __ignore__ and _background_."""
    square = [[0, 0], [2, 0], [2, 4], [0, 4]]
    shapes = [(name, "box", [left, 0, left + 1, 2]) for left, name in enumerate(("dog", "__ignore__", "_background_"))]
    pictures = [Picture("a", np.zeros((2, 4, 3), np.uint8), [("cat", "polygon", square), *shapes])]
    annotated.write_labelme(tmp_path / "in", pictures)
    assert convert("labelme", tmp_path / "in", tmp_path / "out") == 0
    assert read_classes(str(tmp_path / "out/classes.txt"), None).names == ["_background_", "cat", "dog"]
    assert mask_of(tmp_path / "out", "a").tolist() == [[2, 255, 0, 0]] * 2
    labels = tmp_path / "labels.txt"
    labels.write_text("__ignore__\n_background_\ndog\ncat\n")
    assert convert("labelme", tmp_path / "in", tmp_path / "two", "--classes", str(labels)) == 0
    assert read_classes(str(tmp_path / "two/classes.txt"), None).names == ["_background_", "dog", "cat"]
    assert mask_of(tmp_path / "two", "a").tolist() == [[1, 255, 0, 0]] * 2
    labels.write_text("_background_\ncat\n")  # a class that is not listed is ignored, not background
    assert convert("labelme", tmp_path / "in", tmp_path / "few", "--classes", str(labels)) == 1
    assert mask_of(tmp_path / "few", "a").tolist() == [[255, 255, 0, 0]] * 2
    labels.write_text("dog\ncat\n")
    words = ["--classes", str(labels)]
    with pytest.raises(UserError, match=r"no class is named background.*--unlabelled ignore"):
        convert("labelme", tmp_path / "in", tmp_path / "three", *words)
    assert convert("labelme", tmp_path / "in", tmp_path / "three", *words, "--unlabelled", "ignore") == 1
    assert mask_of(tmp_path / "three", "a").tolist() == [[0, 255, 255, 255]] * 2


def test_exif_turns_an_image_and_its_mask(tmp_path):
    """LabelMe and this converter both see the turned image."""
    picture = Picture("a", np.zeros((6, 4, 3), np.uint8), [("cat", "box", [0, 0, 4, 2])])
    annotated.write_labelme(tmp_path / "in", [picture])
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(tmp_path / "in/a.png", exif=exif(6))  # 4 rows of 6 pixels
    assert convert("labelme", tmp_path / "in", tmp_path / "out") == 0
    assert mask_of(tmp_path / "out", "a").tolist() == [[1] * 4] * 2 + [[0] * 4] * 4


@pytest.mark.parametrize("kind", ["labelme", "coco", "cvat", "yolo", "labelstudio"])
def test_pixels_and_images_without_a_label_are_said(tmp_path, capsys, kind):
    """Cat covers 5 and dog 2 of 10 columns; an export that declares classes may have no shape at all."""
    shapes = [
        (name, "polygon", [[x, 0], [x + n, 0], [x + n, 4], [x, 4]]) for name, x, n in (("cat", 0, 5), ("dog", 6, 2))
    ]
    write = getattr(annotated, f"write_{kind}")
    write(tmp_path / "in", [Picture("a", np.zeros((4, 10, 3), np.uint8), shapes)])
    assert convert(kind, tmp_path / "in", tmp_path / "out") == 0
    line = "30.0% of the pixels have no label (no shape, or black): class background; if they mean unlabelled"
    assert line in capsys.readouterr().out
    for flag in ("ignore", "background"):
        convert(kind, tmp_path / "in", tmp_path / flag, "--unlabelled", flag)
        assert "no label" not in capsys.readouterr().out
    write(tmp_path / "empty", [Picture("a", np.zeros((4, 10, 3), np.uint8), [])])
    with pytest.raises(UserError, match=f"(no shape|nothing) to convert as {kind}"):
        convert(kind, tmp_path / "empty", tmp_path / "none")


def test_processes_write_the_same_and_copy_where_links_fail(tmp_path, monkeypatch):
    source = annotated.write_cvat(tmp_path / "in", draw_pictures(17, kinds="polygon mask"))
    convert("cvat", source, tmp_path / "one")
    monkeypatch.setattr(os, "link", mock.Mock(side_effect=OSError(18, "Invalid cross-device link")))
    convert("cvat", source, tmp_path / "two")  # in this process: others may not inherit the patch
    convert("cvat", source, tmp_path / "three", "--workers", "2")
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "three")
    assert not os.path.samefile(source / "images/picture_0.png", tmp_path / "two/images/picture_0.png")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["labelmee", "in", "out"], "KIND: 'labelmee' is not known: did you mean labelme? One of colours,"),
        (["labelme", "nowhere", "out"], "nowhere: no such file or folder"),
        (["labelme", "in", "out", "--images", "nowhere"], "--images nowhere: no such folder"),
        (["labelme", "in", "out", "--line_width", "nan"], "--line_width nan: must be a finite number"),
        (["labelme", "in", "out", "--split", "../x"], "--split ../x: must be the name of a folder"),
        (["cvat", "in", "out"], "in: no .xml file in it"),
    ],
)
def test_wrong_words_are_named(tmp_path, source, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    with refused(named):
        main(words)
    assert not Path("out").exists()
