"""Exports of YOLO's polygons and of masks in colours, as the tools write them: names, colours and splits are kept.

recorded/supervision_yolo is what supervision 0.31.2 (as_yolo) writes for masks that pycocotools 2.0.11 draws of random
polygons (pycocotools.json). recorded/datumaro_voc is what Datumaro 1.13.12 writes as voc_segmentation for the same
polygons; masks.json has the colours and the pixels of its SegmentationClass, a digit for each.
"""

import json
import shutil
from pathlib import Path

import annotated
import numpy as np
import pytest
from annotated import CLASSES, Picture, draw_pictures
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
    """Polygons run through the centres of outline pixels: masks differ there only."""
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
        label = digits(rows)
        inner = np.ones(label.shape, bool)  # pixels whose eight neighbours have their class
        for axis in (0, 1):
            for step in (-1, 1):
                inner &= np.roll(label, step, axis) == label
        inner &= np.roll(inner, 1, 0) & np.roll(inner, -1, 0) & np.roll(inner, 1, 1) & np.roll(inner, -1, 1)
        assert inner.any()
        assert (mask_of(out, name) == label)[inner].all()


def write_voc(folder: Path, colours: list, masks: dict[str, np.ndarray], labelmap: str) -> Path:
    for name, label in masks.items():
        save(folder / f"JPEGImages/{name}.jpg", label.shape)
        for kind in ("SegmentationClass", "SegmentationObject"):
            (folder / kind).mkdir(exist_ok=True)
        Image.fromarray(np.array(colours, np.uint8)[label]).save(folder / f"SegmentationClass/{name}.png")
        Image.fromarray(np.full((*label.shape, 3), 7, np.uint8)).save(folder / f"SegmentationObject/{name}.png")
    (folder / "labelmap.txt").write_text(labelmap)
    return folder


@pytest.mark.parametrize("default", [(), ("t_a",), ("t_a", "t_b", "v_a", "v_c")])
def test_datumaros_voc_has_names_and_split(tmp_path, capsys, default):
    """Its labelmap.txt has no colours: those of VOC are meant. default: images in default.txt, which have no split."""
    recorded = json.loads((RECORDED / "datumaro_voc/masks.json").read_text())
    masks = {name: digits(rows) for name, rows in recorded["masks"].items()}
    labelmap = (RECORDED / "datumaro_voc/labelmap.txt").read_text()
    source = write_voc(tmp_path / "in", recorded["colours"], masks, labelmap)
    shutil.copytree(RECORDED / "datumaro_voc/ImageSets", source / "ImageSets")
    for path in [*(source / "ImageSets/Segmentation").iterdir()]:
        left = [name for name in path.read_text().split() if name not in default]
        path.write_text("\n".join(left)) if left else path.unlink()
    for name, listed in {"default": default, "trainval": set(masks) - set(default)}.items():
        if listed:
            (source / f"ImageSets/Segmentation/{name}.txt").write_text("\n".join(listed))
    save(source / "JPEGImages/no_mask.jpg")
    assert find_and_convert(source, tmp_path / "out") == 0
    assert "1 image(s) without a mask are in no list: left out" in capsys.readouterr().out
    assert read_classes(str(tmp_path / "out/classes.txt"), 3).names == NAMES
    splits = {name: "" if name in default else {"t": "train/", "v": "val/"}[name[0]] for name in masks}
    assert outputs(tmp_path / "out") == {splits[name] + name for name in masks}
    for name, label in masks.items():
        assert (mask_of(tmp_path / "out", splits[name] + name) == label).all()


def test_masks_without_the_images(tmp_path, capsys):
    """CVAT exports without images, unless they are asked for. The masks of instances are no images."""
    source = write_voc(tmp_path / "in", [[0, 0, 0], [128, 0, 0]], {"a": np.array([[0, 1]], np.uint8)}, LABELMAP)
    (source / "JPEGImages").rename(tmp_path / "photos")
    with pytest.raises(UserError, match="in: no images in it: name their folder with --images DIR"):
        find_and_convert(source, tmp_path / "out")
    assert find_and_convert(source, tmp_path / "out", "--images", str(tmp_path / "photos")) == 0
    assert outputs(tmp_path / "out") == {"a"}


# As CVAT writes it: docs.cvat.ai/docs/dataset_management/formats/format-smask. The order of the lines is the user's.
LABELMAP = "# label:color_rgb:parts:actions\nroad wet:128,0,0::\nbackground:0,128,0::\ncar:64,0,128::\n"


@pytest.mark.parametrize("words", [[], ["--classes", "{}/labelmap.txt"], ["masks alone"]])
def test_names_and_colours_of_labelmap(tmp_path, words):
    label = np.array([[0, 1, 2, 1]], np.uint8)
    colours = [[0, 128, 0], [128, 0, 0], [64, 0, 128]]
    source = write_voc(tmp_path / "in", colours, {"a": label}, LABELMAP)
    flags = [word.format(source) for word in words]
    folder = source
    if words == ["masks alone"]:
        folder, flags = source / "SegmentationClass", ["--images", str(source / "JPEGImages")]
    assert convert("colours", folder, tmp_path / "out", *flags) == 0
    classes = read_classes(str(tmp_path / "out/classes.txt"), 3)
    assert classes.names == ["background", "road wet", "car"]
    assert classes.colours[:3].tolist() == colours
    assert (mask_of(tmp_path / "out", "a") == label).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("background\ncar\n", r"no class has the colour of 67% of the painted pixels \(#400080 67%\)"),
        ("background #000000\nroad #0000ff\n", "no class has the colour of 100% of the painted pixels"),
        ("a:1,2,3::\nroad #0000ff\n", "'road #0000ff': expected name:red,green,blue::"),
        ("a:1,2,3::\nb:1,2,300::\n", "'b:1,2,300::': expected name:red,green,blue::"),
        ("a:1,2,3::\nb:::\n", "'b:::': expected name:red,green,blue::"),
    ],
)
def test_a_class_file_that_does_not_fit_is_refused_before_a_mask_is_written(tmp_path, text, message):
    colours = [[0, 0, 0], [128, 0, 0], [64, 0, 128]]  # the second is VOC's colour of class 1
    source = write_voc(tmp_path / "in", colours, {"a": np.array([[0, 0, 0, 1, 2, 2]], np.uint8)}, LABELMAP)
    (tmp_path / "classes.txt").write_text(text)
    with pytest.raises(UserError, match=message):
        convert("colours", source, tmp_path / "out", "--classes", str(tmp_path / "classes.txt"))
    assert not (tmp_path / "out").exists()


def test_colours_of_a_classes_txt_beside_the_masks_number_the_classes(tmp_path, capsys):
    """The check prints it, and the conversion without a kind finds it. A list without colours says nothing of them."""
    source = tmp_path / "in"
    for folder, value in (("images", [90, 90, 90]), ("masks", [64, 0, 128])):
        for name in "ab":
            (source / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(source / folder / f"{name}.png")
    (source / "classes.txt").write_text("sky #0000ff\nroad #400080\n")
    assert check_data([str(source), "--workers", "0"]) == 2
    assert f"--classes {source / 'classes.txt'}" in capsys.readouterr().out.splitlines()[-1]
    find_and_convert(source, tmp_path / "out")
    assert (np.asarray(Image.open(tmp_path / "out/masks/a.png")) == 1).all()  # road
    (source / "classes.txt").write_text("sky\nroad\n")
    with pytest.raises(UserError, match=r"1 class\(es\) \(#400080\)"):
        find_and_convert(source, tmp_path / "other")


def roboflow(source: Path) -> None:
    """train/images and valid/images, names in a list, paths that lead out of the folder."""
    for split, name in (("train", "train"), ("val", "valid")):
        for kind in ("images", "labels"):
            (source / name).mkdir(exist_ok=True)
            (source / kind / split).rename(source / name / kind)
    places = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n"
    (source / "data.yaml").write_text(f"{places}nc: 3\nnames: {CLASSES}\nroboflow:\n  version: 1\n")


def cvat(source: Path) -> None:
    """Lists, images in images/train: docs.cvat.ai/docs/dataset_management/formats/format-yolo-ultralytics."""
    names = "".join(f"  {number}: {name}\n" for number, name in enumerate(CLASSES))
    (source / "data.yaml").write_text(f"names:\n{names}path: .\ntrain: train.txt\nval: val.txt\n")
    for split in ("train", "val"):
        images = sorted((source / f"images/{split}").iterdir())
        (source / f"{split}.txt").write_text("".join(f"data/images/{split}/{path.name}\n" for path in images))


def lists_of_one_folder(source: Path) -> None:
    """All images in one folder: only the lists have the split. The paths are of the machine that wrote them."""
    cvat(source)
    for split in ("train", "val"):
        for path in [*source.glob(f"*/{split}/*")]:
            path.rename(path.parent.parent / path.name)
        text = (source / f"{split}.txt").read_text().replace(f"data/images/{split}", "/home/me/set/images")
        (source / f"{split}.txt").write_text(text)


@pytest.mark.parametrize("arrange", [lambda source: None, roboflow, cvat, lists_of_one_folder])
def test_yolo_in_the_folders_of_each_tool(tmp_path, arrange):
    pictures = draw_pictures(3, kinds="polygon", seed=3)
    source = tmp_path / "in"
    for split, part in (("train", pictures[:2]), ("val", pictures[2:])):
        annotated.write_yolo(source, part, split=split)
    arrange(source)
    assert convert("yolo", source, tmp_path / "out") in (0, 1)  # 1: a polygon may cover no pixel
    assert outputs(tmp_path / "out") == {"train/picture_0", "train/picture_1", "val/picture_2"}
    assert read_classes(str(tmp_path / "out/classes.txt"), 4).names == ["background", *CLASSES]
    for split, picture in zip(("train", "train", "val"), pictures, strict=True):
        assert (mask_of(tmp_path / "out", f"{split}/{picture.name}") == drawn(picture)).all()


def test_label_studios_yolo_and_images_elsewhere(tmp_path, capsys):
    """images, labels, classes.txt and notes.json: labelstud.io/guide/export. The images may be left out."""
    pictures = draw_pictures(2, kinds="polygon")
    source = annotated.write_yolo(tmp_path / "in", pictures)
    (source / "data.yaml").unlink()
    (source / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    (source / "notes.json").write_text('{"categories": [{"id": 0, "name": "cat"}], "info": {"version": "1.0"}}')
    (source / "images").rename(tmp_path / "photos")
    with pytest.raises(UserError, match="nothing to convert as yolo"):
        find_and_convert(source, tmp_path / "out")
    assert "no image(s) of its name; name their folder with --images DIR" in capsys.readouterr().err
    assert find_and_convert(source, tmp_path / "out", "--images", str(tmp_path / "photos")) in (0, 1)
    for picture in pictures:
        assert (mask_of(tmp_path / "out", picture.name) == drawn(picture)).all()
    (source / "classes.txt").unlink()
    convert("yolo", source, tmp_path / "numbers", "--images", str(tmp_path / "photos"))
    assert "neither data.yaml nor classes.txt names the classes: they are named by number" in capsys.readouterr().out
    assert read_classes(str(tmp_path / "numbers/classes.txt"), None).names == ["background", "0", "1", "2"]


def yolo_of(folder: Path, **texts: str) -> Path:
    """A label file for each text, and one that is good."""
    blank = np.zeros((8, 10, 3), np.uint8)
    pictures = [Picture(name, blank, [("dog", "polygon", SQUARE)]) for name in ("good", *texts)]
    annotated.write_yolo(folder, pictures)
    for name, text in texts.items():
        (folder / f"labels/{name}.txt").write_text(text)
    return folder


def test_images_with_boxes_are_named_and_those_without_a_line_are_background(tmp_path, capsys):
    line = "0 0.5 0.5 0.1 0.1\n"
    texts = {"one": line, "two": "1 0.1 0.1 0.9 0.1 0.9 0.9\n" + line, "empty": ""}
    assert convert("yolo", yolo_of(tmp_path / "in", **texts), tmp_path / "out") == 1
    named = [line for line in capsys.readouterr().err.splitlines() if "a box, which has no outline: skipped" in line]
    assert [Path(line.split()[0]).name for line in named] == ["one.txt", "two.txt"]
    assert outputs(tmp_path / "out") == {"good", "empty"}
    assert (mask_of(tmp_path / "out", "empty") == 0).all()
    expected = np.zeros((8, 10), np.uint8)
    expected[1:4, 2:6] = 2  # dog is YOLO's class 1, and the background comes first
    assert (mask_of(tmp_path / "out", "good") == expected).all()


def test_objects_that_a_tool_left_empty_do_not_cost_the_image(tmp_path, capsys):
    """supervision writes a box of no area, and in COCO an empty list, for a mask that is one pixel wide."""
    texts = {"box": "0 0.5 0.5 0.00000 0.1\n0 0.5 0.5 0.1 0\n1 0.1 0.1 0.9 0.1 0.9 0.9\n", "point": "0 0.5 0.5\n"}
    assert convert("yolo", yolo_of(tmp_path / "yolo", **texts), tmp_path / "out") == 0
    assert "3 line(s) have boxes of no area or a single point: left out" in capsys.readouterr().out
    assert outputs(tmp_path / "out") == {"good", "box", "point"}
    picture = Picture("a", np.zeros((8, 10, 3), np.uint8), [("cat", "polygon", SQUARE), ("dog", "polygon", SQUARE)])
    source = annotated.write_coco(tmp_path / "coco", [picture])
    content = json.loads(source.read_text())
    content["annotations"][1] |= {"segmentation": [], "bbox": [3.0, 4.0, 0.0, 2.0]}
    source.write_text(json.dumps(content))
    assert convert("coco", source, tmp_path / "coco_out") == 0
    assert "1 object(s) have no outline and a box of no area: left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 0.1 0.2 0.3 0.4 0.5\n", "bad.txt line 1: expected a class number, then x y of each point"),
        ("cat 0.1 0.2 0.3 0.4 0.5 0.6\n", "bad.txt line 1: expected a class number"),
        ("0 0.1\n", "bad.txt line 1: expected a class number"),
        ("0 0.1 x 0.3 0.4 0.5 0.6\n", "bad.txt line 1 (cat): coordinates that are not numbers"),
        ("0 0.1 nan 0.3 0.4 0.5 0.6\n", "not a finite number"),
        ("0 10 20 30 40 50 60\n", "coordinates must be fractions of the image's width and height"),
    ],
)
def test_damage_of_yolo_is_named_and_the_rest_is_written(tmp_path, capsys, text, message):
    assert convert("yolo", yolo_of(tmp_path / "in", bad=text), tmp_path / "out") == 1
    (fault,) = [line for line in capsys.readouterr().err.splitlines() if "bad.txt" in line]
    assert message in fault
    assert outputs(tmp_path / "out") == {"good"}


def test_what_else_yolo_may_lack(tmp_path, capsys):
    source = yolo_of(tmp_path / "in", other="7 0.1 0.1 0.9 0.1 0.9 0.9\n", lonely="")
    (source / "labels/lonely.txt").unlink()
    (source / "images/sub").mkdir()
    (source / "images/good.png").rename(source / "images/sub/good.png")  # found by its name
    assert convert("yolo", source, tmp_path / "out") == 1
    output = capsys.readouterr()
    assert "class 'class 7': not in the list of classes: ignored (255) in 1 place(s)" in output.err
    assert f"1 image(s) have no label file, such as {source / 'images/lonely.png'}: left out" in output.out
    assert outputs(tmp_path / "out") == {"sub/good", "other"}
    (source / "data.yaml").write_text("names: [cat]\nkpt_shape: [17, 2]\n")
    with pytest.raises(UserError, match="the labels are key points, which have no area"):
        convert("yolo", source, tmp_path / "none")


def test_the_kind_is_found_or_the_commands_are_named(tmp_path, capsys):
    source = annotated.write_coco(tmp_path / "my in", draw_pictures(2, kinds="mask")).parent
    assert find_and_convert(source, tmp_path / "out") == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert said == f"{source}: COCO's JSON: polygons and RLE ({source / 'instances.json'}), converted as coco"
    annotated.write_labelme(source, draw_pictures(2, kinds="mask"))
    with pytest.raises(UserError, match=r"choose one: .* coco '.*' .* or .* labelme '.*my in'"):
        find_and_convert(source, tmp_path / "two")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no labels of a known kind in it: unpack .*: .* -m tools\.check .*empty"):
        find_and_convert(tmp_path / "empty", tmp_path / "two")
    save(tmp_path / "binary/images/a.jpg")
    (tmp_path / "binary/masks").mkdir()
    Image.fromarray(np.array([[0, 255]], np.uint8)).save(tmp_path / "binary/masks/a_mask.png")
    with pytest.raises(UserError, match=r"nothing to convert as binary; .*: .* -m tools\.check .*binary"):
        find_and_convert(tmp_path / "binary", tmp_path / "two")
    save(tmp_path / "numbers/VOCdevkit/VOC2012/masks/a.png", value=3)
    with pytest.raises(
        UserError, match=r"masks of class numbers need no conversion: to check them: .*tools.check .*VOC2012"
    ):
        find_and_convert(tmp_path / "numbers", tmp_path / "two")
    with pytest.raises(UserError, match=r"coco: no such file or folder \(OUT is missing\)"):
        main(["coco", str(source)])


# What labelme 6.3.1's shape_to_mask draws of this polygon, whose points LabelMe keeps within [0, size - 1].
TOUCHING = [[1.2, 1.3], [7.0, 1.1], [7.0, 5.0], [1.4, 5.0]]
LABELME_DRAWS = [[0] * 8, *[[0, *[1] * 7]] * 5]


def test_labelme_objects_that_touch_the_border_reach_it(tmp_path):
    picture = Picture("a", np.zeros((6, 8, 3), np.uint8), [("cat", "polygon", TOUCHING)])
    assert convert("labelme", annotated.write_labelme(tmp_path / "in", [picture]), tmp_path / "out") == 0
    assert mask_of(tmp_path / "out", "a").tolist() == LABELME_DRAWS


def test_an_image_that_was_saved_again_with_another_suffix_is_found(tmp_path):
    picture = Picture("a", np.zeros((6, 8, 3), np.uint8), [("cat", "polygon", SQUARE)])
    source = annotated.write_labelme(tmp_path / "in", [picture])
    Image.open(source / "a.png").save(source / "a.jpg")
    (source / "a.png").unlink()
    assert convert("labelme", source, tmp_path / "out") == 0
    assert (tmp_path / "out/images/a.jpg").is_file()
