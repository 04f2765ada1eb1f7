"""python -m tools.split: classes are balanced, groups stay together, and the same seed gives the same lists."""

import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from test_layout import put

from data.layout import find_split, read_list
from support.errors import UserError
from tools.split import main, split


def draw(root: Path, found: np.ndarray, names: list[str] | None = None) -> Path:
    """A data set whose masks have the classes of `found` (images, classes) bool, one pixel each, and 255."""
    for number, row in enumerate(found):
        name = names[number] if names else f"image_{number:03d}"
        label = np.full((4, 8), 255, np.uint8)
        label.flat[: len(row)] = np.where(row, np.arange(len(row)), 255)
        put(root / f"masks/{name}.png", label)
        put(root / f"images/{name}.jpg", np.zeros((4, 8, 3), np.uint8))
    return root


def lists(root: Path) -> tuple[list[str], list[str]]:
    return tuple(read_list(root / f"{name}.txt") for name in ("train", "val"))


def test_rare_classes_are_divided_as_the_share_says():
    """Ten classes, from 5 to 100 of 100 images, at 20 %: each class has 20 % of its images in val, up to one image."""
    rng = np.random.default_rng(0)
    shares = np.linspace(0.05, 1, 10)
    found = np.stack([rng.permutation(100) < 100 * share for share in shares], axis=1)
    for seed in range(5):
        in_val = split([str(number) for number in range(100)], [str(number) for number in range(100)], found, 0.2, seed)
        expected = 0.2 * found.sum(axis=0)
        assert np.abs((found & in_val[:, None]).sum(axis=0) - expected).max() <= 2
        assert abs(in_val.sum() - 20) <= 2
        rare = found[:, 0]  # 5 images: 4 and 1
        assert (rare & in_val).sum() == 1


def test_a_part_that_would_be_empty_gets_the_smallest_group():
    """1 % of five images is none."""
    assert split([*"abcde"], [*"xxxyy"], np.ones((5, 1), bool), 0.01, seed=0).tolist() == [False] * 3 + [True] * 2


def test_groups_stay_together_and_the_lists_are_read(tmp_path):
    rng = np.random.default_rng(2)
    names = [f"patient{patient}/slice_{number}" for patient in range(8) for number in range(4)]
    root = draw(tmp_path / "data", rng.random((32, 3)) < 0.5, names)
    main([str(root), "--val", "0.25", "--group", r"^patient(\d+)/"])
    train, val = lists(root)
    assert sorted(train + val) == sorted(names)
    assert {name.split("/")[0] for name in train}.isdisjoint(name.split("/")[0] for name in val)
    assert len(val) == 8
    assert find_split(root, "Folder", "val", {"label": ""}).listed == val


def test_masks_of_0_and_255_are_divided_as_those_of_0_and_1(tmp_path):
    has_object = np.arange(30) % 5 == 0
    for name, value in (("one", 1), ("white", 255)):
        for number, inside in enumerate(has_object):
            mask = np.zeros((4, 8), np.uint8)
            mask[0] = value * inside
            put(tmp_path / f"{name}/masks/{number}.png", mask)
            put(tmp_path / f"{name}/images/{number}.jpg", np.zeros((4, 8, 3), np.uint8))
        main([str(tmp_path / name)])
    assert lists(tmp_path / "white") == lists(tmp_path / "one")
    assert sum(has_object[int(name)] for name in lists(tmp_path / "white")[1]) == 1  # a fifth of 6


@pytest.mark.parametrize(
    ("form", "film", "beginning"),
    [
        ("film_{film}_{number:02d}", "film_.", "film_a"),
        ("{export}/000{film}TP_00{number:02d}", "/000.", "000aTP"),  # a film has frames in both exports
        ("{export}/{film}1_{number:02d}", "/.1", "a1"),
        ("{film}/{number:02d}", "./", "a"),  # folders are films, and files have numbers only
        ("{film}/frame_{number:02d}", "./", "a/frame"),
        # Two cameras, whose files have the same names in each film.
        ("{film}/{export}_{frame:02d}", "./[a-z]+", "a/coco"),
    ],
)
def test_films_in_the_names_are_said(tmp_path, capsys, form, film, beginning):
    values = [(letter, number, ("coco", "labelme")[number % 2]) for letter in "ab" for number in range(8)]
    names = [form.format(film=a, number=n, export=export, frame=n // 2) for a, n, export in values]
    root = draw(tmp_path / "films", np.ones((16, 2), bool), names)
    main([str(root)])
    said = capsys.readouterr().out
    assert f" beginnings, such as {beginning!r}: if each is a film" in said
    pattern = shlex.split(said.partition("add --group ")[2].splitlines()[0])[0]
    for name in ("train", "val"):
        (root / f"{name}.txt").unlink()
    main([str(root), "--val", "0.5", "--group", pattern])
    train, val = ({re.search(film, name)[0] for name in part} for part in lists(root))
    assert train.isdisjoint(val)
    capsys.readouterr()
    main([str(draw(tmp_path / "photos", np.ones((4, 2), bool)))])
    assert "beginnings" not in capsys.readouterr().out


def test_same_seed_same_lists(tmp_path):
    found = np.random.default_rng(3).random((30, 4)) < 0.4
    results = []
    for number, seed in enumerate((0, 0, 1)):
        root = draw(tmp_path / str(number), found)
        main([str(root), "--seed", str(seed)])
        results.append(lists(root))
    assert results[0] == results[1] != results[2]


def test_flags_that_read_the_data_stay_in_the_next_command(tmp_path, capsys):
    root = draw(tmp_path / "data", np.ones((4, 2), bool))
    (root / "images").rename(root / "JPEGImages")
    (root / "masks").rename(root / "gt")
    (tmp_path / "map.txt").write_text("0 2\n1 0\n")
    flags = ["--image_path", "JPEGImages", "--label_map", str(tmp_path / "map.txt")]
    main([str(root), *flags, "--label_path", "gt"])
    flags[2:2] = ["--train_path", "gt", "--val_path", "gt"]
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"tools.check {root} --dataset Folder {' '.join(flags)}")


@pytest.mark.parametrize(
    "make", [lambda path: path.write_text("mine\n"), Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")]
)
def test_nothing_is_overwritten(tmp_path, make):
    root = draw(tmp_path / "data", np.ones((4, 2), bool))
    make(root / "val.txt")
    before = os.lstat(root / "val.txt")
    with pytest.raises(UserError, match=r"val\.txt: exists: remove it to split the data again"):
        main([str(root)])
    assert os.path.samestat(os.lstat(root / "val.txt"), before)
    assert not (root / "val.txt").is_file() or (root / "val.txt").read_text() == "mine\n"
    assert not (root / "train.txt").exists()


def test_a_split_that_was_killed_between_its_files_is_completed(tmp_path):
    root = draw(tmp_path / "data", np.random.default_rng(3).random((9, 2)) < 0.5)
    main([str(root)])
    both = lists(root)
    (root / "val.txt").unlink()
    with pytest.raises(UserError, match=r"train\.txt: exists: remove it"):
        main([str(root), "--seed", "1"])
    main([str(root)])
    assert lists(root) == both


@pytest.mark.parametrize("name", ["a\nb", "a\\b", " a"])
def test_names_that_a_list_cannot_hold_are_refused(tmp_path, name):
    root = draw(tmp_path / "data", np.ones((3, 2), bool), [name, "b", "c"])
    with pytest.raises(UserError, match="a list cannot hold this name: rename the file"):
        main([str(root)])
    assert not list(root.glob("*.txt"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--val", "0"], "--val 0.0: must be above 0 and below 1"),
        (["--group", "("], "--group (: not a regular expression"),
        (["--group", "_[5-9]"], "not in 3 of 4 names, such as 'image_000'"),
        (["--label_path", "mask"], "--label_path mask: no such folder below "),
        (["--image_path", "photos"], "--image_path photos: no such folder below "),
        (["--group", "image"], "all 4 images are in one group, 'image'"),
        (["--vall", "0.3"], "unknown flag --vall: did you mean --val?"),
        (["--group", "-x"], "(a value that begins with '-' is written --group='-value')"),
        (["more"], "unexpected argument 'more'"),
    ],
)
def test_wrong_words_are_named(tmp_path, words, named):
    root = draw(tmp_path / "data", np.ones((4, 2), bool), [f"image_00{number}" for number in (0, 1, 2)] + ["image_9"])
    with refused(named):
        main([str(root), *words])
    assert not list(root.glob("*.txt"))


def test_an_empty_root_is_not_the_current_folder():
    with refused("ROOT is empty: give a value"):
        main([""])


def test_data_without_masks_or_with_splits_are_refused(tmp_path):
    without = draw(tmp_path / "data", np.ones((4, 2), bool))
    (without / "masks/image_001.png").unlink()
    has_splits = draw(tmp_path / "two", np.ones((4, 2), bool), [f"train/{number}" for number in range(4)])
    lone = draw(tmp_path / "three", np.ones((1, 2), bool))
    for root, problem in (
        (without, "an image without a mask"),
        (has_splits, "there are splits already"),
        (lone, "is the only image: a split needs at least 2"),
    ):
        with pytest.raises(UserError, match=problem):
            main([str(root)])
