"""Names and colours of classes."""

import pytest

from data.classes import PRESETS, read_classes, voc_colours
from support.errors import UserError

# Number of classes of each data set, and one of its classes with name and colour, as its authors give them.
KNOWN = {
    "voc": (21, 15, "person", (192, 128, 128)),
    "camvid": (11, 3, "road", (128, 64, 128)),
    "cityscapes": (19, 6, "traffic light", (250, 170, 30)),
    "ade20k": (150, 149, "flag", (92, 0, 255)),
    "cocostuff": (171, 170, "wood", tuple(voc_colours()[170])),  # without colours of their own
}


def test_presets():
    assert sorted(path.stem for path in (PRESETS / "classes").glob("*.txt")) == sorted(KNOWN)
    for preset, (number, label, name, colour) in KNOWN.items():
        classes = read_classes(preset, number)
        assert len(classes.names) == number
        assert classes.names[label] == name
        assert tuple(classes.colours[label]) == colour


def test_file_with_colours_for_some(tmp_path):
    file = tmp_path / "classes.txt"
    file.write_text("\ufeff# from the sheet\nroad\n\n  traffic light   #fA0a01 \n#1 thing\n", encoding="utf-8")
    classes = read_classes(str(file), 3)
    assert classes.names == ["road", "traffic light", "#1 thing"]
    assert classes.colours[:3].tolist() == [[0, 0, 0], [250, 10, 1], voc_colours()[2].tolist()]


def test_without_a_file_the_numbers():
    assert read_classes("", 3).names == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a\nb\n", "2 names, but --numclasses is 3"),
        ("a\nb\na\n", "'a' occurs twice"),
        (None, "camvid, cityscapes"),
        ("Pixel Value, Class\n0, a\n\nx, y\n", r"classes\.txt line 4: 'x, y': expected a number"),
        (f"Pixel Value, Class\n0, a\n{'1' * 5000}, b\n", "line 3: .*: expected a number"),
        ("a:1,2,3::\nb:1,2,3000::\n", "line 2: 'b:1,2,3000::': expected name:red,green,blue"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, named):
    file = tmp_path / "classes.txt"
    if text:
        file.write_text(text)
    with pytest.raises(UserError, match=named):
        read_classes(str(file), 3)
