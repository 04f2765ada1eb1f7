"""python -m tools.convert: masks equal an independent rasteriser's, pixel by pixel, for every format; and colours."""

import contextlib
import json
from pathlib import Path

import annotated
import cv2
import numpy as np
import pytest
from annotated import CLASSES, COLOURS, Picture, draw_pictures, write_coco
from faulty_data import put
from PIL import Image

from data.classes import read_classes
from support import shell
from tools.convert.__main__ import main
from tools.convert.find import find_kinds

NUMBERS = {name: number for number, name in enumerate(CLASSES, 1)}


def inside(points: list, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The even-odd rule, point by point: a ray to the left crosses the outline an odd number of times."""
    odd = np.zeros(np.broadcast_shapes(x.shape, y.shape), bool)
    for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[0]], strict=True):
        if y0 != y1:
            odd ^= ((y0 > y) != (y1 > y)) & (x > x0 + (y - y0) / (y1 - y0) * (x1 - x0))
    return odd


def near(points: list, x: np.ndarray, y: np.ndarray, reach: float) -> np.ndarray:
    """Whether a pixel's centre is at most `reach` from a line; one point is a disc."""
    found = np.zeros(np.broadcast_shapes(x.shape, y.shape), bool)
    for (x0, y0), (x1, y1) in zip(points, points[1:] or points, strict=False):
        length = (x1 - x0) ** 2 + (y1 - y0) ** 2
        share = np.clip(((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / (length or 1), 0, 1)
        found |= np.hypot(x - x0 - share * (x1 - x0), y - y0 - share * (y1 - y0)) <= reach
    return found


def drawn(picture: Picture, numbers: dict[str, int] = NUMBERS, unlabelled: int = 0, width: float = 10) -> np.ndarray:
    """The label map of a picture: shapes over each other; a pixel belongs to one if its centre lies inside."""
    size = picture.pixels.shape[:2]
    y, x = np.mgrid[: size[0], : size[1]] + 0.5
    label = np.full(size, unlabelled, np.uint8)
    for name, kind, data in picture.shapes:
        if kind == "polygon":
            mask = inside(data, x, y)
        elif kind == "box":
            mask = (x > data[0]) & (x < data[2]) & (y > data[1]) & (y < data[3])
        elif kind == "circle":
            mask = np.hypot(x - data[0], y - data[1]) < data[2]
        elif kind == "mask":
            mask = annotated.whole(size, data[0], data[1], data[2][: size[0] - data[0], : size[1] - data[1]])
        else:
            mask = near(data, x, y, width / 2)
        label[mask] = numbers[name]
    return label


def usable(picture: Picture) -> Picture:
    """Without shapes that cover nothing, and those with a point in the last row or column, which LabelMe moves."""

    def is_kept(shape: tuple) -> bool:
        points = np.array(shape[2]).reshape(-1, 2) if shape[1] in ("polygon", "box") else np.zeros((1, 2))
        size = np.array(picture.pixels.shape[1::-1])
        return not ((points >= size - 1) & (points < size)).any() and drawn(picture._replace(shapes=[shape])).any()

    return picture._replace(shapes=list(filter(is_kept, picture.shapes)))


def convert(kind: str, source: Path, out: Path, *words: str) -> int:
    return main([kind, str(source), str(out), "--workers", "0", *words])


@contextlib.contextmanager
def edited(path: Path):
    """The content of a JSON file, to be changed in place."""
    content = json.loads(path.read_text())
    yield content
    path.write_text(json.dumps(content))


def mask_of(out: Path, name: str) -> np.ndarray:
    with Image.open(out / f"masks/{name}.png") as image:
        assert image.mode == "P"
        return np.asarray(image)


# Each format with the shapes that it has.
WRITERS = {
    "labelme": (annotated.write_labelme, "polygon box circle mask"),
    "coco": (annotated.write_coco, "polygon box mask"),
    "cvat": (annotated.write_cvat, "polygon box circle mask"),
    "yolo": (annotated.write_yolo, "polygon"),
    "labelstudio": (annotated.write_labelstudio, "polygon box circle"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_masks_equal_those_of_an_independent_rasteriser(tmp_path, kind, capsys):
    """At random coordinates no centre lies on an edge, so that the rule for edges does not matter."""
    writer, kinds = WRITERS[kind]
    whole = list(map(usable, draw_pictures(kinds=kinds)))
    assert sum(len(picture.shapes) for picture in whole) >= 10
    source = writer(tmp_path / "in", whole)
    assert convert(kind, source, tmp_path / "out") == 0
    for picture in whole:
        assert (mask_of(tmp_path / "out", picture.name) == drawn(picture)).all()
        with Image.open(tmp_path / f"out/images/{picture.name}.png") as image:
            assert (np.asarray(image) == picture.pixels).all()
    classes = read_classes(str(tmp_path / "out/classes.txt"), 4)
    assert classes.names == ["background", *CLASSES]
    if kind == "cvat":  # the file has colours
        assert classes.colours[1:4].tolist() == [list(COLOURS[name]) for name in CLASSES]
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [
        f"to split it: {shell.python_command('-m', 'tools.split', tmp_path / 'out', '--val', '0.2')}",
        f"to check it: {shell.python_command('-m', 'tools.check', tmp_path / 'out')}",
    ]


def test_edges_by_hand(tmp_path):
    """A centre on a left or top edge is inside, on a right or bottom edge outside."""
    corners = [[1.5, 0.5], [4.5, 0.5], [4.5, 2.5], [1.5, 2.5]]  # centres of columns 1 and 4, of rows 0 and 2
    shapes = [("cat", "polygon", corners), ("dog", "box", [0, 3, 2, 4])]  # the box is in the last row
    annotated.write_labelme(tmp_path / "in", [Picture("a", np.zeros((4, 6, 3), np.uint8), shapes)])
    convert("labelme", tmp_path / "in", tmp_path / "out")
    assert mask_of(tmp_path / "out", "a").tolist() == [
        [0, 1, 1, 1, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [2, 2, 0, 0, 0, 0],
    ]


def test_coco_unites_polygons_and_reads_crowds(tmp_path, capsys):
    source = write_coco(tmp_path / "in", draw_pictures(2, kinds="mask"))
    content = json.loads(source.read_text())
    square = [[2, 2, 12, 2, 12, 12, 2, 12], [6, 6, 20, 6, 20, 20, 6, 20]]  # overlap in 6..11: both count, no hole
    crowd = {"size": [47, 61], "counts": annotated.runs(annotated.whole((47, 61), 0, 0, np.ones((4, 4), bool)).T)}
    content["annotations"] = [
        *[{"image_id": 100, "category_id": 8, "iscrowd": 0, "segmentation": square}] * 9,
        {"image_id": 100, "category_id": 1, "iscrowd": 1, "segmentation": crowd},
        {"image_id": 100, "category_id": 1, "segmentation": [], "bbox": [3, 4, 0, 0]},  # supervision's empty mask
    ]
    source.write_text(json.dumps(content))
    convert("coco", source, tmp_path / "two")
    said = capsys.readouterr().out
    assert "1 object(s) have no outline and a box of no area" in said
    assert "1 of 11 objects are marked as crowds: ignored (255)" in said
    expected = np.zeros((47, 61), np.uint8)
    expected[:4, :4] = 255  # below the object, although it comes later in the file
    expected[2:12, 2:12] = expected[6:20, 6:20] = 2
    assert (mask_of(tmp_path / "two", "picture_0") == expected).all()
    assert (mask_of(tmp_path / "two", "picture_1") == 0).all()  # an image without objects is background
    # CVAT's export through Datumaro marks every mask as a crowd (datumaro 1.13.12, coco/exporter.py).
    content["annotations"] = content["annotations"][-3:-1]
    source.write_text(json.dumps(content))
    convert("coco", source, tmp_path / "marked")
    assert "1 of 2 objects are marked as crowds: drawn as objects" in capsys.readouterr().out
    expected[:4, :4] = 1  # the later shape covers the earlier one
    assert (mask_of(tmp_path / "marked", "picture_0") == expected).all()


@pytest.mark.parametrize("order", ["images annotations categories", "categories annotations images"])
def test_a_large_coco_file_is_known_wherever_its_words_are(tmp_path, order):
    image = {"id": 1, "file_name": "a.jpg", "licence": "x" * 200_000}
    content = {"images": [image], "annotations": [{"note": "x" * 200_000}], "categories": [image]}
    (tmp_path / "labels.json").write_text(json.dumps({name: content[name] for name in order.split()}))
    assert find_kinds(tmp_path) == {"coco": tmp_path / "labels.json"}


def test_cvat_draws_by_z_order_and_turns_boxes(tmp_path):
    source = annotated.write_cvat(tmp_path / "in", [Picture("a", np.zeros((20, 20, 3), np.uint8), [])])
    xml = (source / "annotations.xml").read_text()
    # A box of 8 x 4 about (10, 10), turned by 90 degrees, is one of 4 x 8: columns 8..11, rows 6..13.
    shapes = (
        '<box label="cat" xtl="6" ytl="8" xbr="14" ybr="12" rotation="90" z_order="2"/>'
        '<polygon label="dog" points="0,0;20,0;20,10;0,10" z_order="1"/>'
        '<polyline label="tree" points="0.5,18;19.5,18" z_order="0"/>'
        '<ellipse label="tree" cx="16" cy="10" rx="2" ry="8" z_order="3"/>'
    )
    (source / "annotations.xml").write_text(xml.replace("</image>", f"{shapes}</image>"))
    assert convert("cvat", source, tmp_path / "out", "--line_width", "2") == 0
    expected = np.zeros((20, 20), np.uint8)
    expected[17:19] = 3  # centres at 17.5 and 18.5 are within 1 pixel of the line y = 18
    expected[:10] = 2
    expected[6:14, 8:12] = 1
    y, x = np.mgrid[:20, :20] + 0.5
    expected[((x - 16) / 2) ** 2 + ((y - 10) / 8) ** 2 <= 1] = 3
    assert (mask_of(tmp_path / "out", "a") == expected).all()


@pytest.mark.parametrize("number", range(3))
def test_rle_of_pycocotools_and_label_studio(tmp_path, number):
    """Noise, blocks and a full mask, as pycocotools 2.0.11 and label-studio-converter 0.0.59 encode them."""
    recorded = json.loads((Path(__file__).parent / "recorded/rle.json").read_text())[number]
    mask = np.array([list(map(int, row)) for row in recorded["mask"]], bool)
    blank = np.zeros((24, 32, 3), np.uint8)
    source = write_coco(tmp_path / "in", [Picture("a", blank, [("cat", "mask", (0, 0, mask))])])
    with edited(source) as content:
        content["annotations"][0]["segmentation"]["counts"] = recorded["coco"]
    assert convert("coco", source, tmp_path / "out") == 0
    assert (mask_of(tmp_path / "out", "a") == mask).all()
    brush = ("cat", "brush", list(bytes.fromhex(recorded["brush"])))
    studio = annotated.write_labelstudio(tmp_path / "studio", [Picture("a", blank, [brush])])
    assert convert("labelstudio", studio, tmp_path / "two") == 0
    assert (mask_of(tmp_path / "two", "a") == mask).all()


def test_label_studio_takes_the_newest_annotation_and_turns_boxes(tmp_path):
    """A box is turned about its corner, and an uploaded file has eight digits before its name."""
    source = annotated.write_labelstudio(tmp_path / "in", [Picture("a", np.zeros((10, 10, 3), np.uint8), [])])
    # 4 x 2 pixels from (5, 2), turned by 90 degrees about this corner: columns 3 and 4, rows 2 to 5.
    value = {"x": 50, "y": 20, "width": 40, "height": 20, "rotation": 90, "rectanglelabels": ["cat"]}
    region = {"id": "r", "type": "rectanglelabels", "original_width": 10, "original_height": 10, "value": value}
    tag = {"id": "k", "type": "keypointlabels", "value": {"x": 1, "y": 1, "keypointlabels": ["dog"]}}
    with edited(source / "export.json") as (task,):
        task["annotations"] = [
            {"result": [region, tag], "updated_at": "2026-02"},
            {"result": [], "updated_at": "2026-01"},
            {"result": [], "updated_at": "2026-03", "was_cancelled": True},
        ]
        task["data"]["image"] = "/data/upload/1/0a1b2c3d-a.png"
    assert convert("labelstudio", source, tmp_path / "out") == 1  # the key point is left out
    expected = np.zeros((10, 10), np.uint8)
    expected[2:6, 3:5] = 1
    assert (mask_of(tmp_path / "out", "a") == expected).all()


def test_colours_are_found(tmp_path):
    pictures = draw_pictures(2)
    annotated.write_colours(tmp_path / "in", pictures, drawn)
    assert convert("colours", tmp_path / "in", tmp_path / "out") == 0
    classes = read_classes(str(tmp_path / "out/classes.txt"), 4)
    # black first, then by red, green, blue: dog (0, 220, 30), tree (40, 40, 250), cat (200, 0, 10)
    assert classes.names == ["background", "#00dc1e", "#2828fa", "#c8000a"]
    assert classes.colours[1:4].tolist() == [list(COLOURS[name]) for name in ("dog", "tree", "cat")]
    order = np.array([0, 3, 1, 2], np.uint8)  # of background, cat, dog, tree
    for picture in pictures:
        assert (mask_of(tmp_path / "out", picture.name) == order[drawn(picture)]).all()
    assert convert("colours", tmp_path / "in", tmp_path / "two", "--unlabelled", "ignore") == 0
    assert (mask_of(tmp_path / "two", "picture_0") == order[drawn(pictures[0])] - 1).all()  # uint8: 0 - 1 is 255


def put_pair(root: Path, name: str, mask: Image.Image) -> None:
    put(root / f"masks/{name}.png", mask)
    put(root / f"images/{name}.png", Image.new("RGB", mask.size))


def test_colours_that_smoothing_left_are_no_classes(tmp_path, capsys):
    """A disc and a square with smooth edges, and a thin pole whose colour is the mean of two other classes'."""
    mask = np.zeros((60, 80, 3), np.uint8)
    cv2.circle(mask, (30, 30), 15, (255, 0, 0), -1, cv2.LINE_AA)
    mask[3:12, 60:70] = mask[20:50, 60:62] = (0, 255, 0)
    mask[50:, 70:] = (0, 128, 0)
    put_pair(tmp_path / "smooth", "a", Image.fromarray(mask))
    number = len(np.unique(mask.reshape(-1, 3), axis=0))
    assert number > 10
    assert convert("colours", tmp_path / "smooth", tmp_path / "out") == 1
    assert f"{number - 4} of {number} colours are in at most 0." in capsys.readouterr().err
    names = ["background", "#008000", "#00ff00", "#ff0000"]
    assert read_classes(str(tmp_path / "out/classes.txt"), None).names == names
    expected = np.select([mask[:, :, 0] == 255, mask[:, :, 1] == 128, mask[:, :, 1] == 255], [3, 1, 2], 0)
    expected[~np.isin(mask[:, :, 0], (0, 255))] = 255
    assert (mask_of(tmp_path / "out", "a") == expected).all()
    # Four true classes of few pixels each, on a grey scale, with lines of one pixel between large regions.
    true = np.zeros((60, 80, 3), np.uint8)
    true[:, 40:] = 250
    for number in range(1, 5):
        true[10 * number : 10 * number + 8, 20 * number - 15] = 50 * number
    put_pair(tmp_path / "true", "a", Image.fromarray(true))
    assert convert("colours", tmp_path / "true", tmp_path / "two") == 0
    assert len(read_classes(str(tmp_path / "two/classes.txt"), None).names) == 6


def test_a_colour_that_is_almost_another_is_named(tmp_path, capsys):
    """#fe0000 in 1 mask, #ff0000 in 4 of 5; #0000fe is beside #0000ff, and #00fc00 is 3 from #00ff00."""
    for at, red in enumerate((254, 255, 255, 255, 255)):
        others = [(0, 0, 254), (0, 252, 0)] if at == 4 else []
        pixels = np.array([[(red, 0, 0), (0, 0, 255), *(others or [(0, 255, 0)] * 2)]], np.uint8)
        put_pair(tmp_path / "in", f"{at}", Image.fromarray(pixels))
    assert convert("colours", tmp_path / "in", tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "#fe0000 (1 mask(s)) is almost #ff0000: if they are one class" in said
    assert said.count("is almost") == 1
    assert convert("colours", tmp_path / "in", tmp_path / "two", "--classes", str(tmp_path / "out/classes.txt")) == 0
    assert "is almost" not in capsys.readouterr().out


def test_given_colours_of_palettes_and_transparent_masks(tmp_path, capsys):
    """A palette mask counts by its colours; transparent pixels are unlabelled; VOC's outlines and others are 255."""
    palette = Image.fromarray(np.array([[7, 0, 9]], np.uint8))
    palette.putpalette([0, 0, 0] + [1, 1, 1] * 6 + [128, 0, 0] + [1, 1, 1] + [0, 128, 0])
    put_pair(tmp_path / "in", "a", palette)
    pixels = [(128, 0, 0, 255), (0, 128, 0, 0), (224, 224, 192, 255)]
    put_pair(tmp_path / "in", "b", Image.fromarray(np.array([pixels], np.uint8)))
    assert convert("colours", tmp_path / "in", tmp_path / "out", "--classes", "voc") == 0
    assert mask_of(tmp_path / "out", "a").tolist() == [[1, 0, 2]]
    assert mask_of(tmp_path / "out", "b").tolist() == [[1, 0, 255]]
    put_pair(tmp_path / "in", "c", Image.new("RGB", (3, 1), (9, 9, 9)))
    assert convert("colours", tmp_path / "in", tmp_path / "two", "--classes", "voc") == 1
    assert mask_of(tmp_path / "two", "c").tolist() == [[255] * 3]
    said = capsys.readouterr()
    assert "#090909: a colour that no class has: ignored (255) in 1 place(s)" in said.err
    assert "1 fault(s): the lines on standard error name what was left out" in said.out


@pytest.mark.parametrize("form", [float, str, "{}.0".format, "{}e0".format, "id {}".format])
def test_ids_of_coco_may_be_floats_or_texts(tmp_path, form):
    pictures = draw_pictures(2, kinds="mask")
    source = write_coco(tmp_path / "in", pictures)
    with edited(source) as content:
        for record in content["annotations"]:
            record |= {key: form(record[key]) for key in ("image_id", "category_id")}
        for record in [*content["images"], *content["categories"]] if form(1) == "id 1" else ():
            record["id"] = form(record["id"])
    assert convert("coco", source, tmp_path / "out") == 0
    numbers = NUMBERS if form(1) != "id 1" else {"cat": 1, "tree": 2, "dog": 3}  # sorted: "id 1", "id 15", "id 8"
    for picture in pictures:
        assert (mask_of(tmp_path / "out", picture.name) == drawn(picture, numbers)).all()


def test_polygons_that_are_thin_or_cover_no_pixel_are_counted(tmp_path, capsys):
    """The rule for pixels stays pycocotools': the centre counts. Both polygons of an object are looked at."""
    source = write_coco(tmp_path / "in", [Picture("a", np.zeros((20, 30, 3), np.uint8), [])])
    square, sliver = [2, 2, 8, 2, 8, 8, 2, 8], [10.1, 2, 10.4, 2, 10.4, 9, 10.1, 9]  # between two columns' centres
    wire, pole = [12.3, 0, 12.9, 0, 12.9, 20, 12.3, 20], [20, 1, 21.5, 1, 21.5, 19, 20, 19]  # 0.6 and 1.5 pixels wide
    wide, cut = [24, 0, 26.6, 0, 26.6, 20, 24, 20], [-9, 10, 2.5, 10, 2.6, 20, -9, 20]  # 3 pixels
    segmentations = [[square, sliver], [sliver], [wire], [pole], [wide], [cut]]
    with edited(source) as content:
        content["annotations"] = [{"image_id": 100, "category_id": 1, "segmentation": one} for one in segmentations]
    assert convert("coco", source, tmp_path / "out") == 1
    expected = np.zeros((20, 30), np.uint8)
    expected[2:8, 2:8] = expected[:, 12] = expected[1:19, 20:21] = expected[:, 24:27] = expected[10:, :3] = 1
    assert (mask_of(tmp_path / "out", "a") == expected).all()
    output = capsys.readouterr()
    assert "2 shape(s) cover no pixel of the image, such as " in output.err
    assert "annotations[0]: polygon 2: left out" in output.err
    assert "2 polygon(s) are less than 2 pixels wide, such as " in output.out
    assert "1 image(s) with masks of 4 classes; 2 shape(s) cover no pixel; " in output.out


@pytest.mark.parametrize("kind", WRITERS)
def test_images_without_a_label_or_a_shape_are_counted_alike(tmp_path, kind, capsys):
    """One that no label names is left out, and background with --unlabelled background; "blank" is labelled so."""
    writer, kinds = WRITERS[kind]
    pictures = [picture._replace(name=name) for picture, name in zip(draw_pictures(2, kinds=kinds), "ab", strict=True)]
    source = writer(tmp_path / "in", [usable(pictures[0]), pictures[1]._replace(name="blank", shapes=[])])
    source = source if source.is_dir() else source.parent
    (image,) = (tmp_path / "in").rglob("a.png")
    annotated.save_images(image.parent, [pictures[1]])
    assert convert(kind, source, tmp_path / "out") == 0
    said = capsys.readouterr().out
    lone = image.with_name("b.png")
    assert f"1 image(s) have no usable label, such as {lone}: left out; if they show background only, " in said
    assert "1 image(s) have no shape, such as " in said
    assert ("task 1:" if kind == "labelstudio" else "blank") in said.partition("have no shape")[2]
    assert sorted(path.stem for path in (tmp_path / "out/masks").iterdir()) == ["a", "blank"]
    assert convert(kind, source, tmp_path / "all", "--unlabelled", "background") == 0
    assert "2 image(s) have no shape" in (said := capsys.readouterr().out)
    assert "usable" not in said
    assert (mask_of(tmp_path / "all", "b") == 0).all()


def test_label_studio_says_which_annotations_are_not_drawn(tmp_path, capsys):
    square = [("cat", "polygon", [[1, 1], [8, 1], [8, 8], [1, 8]])]
    names = ["good", "two", "cancelled", "predicted", "draft", "none", "turned"]
    pictures = [Picture(name, np.zeros((10, 10, 3), np.uint8), square) for name in names]
    source = annotated.write_labelstudio(tmp_path / "in", pictures)
    with edited(source / "export.json") as tasks:
        tasks[1]["annotations"] *= 2
        tasks[2]["annotations"][0]["was_cancelled"] = True
        tasks[3] |= {"annotations": [], "predictions": tasks[3]["annotations"]}
        tasks[4] |= {"annotations": [], "drafts": tasks[4]["annotations"]}
        tasks[5]["annotations"] = []
        tasks[6]["annotations"][0]["result"][0]["image_rotation"] = 90
    assert convert("labelstudio", source, tmp_path / "out") == 1
    output = capsys.readouterr()
    texts = ["are cancelled", "only predictions: submit", "only a draft", "not annotated", "image turned by 90 degrees"]
    for number, text in enumerate(texts, 2):
        (line,) = [line for line in output.err.splitlines() if f"task {number}:" in line]
        assert text in line
    assert f"1 task(s) have several annotations, such as {source / 'export.json'}: task 1: the ground" in output.out
    assert sorted(path.stem for path in (tmp_path / "out/masks").iterdir()) == ["good", "two"]


def test_an_image_with_a_faulty_label_does_not_become_background(tmp_path):
    pictures = [picture._replace(name=name) for picture, name in zip(draw_pictures(2), "ab", strict=True)]
    source = annotated.write_labelme(tmp_path / "in", list(map(usable, pictures)))
    (path,) = (tmp_path / "in").rglob("b.json")
    path.write_text("{}")
    assert convert("labelme", source, tmp_path / "out", "--unlabelled", "background") == 1
    assert [path.stem for path in (tmp_path / "out/masks").iterdir()] == ["a"]


def test_a_class_that_is_not_listed_is_named_with_the_one_that_may_be_meant(tmp_path, capsys):
    source = annotated.write_labelme(tmp_path / "in", list(map(usable, draw_pictures(2))))
    (tmp_path / "names.txt").write_text("background\ndogs\ntree\ncat\n")
    assert convert("labelme", source, tmp_path / "out", "--classes", str(tmp_path / "names.txt")) == 1
    assert "class 'dog': not in the list of classes (did you mean 'dogs'?): ignored (255)" in capsys.readouterr().err
