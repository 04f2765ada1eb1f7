"""Exports of YOLO's polygons and of masks in colours, as the tools write them: names, colours and splits are kept.

recorded/supervision_yolo is what supervision 0.31.2 (as_yolo) writes for masks that pycocotools 2.0.11 draws of random
polygons (pycocotools.json). recorded/datumaro_voc is what Datumaro 1.13.12 writes as voc_segmentation for the same
polygons; masks.json has the colours and the pixels of its SegmentationClass, a digit for each.
"""

import base64
import json
import shutil
from pathlib import Path

import annotated
import numpy as np
import pytest
from annotated import CLASSES, Picture, draw_pictures
from conftest import refused
from faulty_data import put
from PIL import Image
from test_convert import convert, drawn, mask_of
from test_convert_splits import RECORDED, outputs, save

from data.classes import read_classes
from support.errors import UserError
from tools.check.__main__ import main as check_data
from tools.convert.__main__ import main

NAMES = ["background", "cat", "dog"]
SQUARE = [(2, 1), (6, 1), (6, 4), (2, 4)]


def digits(rows: list[str]) -> np.ndarray:
    return np.array([list(map(int, row)) for row in rows], np.uint8)


def find_and_convert(source: Path, out: Path, *words: str) -> int:
    """Without a kind."""
    return main([str(source), str(out), "--workers", "0", *words])


def test_supervisions_yolo_has_its_split_and_pycocotools_masks(tmp_path, capsys):
    """train/images and train/labels, as Roboflow. Polygons run through the centres of outline pixels."""
    source, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(RECORDED / "supervision_yolo", source)
    expected = json.loads((source / "pycocotools.json").read_text())
    (source / "pycocotools.json").unlink()
    for name in expected:
        split, stem = name.split("/")
        save(source / split / f"images/{stem}.jpg")
    assert find_and_convert(source, out) == 0
    assert "YOLO's polygons" in capsys.readouterr().out.splitlines()[0]
    assert outputs(out) == outputs(out, "images") == set(expected)
    assert read_classes(str(out / "classes.txt"), 3).names == NAMES
    for name, rows in expected.items():
        assert (mask_of(out, name) == digits(rows)).mean() > 0.85


def write_voc(folder: Path, colours: list, masks: dict[str, np.ndarray], labelmap: str) -> Path:
    for name, label in masks.items():
        save(folder / f"JPEGImages/{name}.jpg", label.shape)
        put(folder / f"SegmentationClass/{name}.png", np.array(colours, np.uint8)[label])
        put(folder / f"SegmentationObject/{name}.png", np.full((*label.shape, 3), 7, np.uint8))
    (folder / "labelmap.txt").write_text(labelmap)
    return folder


def test_datumaros_voc_has_names_and_split(tmp_path, capsys):
    """Its labelmap.txt has no colours: those of VOC are meant. Images of CVAT's list default.txt have no split."""
    recorded = json.loads((RECORDED / "datumaro_voc/masks.json").read_text())
    masks = {name: digits(rows) for name, rows in recorded["masks"].items()}
    labelmap = (RECORDED / "datumaro_voc/labelmap.txt").read_text()
    source = write_voc(tmp_path / "in", recorded["colours"], masks, labelmap)
    shutil.copytree(RECORDED / "datumaro_voc/ImageSets", source / "ImageSets")
    lists = source / "ImageSets/Segmentation"
    (lists / "train.txt").write_text((lists / "train.txt").read_text().replace("t_a\n", ""))
    (lists / "default.txt").write_text("t_a\n")
    (lists / "trainval.txt").write_text("\n".join(f"{name}.jpg" for name in masks.keys() - {"t_a"}))
    save(source / "JPEGImages/no_mask.jpg")
    assert find_and_convert(source, tmp_path / "out") == 0
    assert read_classes(str(tmp_path / "out/classes.txt"), 3).names == NAMES
    splits = {name: {"t": "train/", "v": "val/"}[name[0]] for name in masks} | {"t_a": ""}
    assert outputs(tmp_path / "out") == {splits[name] + name for name in masks}
    for name, label in masks.items():
        assert (mask_of(tmp_path / "out", splits[name] + name) == label).all()
    with (lists / "val.txt").open("a") as file:
        file.write("\nt_b\ngone\n")
    assert find_and_convert(source, tmp_path / "two") == 1
    lines = capsys.readouterr().err
    assert f"1 listed name(s) have no image and are left out, such as {lists / 'val.txt'}: 'gone'" in lines
    assert f"1 listed name(s) are in two splits, such as {lists / 'val.txt'}: 't_b', which stays in train" in lines
    (source / "labelmap.txt").write_text("background:0,0,0::\ncat:9,9,9::\ndog:9,9,9::\n")
    with pytest.raises(UserError, match="'cat' and 'dog' both have the colour #090909"):
        find_and_convert(source, tmp_path / "three")


# As CVAT writes it: docs.cvat.ai/docs/dataset_management/formats/format-smask. The order of the lines is the user's.
LABELMAP = "# label:color_rgb:parts:actions\nroad wet:128,0,0::\nbackground:0,128,0::\ncar:64,0,128::\n"


@pytest.mark.parametrize("folder", ["", "SegmentationClass"])
def test_names_and_colours_of_labelmap(tmp_path, folder):
    label = np.array([[0, 1, 2, 1]], np.uint8)
    colours = [[0, 128, 0], [128, 0, 0], [64, 0, 128]]
    source = write_voc(tmp_path / "in", colours, {"a": label}, LABELMAP)
    (source / "JPEGImages").rename(tmp_path / "photos")
    assert convert("colours", source / folder, tmp_path / "out", "--images", str(tmp_path / "photos")) == 0
    classes = read_classes(str(tmp_path / "out/classes.txt"), 3)
    assert classes.names == ["background", "road wet", "car"]
    assert classes.colours[:3].tolist() == colours
    assert (mask_of(tmp_path / "out", "a") == label).all()


def test_colours_of_a_classes_txt_beside_the_masks_number_the_classes(tmp_path, capsys):
    """The check prints it, and the conversion without a kind finds it. A list without colours says nothing of them."""
    source = tmp_path / "in"
    for folder, value in (("images", [90, 90, 90]), ("masks", [64, 0, 128])):
        for name in "ab":
            put(source / folder / f"{name}.png", np.full((4, 6, 3), value, np.uint8))
    (source / "classes.txt").write_text("sky #0000ff\nroad #400080\n")
    assert check_data([str(source), "--workers", "0"]) == 2
    assert f"--classes {source / 'classes.txt'}" in capsys.readouterr().out.splitlines()[-1]
    find_and_convert(source, tmp_path / "out")
    assert (np.asarray(Image.open(tmp_path / "out/masks/a.png")) == 1).all()  # road
    (source / "classes.txt").write_text("sky\nroad\n")
    with pytest.raises(UserError, match=r"1 class\(es\) \(#400080\)"):
        find_and_convert(source, tmp_path / "other")


def test_label_studios_yolo_and_images_elsewhere(tmp_path, capsys):
    """images, labels and classes.txt: labelstud.io/guide/export. The images may be left out."""
    pictures = draw_pictures(2, kinds="polygon")
    source = annotated.write_yolo(tmp_path / "in", pictures)
    (source / "data.yaml").unlink()
    (source / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    (source / "images").rename(tmp_path / "photos")
    with pytest.raises(UserError, match="nothing to convert as yolo"):
        find_and_convert(source, tmp_path / "out")
    assert "no image(s) of its name; name their folder: --images DIR" in capsys.readouterr().err
    words = ["--images", str(tmp_path / "photos")]
    assert find_and_convert(source, tmp_path / "out", *words) in (0, 1)
    for picture in pictures:
        assert (mask_of(tmp_path / "out", picture.name) == drawn(picture)).all()
    (source / "classes.txt").unlink()
    convert("yolo", source, tmp_path / "numbers", *words)
    assert read_classes(str(tmp_path / "numbers/classes.txt"), None).names == ["background", "0", "1", "2"]


def test_each_line_of_yolos_names_is_a_class_as_it_is_written(tmp_path):
    """A blank line between names would move the numbers of those below it; names are no paths."""
    source = yolo_of(tmp_path / "in", other="2 0.1 0.1 0.9 0.1 0.9 0.9\n")
    (source / "data.yaml").unlink()
    (source / "obj.names").write_text("a\\b\r\nx.jpg,y.jpg\r\n ./c d\r\n\r\n", newline="", encoding="utf-8-sig")
    assert convert("yolo", source, tmp_path / "out") == 0
    assert read_classes(str(tmp_path / "out/classes.txt"), None).names == ["background", "a\\b", "x.jpg,y.jpg", "./c d"]
    for number, text in ((2, "a\n \nb\n"), (1, "\n\n")):
        (source / "obj.names").write_text(text)
        with pytest.raises(UserError, match=rf"obj\.names line {number}: blank, but each line names a class: name it,"):
            convert("yolo", source, tmp_path / "two")


def yolo_of(folder: Path, **texts: str) -> Path:
    """A label file for each text, and one that is good."""
    blank = np.zeros((8, 10, 3), np.uint8)
    pictures = [Picture(name, blank, [("dog", "polygon", SQUARE)]) for name in ("good", *texts)]
    annotated.write_yolo(folder, pictures)
    for name, text in texts.items():
        (folder / f"labels/{name}.txt").write_text(text)
    return folder


def test_what_else_yolo_may_lack(tmp_path, capsys):
    source = yolo_of(tmp_path / "in", other="7 0.1 0.1 0.9 0.1 0.9 0.9\n", lonely="", empty="")
    (source / "labels/lonely.txt").unlink()
    assert convert("yolo", source, tmp_path / "out") == 1
    output = capsys.readouterr()
    assert (mask_of(tmp_path / "out", "empty") == 0).all()  # no line: background
    assert "class 'class 7': not in the list of classes: ignored (255) in 1 place(s)" in output.err
    assert f"1 image(s) have no usable label, such as {source / 'images/lonely.png'}: left out; if" in output.out
    (source / "a/b").mkdir(parents=True)
    (source / "a/b/data.yaml").write_text("names: [other]\n")  # of another data set: the file at the top counts
    (source / "data.yaml").write_text("names: {0: on, 1: 0x10}\n")  # not True and 16
    assert convert("yolo", source, tmp_path / "as_written") == 1
    assert read_classes(str(tmp_path / "as_written/classes.txt"), 3).names == ["background", "on", "0x10"]
    (source / "data.yaml").write_text("nc: 4\nnames: [cat, dog, cat]\n")
    assert convert("yolo", source, tmp_path / "twice") == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"{source / 'data.yaml'}: nc is 4, but there are 3 names" in lines
    assert "several classes are named 'cat': they become one" in lines
    for text, said in (
        ("names: cat,dog\n", "names: 'cat,dog': must be a list, such as [cat, dog]"),
        ("names: [cat]\nkpt_shape: [17, 2]\n", "the labels are key points, which have no area"),
    ):
        (source / "data.yaml").write_text(text)
        with refused(said):
            convert("yolo", source, tmp_path / "none")


def test_yolo_classes_may_be_floats_and_named_beside_the_labels(tmp_path):
    """As numpy.savetxt and pandas write them; labelImg puts classes.txt into labels, Darknet has obj.names."""
    points = "0.0 0.0 0.5 0.0 0.5 1.0 0.0 1.0"
    source = yolo_of(tmp_path / "in", a=f"0.0 {points}\n", b=f"1.000000000000000000e+00 {points}\n")
    (source / "labels/good.txt").unlink()
    (source / "data.yaml").unlink()
    for number, name in enumerate(("labels/classes.txt", "obj.names")):
        (source / name).write_text("cat\ndog\n")
        assert find_and_convert(source, tmp_path / str(number)) == 0
        (source / name).unlink()
        assert read_classes(str(tmp_path / f"{number}/classes.txt"), 3).names == ["background", "cat", "dog"]
        for image, value in (("a", 1), ("b", 2)):
            assert (mask_of(tmp_path / str(number), image) == [[value] * 5 + [0] * 5] * 8).all()
    (source / "labels/a.txt").write_text(f"0.5 {points}\n")
    assert convert("yolo", source, tmp_path / "half") == 1


def test_the_kind_is_found_or_a_command_is_named(tmp_path, capsys):
    source = annotated.write_coco(tmp_path / "my in", draw_pictures(2, kinds="mask")).parent
    assert find_and_convert(source, tmp_path / "out") == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert said == f"{source}: COCO's JSON: polygons and RLE ({source / 'instances.json'}), converted as coco"
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no labels of a known kind in it: unpack .*: .* -m tools\.check .*empty"):
        find_and_convert(tmp_path / "empty", tmp_path / "two")
    (source / "instances.json").write_bytes((source / "instances.json").read_bytes()[:60])
    with pytest.raises(UserError, match=r"my in/instances\.json: not JSON"):
        find_and_convert(source, tmp_path / "two")
    panoptic = {"images": [], "categories": [{"id": 1, "name": "cat"}], "annotations": [{"segments_info": []}]}
    (tmp_path / "panoptic.json").write_text(json.dumps(panoptic))
    with pytest.raises(UserError, match="nothing to convert as coco"):
        find_and_convert(tmp_path / "panoptic.json", tmp_path / "two")
    assert "panoptic COCO, whose masks are PNG files" in capsys.readouterr().err
    save(tmp_path / "numbers/masks/a.png", value=3)
    (tmp_path / "deep/masks").mkdir(parents=True)
    Image.fromarray(np.full((6, 8), 3, np.uint16)).save(tmp_path / "deep/masks/a.png")
    for name in ("numbers", "deep"):
        with pytest.raises(UserError, match=rf"class numbers need no conversion: to .*tools\.check .*{name}"):
            find_and_convert(tmp_path / name, tmp_path / "two")
    with pytest.raises(UserError, match=r"coco: no such file or folder \(OUT is missing\)"):
        main(["coco", str(source)])


def test_an_image_inside_of_a_labelme_file_is_written(tmp_path):
    picture = Picture("a", np.zeros((6, 8, 3), np.uint8), [("cat", "box", [0, 0, 4, 6])])
    source = annotated.write_labelme(tmp_path / "in", [picture])
    data = (source / "a.png").read_bytes()
    (source / "a.png").unlink()
    content = json.loads((source / "a.json").read_text()) | {"imageData": base64.b64encode(data).decode()}
    (source / "a.json").write_text(json.dumps(content))
    assert convert("labelme", source, tmp_path / "out") == 0
    assert (tmp_path / "out/images/a.png").read_bytes() == data
    assert (mask_of(tmp_path / "out", "a") == [1] * 4 + [0] * 4).all()


# What labelme 6.3.1's shape_to_mask draws of this polygon, whose points LabelMe keeps within [0, size - 1].
TOUCHING = [[1.2, 1.3], [7.0, 1.1], [7.0, 5.0], [1.4, 5.0]]
LABELME_DRAWS = [[0] * 8, *[[0, *[1] * 7]] * 5]


def test_labelme_objects_that_touch_the_border_reach_it(tmp_path):
    """And an image that was saved again with another suffix is found."""
    picture = Picture("a", np.zeros((6, 8, 3), np.uint8), [("cat", "polygon", TOUCHING)])
    source = annotated.write_labelme(tmp_path / "in", [picture])
    Image.open(source / "a.png").save(source / "a.jpg")
    (source / "a.png").unlink()
    assert convert("labelme", source, tmp_path / "out") == 0
    assert (tmp_path / "out/images/a.jpg").is_file()
    assert mask_of(tmp_path / "out", "a").tolist() == LABELME_DRAWS
