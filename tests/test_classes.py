"""Names and colours of classes; and --label_map, by which values become class numbers wherever labels are read."""

import math
import re

import numpy as np
import pytest
from conftest import ALONE, flags, read_metrics, refused, run_train, score
from faulty_data import picture, put
from known_datasets import CITYSCAPES, COCO
from PIL import Image

from data.classes import PRESETS, read_classes, voc_colours
from data.images import read_label
from data.label_map import read_label_map
from flags import parse_flags
from support.errors import UserError
from utils import get_loader

# Number of classes of each data set, and one of its classes with name and colour, as its authors give them.
KNOWN = {
    "binary": (2, 1, "object", (128, 0, 0)),  # chosen for masks of 0 and 255 without names
    "voc": (21, 15, "person", (192, 128, 128)),
    "camvid": (11, 3, "road", (128, 64, 128)),
    "cityscapes": (19, 6, "traffic light", (250, 170, 30)),
    "ade20k": (150, 149, "flag", (92, 0, 255)),
    "cocostuff": (171, 170, "wood", tuple(voc_colours()[170])),  # without colours of their own
}


def test_presets_of_classes_and_without_a_file_the_numbers():
    assert sorted(path.stem for path in (PRESETS / "classes").glob("*.txt")) == sorted(KNOWN)
    for preset, (number, label, name, colour) in KNOWN.items():
        classes = read_classes(preset, number)
        assert len(classes.names) == number
        assert classes.names[label] == name
        assert tuple(classes.colours[label]) == colour
    assert read_classes("", 3).names == ["0", "1", "2"]


def test_file_with_colours_for_some(tmp_path):
    file = tmp_path / "classes.txt"
    file.write_text("\ufeff# from the sheet\n#\nroad\n\n  traffic light   #fA0a01 \n#1 thing\n", encoding="utf-8")
    classes = read_classes(str(file), 3)
    assert classes.names == ["road", "traffic light", "#1 thing"]
    assert classes.colours[:3].tolist() == [[0, 0, 0], [250, 10, 1], voc_colours()[2].tolist()]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("0: road\n1: car #ff0000\n2: sky\n", ["road", "car", "sky"]),
        ("1,car #ff0000\n2, sky\n0,road\n", ["road", "car", "sky"]),
        ("10 cm\n11 cm\n12 cm\n", ["10 cm", "11 cm", "12 cm"]),
        ("0 road\n1 car\nsky\n", ["0 road", "1 car", "sky"]),
        ("0\n1\n2\n", ["0", "1", "2"]),
    ],
)
def test_class_numbers_before_all_names(tmp_path, text, names):
    file = tmp_path / "classes.txt"
    file.write_text(text)
    classes = read_classes(str(file), 3)
    assert classes.names == names
    assert "#" not in text or classes.colours[1].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a\nb\n", "2 names, but --numclasses is 3"),
        ("a\nb\na\n", "'a' occurs twice"),
        (None, "camvid, cityscapes"),
        ("1 road\n2 car\n3 sky\n", "numbers its names from 1, but .* add a line for class 0"),
        ("Pixel Value, Class\n0, a\n\nx, y\n", r"classes\.txt line 4: 'x, y': expected a number"),
        (f"Pixel Value, Class\n0, a\n{'1' * 5000}, b\n", "line 3: .*: expected a number"),
        ("a:1,2,3::\nb:1,2,3000::\n", "line 2: 'b:1,2,3000::': expected name:red,green,blue"),
    ],
)
def test_wrong_class_files_are_named(tmp_path, text, named):
    file = tmp_path / "classes.txt"
    if text:
        file.write_text(text)
    with pytest.raises(UserError, match=named):
        read_classes(str(file), 3)


# Value: class, of what each preset lists, by the authors of the data; see tests/known_datasets.py.
LISTED = {
    "ade20k": {0: 255} | {value: value - 1 for value in range(1, 151)},
    "binary": {0: 0, 1: 1, 255: 1},
    "cityscapes": {value: CITYSCAPES.get(value, 255) for value in range(34)},
    "cocostuff": {value: number for number, value in enumerate(COCO)},
    "threshold": {value: int(value >= 128) for value in range(256)},
}


def test_presets_of_label_maps():
    assert sorted(path.stem for path in (PRESETS / "label_maps").glob("*.txt")) == sorted(LISTED)
    for name, listed in LISTED.items():
        found = read_label_map(name)
        expected = {255: 255} | listed
        assert {value: int(number) for value, number in enumerate(found.table) if number != 254} == expected
        assert found.num_classes == len({number for number in listed.values() if number != 255})


def test_lines_of_a_file(tmp_path):
    file = tmp_path / "map.txt"
    text = "\ufeff# numbers of the camera\n7 0\n10-12 1-3  # three classes\n20-29 4\n300 5\n\n* 255\n"
    file.write_text(text, encoding="utf-8")
    found = read_label_map(str(file))
    values = np.array([[7, 10, 11, 12, 20, 29, 300, 0, 65535, 255]], np.uint16)
    assert found.look_up(values).tolist() == [[0, 1, 2, 3, 4, 4, 5, 255, 255, 255]]
    assert found.look_up(values[:, :6].astype(np.uint8)).tolist() == [[0, 1, 2, 3, 4, 4]]
    file.write_text("0 0\n1 1\n-3--1 255\n70000 2\n")
    values = np.array([[0, 1, -1, -3, 70000, -4, -(2**31), 254]], np.int32)
    found, other = read_label_map(str(file)), found
    assert found.look_up(values).tolist() == [[0, 1, 255, 255, 2, 254, 254, 254]]  # 254: not listed
    assert (found.num_classes, found.digest == other.digest) == (3, False)
    file.write_text("0 0\n1 1\n-3--1 255\n70000 1\n")
    assert read_label_map(str(file)).digest != found.digest
    file.write_text("0 0\n1 1\n* 255\n")
    assert read_label_map(str(file)).look_up(values).tolist() == [[0, 1] + 6 * [255]]
    assert read_label_map("") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 0\n2", r"map\.txt line 2: '2': expected 'VALUE CLASS'"),
        ("1 0\n* 1-2", r"line 2: '\* 1-2': expected 'VALUE CLASS', 'FIRST-LAST CLASS' or '\* CLASS'"),
        ("1 254", "a class is 0 to 253, or 255"),
        ("* 255", "gives no class, so that nothing is labelled"),
        ("1-3 0-1", r"3 value\(s\), but 2 class\(es\)"),
        ("2147483648 0", "a value is -2147483648 to 2147483647"),
        ("-9-70000 0", "a range goes up, by less than 65536"),
        ("1 0\n0-5 1", "line 2: '0-5 1': lists a value that an earlier line lists"),
        ("1 9", "gives classes up to 9, but --numclasses is 5: change the map, or train with --numclasses 10"),
        (None, r"map\.txt: No such file or directory; give a FILE, or one of ade20k, binary, cityscapes, cocostuff"),
    ],
)
def test_wrong_label_maps_are_named(tmp_path, text, message):
    file = tmp_path / "map.txt"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_label_map(str(file), 5)


@pytest.mark.parametrize(("mode", "dtype"), [("L", "uint8"), ("P", "uint8"), ("I;16", "uint16"), ("1", "bool")])
def test_label_files_of_every_mode(tmp_path, mode, dtype):
    image = Image.fromarray(np.array([[0, 1, 1 if mode == "1" else 150]], dtype))
    if mode == "P":
        image.putpalette([9] * 768)
    image.save(tmp_path / "a.png")
    label = read_label(tmp_path / "a.png", 150, read_label_map("ade20k"))
    assert (label.dtype, label.tolist()) == (np.uint8, [[255, 0, 0 if mode == "1" else 149]])


def test_a_value_that_the_map_lacks_is_named(tmp_path):
    put(tmp_path / "a.png", np.array([[0, 34, 34]], np.uint8))
    with refused("a.png: label 34 in 2 pixel(s) is not in --label_map cityscapes: use a FILE"):
        read_label(tmp_path / "a.png", 255, read_label_map("cityscapes"))
    put(tmp_path / "b.tif", np.array([[70000, 1, 0]], np.int32))
    with pytest.raises(UserError, match="label 70000 in 1") as error:
        read_label(tmp_path / "b.tif", 255, read_label_map("ade20k"))
    remedy = re.search("'(70000 255)' to ignore it", str(error.value))[1]
    (tmp_path / "map.txt").write_text(f"0-1 0-1\n{remedy}\n")
    assert read_label(tmp_path / "b.tif", 2, read_label_map(str(tmp_path / "map.txt"))).tolist() == [[255, 1, 0]]


def test_binary_reads_one_bit_0_and_1_and_0_and_255_alike(tmp_path):
    mask = np.eye(4, dtype=np.uint8)
    for number, values in enumerate((mask, mask * 255, mask > 0)):
        put(tmp_path / f"{number}.png", values)
        assert (read_label(tmp_path / f"{number}.png", 2, read_label_map("binary")) == mask).all()
    put(tmp_path / "both.png", np.array([[0, 1, 255]], np.uint8))
    with pytest.raises(UserError, match=r"both\.png: label 255 in 1 pixel.*'255 255' to ignore it"):
        read_label(tmp_path / "both.png", 2, read_label_map("binary"))


@pytest.fixture
def numbered(tmp_path):
    """A data set whose classes 0, 1 and 2 have the numbers 300, 7 and 9, and a map that says so."""
    for split, count in (("train", 4), ("val", 1)):
        for number in range(count):
            values = np.array([300, 7, 9, 65535], np.uint16)[np.arange(40) // 10][None].repeat(40, axis=0)
            put(tmp_path / f"data/images/{split}/{number}.png", picture(f"{split}{number}", 40, 40))
            put(tmp_path / f"data/masks/{split}/{number}.png", values)
    (tmp_path / "map.txt").write_text("300 0\n7 1\n9 2\n65535 255\n")
    return {"dataset": "Folder", "dataset_path": tmp_path / "data", "numclasses": 3, "label_map": tmp_path / "map.txt"}


def test_training_and_scoring_see_class_numbers(numbered, tmp_path):
    extra = {"class_weights": "balanced", "model_type": "res50_ASPP"}
    for name in ("x.heic", "y.HEIC", "z.gif", "notes.txt"):
        (numbered["dataset_path"] / "images/train" / name).touch()
    folder = run_train(**numbered, **extra, logdir=tmp_path / "log")
    assert all(math.isfinite(line["loss"]) for line in read_metrics(folder, "train"))
    left_out = "images/train: left out, convert them to .jpg: 1 .gif, 2 .heic\n"
    assert left_out in (folder / "train.log").read_text()
    # 3 of 4 stripes of 10 columns are labelled, and each class has a third of them.
    assert read_metrics(folder, "val")[0]["pixels"] == 30 * 40
    weight = 1 / math.log(1.02 + 1 / 3)
    assert f"balanced): 0: {weight:.4g}, 1: {weight:.4g}, 2: {weight:.4g}\n" in (folder / "train.log").read_text()
    found = score(folder / "last.pt", tmp_path)["confusion"]  # the checkpoint remembers the map
    assert np.sum(found, axis=1).tolist() == [400] * 3


def test_a_changed_map_is_another_list(numbered, tmp_path):
    def load():
        return get_loader(parse_flags(flags(**numbered)), "train", ALONE).dataset

    first = load()
    assert first.read(0)["label"][0, ::10].tolist() == [0, 1, 2, 255]
    assert load().listing == first.listing
    (tmp_path / "map.txt").write_text("300 0\n7 2\n9 1\n65535 255\n")
    second = load()
    assert second.read(0)["label"][0, ::10].tolist() == [0, 2, 1, 255]
    assert second.listing[:-1] == first.listing[:-1]
    assert second.listing[-1] != first.listing[-1]
