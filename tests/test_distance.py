"""Distance maps: equal to the release's, and to the definition worked out by brute force."""

import math
import shutil

import numpy as np
import pytest
from conftest import refused
from faulty_data import put
from PIL import Image

from data.distance import main, pseudo_distance, scribble_distance
from data.images import read_distance, read_label
from support.errors import UserError


def test_equal_to_the_two_released_maps(scribblesup):
    name = "2007_000032.png"
    scribble = read_label(scribblesup / "pascal_2012_scribble" / name, 21)
    assert (scribble_distance(scribble) == read_distance(scribblesup / "distance_map" / name)).all()
    pseudo = read_label(scribblesup / "bmp_pseudolabel" / name, 21)
    assert (pseudo_distance(pseudo) == read_distance(scribblesup / "distance_pseudo" / name)).all()


def test_scribble_distance_by_brute_force():
    rng = np.random.default_rng(1)
    label = np.full((20, 30), 255, np.uint8)
    label[rng.integers(0, 20, 5), rng.integers(0, 30, 5)] = 3
    label[0, 0] = 0  # a background stroke does not count
    strokes = np.argwhere(label == 3)
    y, x = np.mgrid[:20, :30]
    d = np.min([np.hypot(y - row, x - column) for row, column in strokes], axis=0)
    expected = 255 - np.trunc(np.clip(math.sqrt(math.e) * d, 0, 255))
    assert (scribble_distance(label) == expected).all()


def test_pseudo_distance_of_a_square_by_hand():
    label = np.zeros((7, 7), np.uint8)
    label[2:5, 2:5] = 4  # a 3x3 square: its contour is its 8 outer pixels
    label[0, 0] = 255  # unsure is not foreground
    distance = pseudo_distance(label)
    # sqrt(e^6) = e^3 = 20.0855...: 0 on the contour, 20 one pixel off, 40 two pixels off, 28 diagonally
    assert distance[2].tolist() == [40, 20, 0, 0, 0, 20, 40]
    assert distance[3].tolist() == [40, 20, 0, 20, 0, 20, 40]
    assert distance[1, 1] == math.trunc(math.e**3 * math.sqrt(2))


def test_without_a_background_class_strokes_of_class_0_count():
    label = np.full((1, 9), 255, np.uint8)
    label[0, 0], label[0, 8] = 0, 3
    # sqrt(e) = 1.6487: 255 - trunc(1.6487 d), d to the nearer end, or to the right end only
    near = [math.trunc(math.sqrt(math.e) * d) for d in range(9)]
    assert (255 - scribble_distance(label, background=None)[0]).tolist() == near[:5] + near[3::-1]
    assert (255 - scribble_distance(label)[0]).tolist() == near[::-1]


def test_without_a_background_class_each_class_has_a_contour():
    label = np.zeros((3, 8), np.uint8)
    label[:, 4:] = 2
    label[:, 7] = 255
    # Of 3 rows the outer ones are contours, as regions end at the image's border. In the middle row class 0 ends at
    # columns 0 and 3, class 2 at 4 and 6; column 7 is unsure and belongs to no class.
    middle = [0, 1, 1, 0, 0, 1, 0, 1]
    assert pseudo_distance(label, background=None)[1].tolist() == [math.trunc(math.e**3) * d for d in middle]
    # With background 0 only class 2 is outlined: column 3 is one pixel off, column 0 four.
    assert pseudo_distance(label)[1].tolist() == [math.trunc(math.e**3 * d) for d in (4, 3, 2, 1, 0, 1, 0, 1)]


@pytest.mark.parametrize("value", [0, 255])
def test_without_foreground(value):
    label = np.full((5, 5), value, np.uint8)
    assert (scribble_distance(label) == 0).all()  # infinitely far: 255 - 255
    assert (pseudo_distance(label) == 255).all()  # infinitely far: 255
    assert (label == value).all()


def test_command_reads_the_labels_that_training_reads(tmp_path, capsys):
    """Other formats, upper case and subfolders; a JPEG is named, since training refuses it."""
    label = np.zeros((6, 8), np.uint8)
    label[2:4, 3:6] = 1
    for name in ("a.tif", "b.bmp", "c.webp", "d.PNG", "e.jpg", "sub/a.png"):
        put(tmp_path / "labels" / name, label, lossless=True)
    main(["--scribbles", str(tmp_path / "labels"), "--out", str(tmp_path / "out"), "--workers", "0"])
    said = capsys.readouterr()
    assert "1 JPEG file(s), such as" in said.err
    assert said.out == f"{tmp_path / 'out'}: 5 distance map(s)\n"
    maps = {path.relative_to(tmp_path / "out").as_posix(): path for path in (tmp_path / "out").rglob("*.png")}
    assert sorted(maps) == ["a.png", "b.png", "c.png", "d.png", "sub/a.png"]
    for path in maps.values():
        assert (read_distance(path) == scribble_distance(label)).all()
    put(tmp_path / "labels/a.png", label)
    with pytest.raises(UserError, match=r"a\.png and a\.tif: two files of one name: remove or rename one"):
        main(["--scribbles", str(tmp_path / "labels"), "--out", str(tmp_path / "out"), "--workers", "0"])


def test_command_writes_what_training_would_compute(tmp_path, demo_root):
    files = sorted((demo_root / "bmp_pseudolabel").iterdir())
    folder = shutil.copytree(demo_root / "bmp_pseudolabel", tmp_path / "labels")
    (folder / ".0123456789abcdef.part.png").write_bytes(b"half")  # see files.writing()
    main(["--pseudo", str(folder), "--out", str(tmp_path / "out")])
    assert [path.name for path in sorted((tmp_path / "out").glob("[!.]*"))] == [path.name for path in files]
    label = np.asarray(Image.open(files[0]))
    for out in (folder, folder / "out"):
        with pytest.raises(UserError, match=r"--out .*labels.*, which programs read as input"):
            main(["--pseudo", str(folder), "--out", str(out)])
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").touch()
    with pytest.raises(UserError, match=r"--out .*: has .*a\.jpg but no \.made_from\.json, so data.distance may not"):
        main(["--pseudo", str(folder), "--out", str(tmp_path / "photos")])
    assert (read_distance(tmp_path / "out" / files[0].name) == pseudo_distance(label)).all()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (
            "--out o",
            "one of the arguments --scribbles --pseudo is required: python -m data.distance --help lists the flags",
        ),
        ("--scribbles a --pseudo b --out o", "argument --pseudo: not allowed with argument --scribbles"),
        ("--scribbles a", "the following arguments are required: --out"),
        ("--pseudo a --out o --workers -7", "--workers -7: must be at least -1"),
        ("--pseudo a --out o --workers x", "argument --workers: invalid int value: 'x'"),
        ("--pseudo a --out o --background 1", "argument --background: invalid choice: '1'"),
        ("--pseudo nowhere --out o", "nowhere: no such folder"),
        ("--pseudo a --out=", "argument --out: is empty"),
        ("--pseudo a --out o --size 3", "unrecognized arguments: --size 3"),
    ],
)
def test_a_wrong_command_is_one_line(words, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused(named):
        main(words.split())


def test_maps_of_another_label_map_are_not_mixed(tmp_path):
    put(tmp_path / "labels/a.png", np.array([[0, 1]], np.uint8))
    words = ["--scribbles", str(tmp_path / "labels"), "--out", str(tmp_path / "out"), "--workers", "0"]
    main(words)
    with refused("other settings (label_map)"):
        main([*words, "--label_map", "binary"])
