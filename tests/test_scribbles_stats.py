"""Figures of scribbles: those of two real ones, those of a brute-force measurement, and those of simulated strokes."""

import numpy as np
import pytest
from PIL import Image

from tools.scribbles.__main__ import main
from tools.scribbles.figures import NEAR, measure
from tools.scribbles.tables import Column, summary_rows


def save(path, label: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(label.astype(np.uint8)).save(path)


def table(capsys, *words: object) -> dict[str, list[str]]:
    """The cells of the first table that `stats` prints, by title."""
    assert main(["stats", *map(str, words), "--workers", "0"]) == 0
    lines = capsys.readouterr().out.split("\n\n")[0].splitlines()
    parts = [[cell for cell in line.split("  ") if cell.strip()] for line in lines]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in parts}


def spread(cell: str) -> list[float]:
    """Mean, least and largest value of "3.17 (2.92 .. 3.42)"."""
    return [float(word) for word in cell.replace("(", "").replace(")", "").replace("..", "").split()]


def test_figures_of_the_two_real_scribbles(scribblesup, capsys):
    """Issue 15: 3.42 and 2.92 % labelled, 0.9 and 0.1 % of that wrong, 11 and 6.5 % on void, and so on."""
    rows = table(capsys, scribblesup / "pascal_2012_scribble", "--masks", scribblesup / "SegmentationClassAug")
    expected = {
        "pixels on a stroke, %": (2.92, 3.42),
        "stroke pixels on another class, %": (0.1, 0.9),
        "stroke pixels on void (255), %": (6.5, 11.3),
        "background strokes: share of their area, %": (2.3, 2.7),
        "object strokes: share of their area, %": (6.6, 29.4),  # 7 to 29
        "of thin objects, within 5 px, %": (85.9, 88.5),  # 86 to 88
    }
    for title, ends in expected.items():
        assert spread(rows[title][0])[1:] == pytest.approx(ends, abs=0.06), title
    assert rows["images"] == ["2"]
    assert spread(rows["strokes an image"][0])[1:] == [4, 5]  # counted in the pictures
    assert spread(rows["classes without a stroke, an image"][0]) == [0, 0, 0]


def test_simulated_strokes_have_the_figures_of_real_ones_on_the_same_masks(scribblesup, tmp_path, capsys):
    """The means of five draws lie in the range of the two real ones, or 1.5 points beside it for thin objects.

    Strokes are never wrong or on void.
    """
    masks = scribblesup / "SegmentationClassAug"
    drawn: dict[str, list[float]] = {}
    for seed in range(5):
        assert main(["simulate", str(masks), str(tmp_path / f"{seed}"), "--seed", str(seed), "--workers", "0"]) == 0
        capsys.readouterr()
        rows = table(
            capsys, scribblesup / "pascal_2012_scribble", "--masks", masks, "--compare", tmp_path / f"{seed}",
            "--compare_masks", masks,
        )  # fmt: skip
        for title, cells in list(rows.items())[2:]:
            drawn.setdefault(title, []).append(spread(cells[1])[0])
    never = [title for title in rows if title.startswith(("stroke pixels on", "classes without"))]
    assert {title: drawn[title] for title in never} == {title: [0] * 5 for title in never}
    for title in (
        "pixels on a stroke, %",
        "background strokes: share of their area, %",
        "object strokes: share of their area, %",
        "within 5 px of the border, %",
        "of thin objects, within 5 px, %",
        "stroke pixels / square root of the area",
    ):
        _, least, most = spread(rows[title][0])
        slack = 1.5 if title.startswith("of thin objects") else 0
        assert least - slack <= np.mean(drawn[title]) <= most + slack, title


def test_measured_equals_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(6):
        mask = np.kron(rng.choice([0, 1, 2, 255], (4, 5)), np.ones((6, 6))).astype(np.uint8)
        scribble = np.where(rng.random(mask.shape) < 0.2, rng.choice([0, 1, 2, 3], mask.shape), 255).astype(np.uint8)
        found = measure(scribble, mask)
        places = np.argwhere(mask >= 0)
        drawn = [tuple(place) for place in np.argwhere(scribble != 255)]
        assert (found.size, found.labelled) == (mask.size, len(drawn))
        assert found.void == sum(mask[place] == 255 for place in drawn)
        assert found.wrong == sum(mask[place] not in (255, scribble[place]) for place in drawn)
        for value, item in found.classes.items():
            own = [place for place in drawn if scribble[place] == value]
            others = places[mask.ravel() != value]
            depth = {place: np.hypot(*(others - place).T).min() for place in own}
            assert (item.pixels, item.area) == (len(own), (mask == value).sum())
            assert item.inside == sum(mask[place] == value for place in own)
            assert item.near == sum(distance <= NEAR for distance in depth.values())
        assert set(found.classes) == (set(np.unique(scribble)) | set(np.unique(mask))) - {255}


def test_depth_strokes_and_thin_classes_by_hand():
    mask = np.zeros((60, 60), np.uint8)
    mask[10:51, 10:51] = (
        1  # 41 x 41: the middle is 21 pixels from the nearest other pixel, and 31 x 31 are further than 5
    )
    mask[0, :] = 2  # all of it is 1 pixel from class 0: thin
    scribble = np.full((60, 60), 255, np.uint8)
    scribble[30, 30] = 1  # depth 21 / 21
    scribble[30, 10] = 1  # depth 1 / 21
    found = measure(scribble, mask).classes
    assert found[1].strokes == 2
    assert found[1].depth == pytest.approx((21 + 1) / 2 / 21)
    assert (found[1].near, found[1].thin, found[2].thin) == (1, False, True)
    assert (found[2].pixels, found[2].depth) == (0, None)
    rows = dict(zip(*np.array(summary_rows([Column("x", [measure(scribble, mask)], None)])).T, strict=True))
    assert rows["classes without a stroke, an image"] == "2.00 (2.00 .. 2.00)"  # classes 0 and 2
    assert rows["object strokes: share of their area, %"].startswith(f"{200 / 1681:.2f} ")
    assert rows["background strokes: share of their area, %"] == "-"


def test_one_class_in_the_whole_image_has_no_border():
    found = measure(np.zeros((5, 5), np.uint8), np.zeros((5, 5), np.uint8)).classes[0]
    assert (found.near, found.depth, found.thin) == (0, None, False)


def test_without_masks_only_the_strokes_are_measured(tmp_path, capsys):
    scribble = np.full((10, 10), 255)
    scribble[2, 2:7] = 1
    save(tmp_path / "s/a.png", scribble)
    rows = table(capsys, tmp_path / "s")
    assert rows["pixels on a stroke, %"] == ["5.00 (5.00 .. 5.00)"]
    assert rows["stroke pixels on another class, %"] == rows["classes without a stroke, an image"] == ["-"]


def test_scribbles_that_cannot_be_measured_are_named(tmp_path, capsys):
    for name in ("good", "alone", "size", "cut"):
        save(tmp_path / f"s/{name}.png", np.eye(9))
    for name, size in (("good", 9), ("size", 8), ("cut", 9)):
        save(tmp_path / f"m/{name}.png", np.eye(size))
    (tmp_path / "m/cut.png").write_bytes((tmp_path / "m/cut.png").read_bytes()[:-20])
    assert main(["stats", str(tmp_path / "s"), "--masks", str(tmp_path / "m"), "--workers", "0"]) == 1
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if line.startswith(str(tmp_path))]
    named = ["s/alone.png: no mask of this name", "m/cut.png: not a whole", "s/size.png: 9x9 pixels, but"]
    assert [any(text in line for line in lines) for text in named] == [True] * 3
    assert "images" in printed.out
    assert len(lines) == 3
