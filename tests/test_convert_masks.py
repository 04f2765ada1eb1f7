"""Labels that are pixels: Supervisely's bitmaps, panoptic PNGs, masks in colours and in black and white."""

import json
from pathlib import Path

import numpy as np
import pytest
from annotated import CLASSES, COLOURS, Picture, draw_pictures, write_coco, write_labelstudio
from annotated_masks import write_binary, write_colours, write_panoptic, write_supervisely
from PIL import Image
from test_convert import convert, drawn, inside, mask_of

from data.classes import read_classes
from support.errors import UserError

RECORDED = Path(__file__).parent / "recorded"
VOID = (224, 224, 192)


def test_supervisely_includes_the_pixels_of_outlines(tmp_path):
    """Rectilinear outlines by hand; others: all pixels inside, and none further than a pixel from the outline."""
    corners = [[2, 1], [7, 1], [7, 5], [2, 5]]
    picture = Picture("a", np.zeros((9, 10, 3), np.uint8), [("dog", "polygon", corners)])
    source = write_supervisely(tmp_path / "in", [picture])
    path = source / "ds0/ann/a.png.json"
    content = json.loads(path.read_text())
    content["objects"][0]["points"]["interior"] = [[[4, 2], [5, 2], [5, 4], [4, 4]]]
    path.write_text(json.dumps(content))
    assert convert("supervisely", source, tmp_path / "out") == 0
    expected = np.zeros((9, 10), np.uint8)
    expected[1:6, 2:8] = 2
    expected[2:5, 4:6] = 0
    assert (mask_of(tmp_path / "out", "ds0/a") == expected).all()

    (polygon,) = [shape for shape in draw_pictures(1, seed=5)[0].shapes if shape[1] == "polygon"][:1]
    picture = Picture("b", np.zeros((47, 61, 3), np.uint8), [("dog", "polygon", np.floor(polygon[2]).tolist())])
    write_supervisely(tmp_path / "two", [picture])
    convert("supervisely", tmp_path / "two", tmp_path / "out2")
    y, x = np.mgrid[:47, :61]
    mask = mask_of(tmp_path / "out2", "ds0/b") == 2
    assert mask.any()
    points = picture.shapes[0][2]
    near = np.full(mask.shape, np.inf)
    for start, end in zip(np.array(points), np.roll(points, -1, axis=0), strict=True):
        for share in np.linspace(0, 1, 200):
            near = np.minimum(
                near, np.hypot(x - (start + share * (end - start))[0], y - (start + share * (end - start))[1])
            )
    core = inside(points, x, y) & (near > 0.5)
    assert mask[core].all()
    assert not mask[~inside(points, x, y) & (near > 1)].any()


def test_supervisely_bitmaps_and_colours(tmp_path):
    pictures = draw_pictures(2, kinds="mask")
    assert convert("supervisely", write_supervisely(tmp_path / "in", pictures), tmp_path / "out") == 0
    for picture in pictures:
        assert (mask_of(tmp_path / "out", f"ds0/{picture.name}") == drawn(picture)).all()
    colours = read_classes(str(tmp_path / "out/classes.txt"), 4).colours
    assert colours[1:4].tolist() == [list(COLOURS[name]) for name in CLASSES]


def test_panoptic_segments_become_classes(tmp_path):
    pictures = draw_pictures(2)
    source = write_panoptic(tmp_path / "in", pictures, drawn)
    assert convert("panoptic", source, tmp_path / "out") == 0
    assert read_classes(str(tmp_path / "out/classes.txt"), 3).names == CLASSES
    for picture in pictures:
        label = drawn(picture)
        expected = np.where(label == 0, 255, label - 1)  # void is ignored; classes count from 0, without background
        assert (mask_of(tmp_path / "out", picture.name) == expected).all()
    content = json.loads(source.read_text())
    content["annotations"][0]["segments_info"][0]["iscrowd"] = 1
    source.write_text(json.dumps(content))
    assert convert("panoptic", source, tmp_path / "crowd", "--unlabelled", "background") == 0
    label = drawn(pictures[0])
    assert (mask_of(tmp_path / "crowd", "picture_0") == np.where(label == 1, 255, label)).all()


def test_colours_are_found(tmp_path):
    pictures = draw_pictures(2)
    write_colours(tmp_path / "in", pictures, drawn)
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


def test_colours_are_given_and_others_are_named(tmp_path, capsys):
    pictures = draw_pictures(1)
    write_colours(tmp_path / "in", pictures, drawn)
    (tmp_path / "classes.txt").write_text("tree #2828fa\ncat #c8000a\n")
    words = ("--classes", str(tmp_path / "classes.txt"))
    label = drawn(pictures[0])
    share = f"{(label == 2).sum() / (label > 0).sum():.0%}"
    with pytest.raises(
        UserError, match=rf"no class has the colour of {share} of the painted pixels \(#00dc1e {share}\)"
    ):
        convert("colours", tmp_path / "in", tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()  # wrong masks are worse than none
    assert convert("colours", tmp_path / "in", tmp_path / "out", *words, "--unlisted", "ignore") == 0
    assert (mask_of(tmp_path / "out", "picture_0") == np.array([255, 1, 255, 0])[label]).all()
    path = tmp_path / "in/masks/picture_0.png"
    few = np.array(Image.open(path))
    few[label == 2] = 0
    few[-1, -3:] = COLOURS["dog"]
    Image.fromarray(few).save(path)
    assert convert("colours", tmp_path / "in", tmp_path / "two", *words) == 1
    assert "class '#00dc1e': not in the list of classes: ignored (255) in 1 place(s)" in capsys.readouterr().err


def test_presets_know_the_colours_that_are_no_class(tmp_path):
    """VOC's outlines and Cityscapes' labels outside the 19 classes are 255; CamVid's 32 labels are 11 classes."""
    rows = {
        "voc": ([(0, 0, 0), (128, 0, 0), (0, 64, 128), VOID], [0, 1, 20, 255]),
        "cityscapes": ([(0, 0, 0), (128, 64, 128), (119, 11, 32), (111, 74, 0)], [255, 0, 18, 255]),
        "camvid": ([(0, 0, 0), (128, 128, 128), (64, 192, 0), (192, 128, 192)], [255, 0, 1, 8]),
        "ade20k": ([(0, 0, 0), (120, 120, 120), (92, 0, 255)], [255, 0, 149]),
    }
    for preset, (colours, expected) in rows.items():
        for folder, pixels in (
            ("images", np.zeros((1, len(colours), 3), np.uint8)),
            ("masks", np.array([colours], np.uint8)),
        ):
            (tmp_path / preset / folder).mkdir(parents=True)
            Image.fromarray(pixels).save(tmp_path / preset / folder / "a.png")
        assert convert("colours", tmp_path / preset, tmp_path / f"{preset}_out", "--classes", preset) == 0, preset
        assert mask_of(tmp_path / f"{preset}_out", "a").tolist() == [expected]
        assert read_classes(str(tmp_path / f"{preset}_out/classes.txt"), None).names == read_classes(preset, None).names


def test_palette_masks_count_by_colour_and_transparency_is_unlabelled(tmp_path):
    for folder in ("images", "masks"):
        (tmp_path / "in" / folder).mkdir(parents=True)
    for name in "ab":
        Image.fromarray(np.zeros((1, 3, 3), np.uint8)).save(tmp_path / f"in/images/{name}.png")
    palette = Image.fromarray(np.array([[7, 0, 9]], np.uint8))
    palette.putpalette([0, 0, 0] + [1, 1, 1] * 6 + [128, 0, 0] + [1, 1, 1] + [0, 128, 0])
    palette.save(tmp_path / "in/masks/a.png")
    clear = np.array([[(128, 0, 0, 255), (0, 128, 0, 255), (0, 128, 0, 0)]], np.uint8)
    Image.fromarray(clear).save(tmp_path / "in/masks/b.png")
    assert convert("colours", tmp_path / "in", tmp_path / "out", "--classes", "voc") == 0
    assert mask_of(tmp_path / "out", "a").tolist() == [[1, 0, 2]]
    assert mask_of(tmp_path / "out", "b").tolist() == [[1, 2, 0]]


def test_black_and_white_by_suffix_in_one_folder(tmp_path):
    pictures = draw_pictures(2)
    write_binary(tmp_path / "in", pictures, drawn)
    for picture in pictures:
        (tmp_path / f"in/masks/{picture.name}_mask.png").rename(tmp_path / f"in/images/{picture.name}_mask.png")
    (tmp_path / "in/masks").rmdir()
    with pytest.raises(UserError, match="images and masks are in one folder"):
        convert("binary", tmp_path / "in/images", tmp_path / "out")
    assert convert("binary", tmp_path / "in/images", tmp_path / "out", "--label_suffix", "_mask") == 0
    for picture in pictures:
        assert (mask_of(tmp_path / "out", picture.name) == (drawn(picture) > 0)).all()
    assert (tmp_path / "out/classes.txt").read_text() == "background #000000\nobject #800000\n"


def test_threshold_reads_grey_and_jpeg_masks(tmp_path):
    for folder in ("images", "masks"):
        (tmp_path / "in" / folder).mkdir(parents=True)
    for name in "ab":
        Image.fromarray(np.zeros((16, 32, 3), np.uint8)).save(tmp_path / f"in/images/{name}.png")
    ramp = np.tile(np.arange(0, 256, 8, dtype=np.uint8), (16, 1))
    Image.fromarray(ramp).save(tmp_path / "in/masks/a.png")
    halves = np.where(np.arange(32) < 16, 0, 255).astype(np.uint8)
    Image.fromarray(np.tile(halves, (16, 1))).save(tmp_path / "in/masks/b.jpg")
    assert convert("binary", tmp_path / "in", tmp_path / "out", "--threshold", "128") == 0
    assert (mask_of(tmp_path / "out", "a") == (ramp >= 128)).all()
    assert (mask_of(tmp_path / "out", "b") == (halves > 0)).all()
    Path(tmp_path / "in/masks/b.jpg").unlink()
    with pytest.raises(UserError, match="no image could be converted"):
        convert("binary", tmp_path / "in", tmp_path / "two")


@pytest.mark.parametrize("number", range(3))
def test_masks_of_pycocotools_and_label_studios_converter(tmp_path, number):
    """Noise, blocks and a full mask, as pycocotools 2.0.11 and label-studio-converter 0.0.59 encode them."""
    recorded = json.loads((RECORDED / "rle.json").read_text())[number]
    mask = np.array([list(map(int, row)) for row in recorded["mask"]], bool)
    picture = Picture("a", np.zeros((24, 32, 3), np.uint8), [("cat", "mask", (0, 0, mask))])
    coco = write_coco(tmp_path / "in", [picture])
    content = json.loads(coco.read_text())
    content["annotations"][0]["segmentation"]["counts"] = recorded["coco"]
    coco.write_text(json.dumps(content))
    studio = write_labelstudio(tmp_path / "in2", [picture]) / "export.json"
    tasks = json.loads(studio.read_text())
    tasks[0]["annotations"][0]["result"][0]["value"]["rle"] = list(bytes.fromhex(recorded["brush"]))
    studio.write_text(json.dumps(tasks))
    for kind, file in (("coco", coco), ("labelstudio", studio)):
        assert convert(kind, file, tmp_path / kind) == 0
        assert (mask_of(tmp_path / kind, "a") == mask).all()
