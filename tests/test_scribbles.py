"""Simulated strokes: never outside their class, the same for a seed and a name, and as long, wide and many as asked."""

import dataclasses

import cv2
import numpy as np
import pytest

from tools.scribbles.simulate import Style, draw_scribble

PLAIN = Style(min_area=30, length=1.0, max_length=0, width=3, wiggle=0.0, skip=0.0, per_class=0, background="none")
STYLES = {
    "plain": PLAIN,
    "wiggly": dataclasses.replace(PLAIN, wiggle=1.0, width=1, background="0"),
    "wide": dataclasses.replace(PLAIN, wiggle=0.7, width=9, background="0"),
    "short": dataclasses.replace(PLAIN, length=0.3, wiggle=0.3),
    "point": dataclasses.replace(PLAIN, max_length=1, wiggle=0.7),
    "few": dataclasses.replace(PLAIN, skip=0.8, max_length=10, min_area=1),
}


def random_mask(seed: int) -> np.ndarray:
    """Blobs, thin lines, single pixels and void, over each other and up to the image's edges, (H, W) uint8."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(20, 90, 2)
    coarse = rng.integers(0, 4, (rng.integers(1, 6), rng.integers(1, 6)), dtype=np.uint8)
    mask = cv2.resize(coarse, (int(width), int(height)), interpolation=cv2.INTER_NEAREST)
    for _ in range(rng.integers(0, 8)):
        value = int(rng.choice([0, 1, 2, 5, 255]))
        points = [(int(x), int(y)) for x, y in rng.integers(0, 90, (2, 2))]
        if rng.random() < 0.5:
            cv2.line(mask, *points, value, int(rng.integers(1, 4)))
        else:
            cv2.circle(mask, points[0], int(rng.integers(1, 20)), value, -1)
    mask[rng.random(mask.shape) < rng.choice([0, 0.02])] = 7  # single pixels
    return mask


def components(mask: np.ndarray, value: int) -> list[np.ndarray]:
    """The connected regions of a class, (H, W) bool each."""
    count, number = cv2.connectedComponents((mask == value).astype(np.uint8), connectivity=8)
    return [number == index for index in range(1, count)]


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_no_stroke_leaves_its_class(style):
    for seed in range(25):
        mask = random_mask(seed)
        scribble = draw_scribble(mask, style, seed=3, name=f"{seed}")
        drawn = scribble != 255
        assert (scribble[drawn] == mask[drawn]).all()
        if not style.skip:
            assert set(np.unique(scribble)) - {255} == set(np.unique(mask)) - {255}  # each class keeps a stroke


def test_each_region_of_the_least_area_has_a_stroke_and_smaller_ones_have_none():
    for seed in range(25):
        mask = random_mask(seed)
        scribble = draw_scribble(mask, STYLES["wiggly"], seed=0, name="a")
        for value in set(np.unique(mask).tolist()) - {255}:
            regions = components(mask, value)
            largest = max(int(region.sum()) for region in regions)
            for region in regions:
                is_stroked = bool((scribble[region] == value).any())
                if region.sum() >= STYLES["wiggly"].min_area:
                    assert is_stroked
                elif region.sum() < largest:
                    assert not is_stroked


def test_seed_and_name_decide():
    mask, style = random_mask(1), STYLES["wiggly"]
    first = draw_scribble(mask, style, 5, "train/a")
    before = mask.copy()
    assert (draw_scribble(mask, style, 5, "train/a") == first).all()
    assert (mask == before).all()
    assert (draw_scribble(mask, style, 6, "train/a") != first).any()
    assert (draw_scribble(mask, style, 5, "train/b") != first).any()


def test_masks_without_room():
    void = np.full((9, 7), 255, np.uint8)
    for style in STYLES.values():
        assert (draw_scribble(void, style, 0, "a") == 255).all()
        for size in ((1, 1), (2, 2), (1, 30), (30, 2)):
            tiny = void.copy() if max(size) < 7 else np.full((32, 32), 255, np.uint8)
            tiny[: size[0], : size[1]] = 4  # in the image's corner
            drawn = draw_scribble(tiny, style, 0, "a") != 255
            assert drawn.any() or style.skip
            assert (tiny[drawn] == 4).all()
        full = np.zeros((40, 50), np.uint8)  # one class in the whole image
        assert (draw_scribble(full, style, 0, "a") == 0).any()


def bar(height: int = 21, width: int = 201) -> np.ndarray:
    """A bar of class 1 in void, away from the image's edges."""
    mask = np.full((height + 20, width + 20), 255, np.uint8)
    mask[10 : 10 + height, 10 : 10 + width] = 1
    return mask


def extent(scribble: np.ndarray) -> tuple[int, int, int]:
    """Rows, columns and pixels of the one stroke of a scribble."""
    rows, columns = np.nonzero(scribble != 255)
    return int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1, len(rows)


@pytest.mark.parametrize("width", [1, 3, 9])
def test_width_is_that_of_the_line(width):
    """The skeleton of a bar is its middle row, and pixels at most width / 2 from it are drawn."""
    scribble = draw_scribble(bar(), dataclasses.replace(PLAIN, width=width), 0, "a")
    assert ((scribble != 255)[:, 60:160].sum(axis=0) == width).all()


def test_length_is_a_share_of_the_line():
    whole = extent(draw_scribble(bar(), PLAIN, 0, "a"))[1] - 2  # less the two ends of a line 3 pixels wide
    assert 0.85 * 201 < whole <= 201
    for share in (0.25, 0.8):
        drawn = draw_scribble(bar(), dataclasses.replace(PLAIN, length=share), 0, "a")
        assert extent(drawn)[1] - 2 == pytest.approx(share * whole, abs=3)
    point = extent(draw_scribble(bar(), dataclasses.replace(PLAIN, max_length=0.1), 0, "a"))
    assert point == (3, 3, 9)  # pixels at most 1.5 from a pixel's centre


def test_wiggle_moves_a_stroke_to_the_sides():
    rows = {}
    for wiggle in (0.0, 0.5, 1.0):
        scribble = draw_scribble(bar(41), dataclasses.replace(PLAIN, wiggle=wiggle), 0, "a")
        rows[wiggle] = extent(scribble)[0]
    assert rows[0.0] <= 5
    assert rows[0.0] < rows[0.5] < rows[1.0]


def test_skip_leaves_out_thin_regions_first():
    """500 bars each of 9, 5 and 3 pixels, whose depth is 4, 2 and 1. The shorter side is 200, so THIN means 2 pixels.

    skip 0.5 leaves them out with probability 0.5 ** (5 / 2), 0.5 ** (3 / 2) and 0.5 ** (2 / 2); 4 standard deviations.
    """
    mask = np.full((200, 6000), 255, np.uint8)
    for top, value, half in ((10, 1, 4), (80, 2, 2), (150, 3, 1)):
        mask[top : top + 40, np.arange(6000) % 12 <= 2 * half] = value
    drawn = draw_scribble(mask, dataclasses.replace(PLAIN, skip=0.5, width=1), 0, "a")
    for value, half in ((1, 4), (2, 2), (3, 1)):
        share = 0.5 ** ((half + 1) / 2)
        left = len(components(drawn, value))
        assert left == pytest.approx(500 * (1 - share), abs=4 * (500 * share * (1 - share)) ** 0.5)


def test_per_class_and_max_length():
    """Bars of 100, 50 and 20 pixels of one class: the longest two are drawn, with 30 pixels each at most."""
    mask = np.full((100, 120), 255, np.uint8)
    for top, length in ((10, 20), (40, 100), (70, 50)):
        mask[top : top + 9, 5 : 5 + length] = 1
    drawn = draw_scribble(mask, dataclasses.replace(PLAIN, per_class=2, max_length=30, width=1), 0, "a")
    assert not (drawn[:30] != 255).any()
    for rows in (drawn[40:49], drawn[70:79]):
        assert 29 <= (rows == 1).any(0).sum() <= 32


def test_background_strokes_stay_deep_inside():
    """A disc with a narrow arm: an object's stroke runs into the arm, a background stroke stays in the disc."""
    mask = np.full((100, 220), 255, np.uint8)
    cv2.circle(mask, (50, 50), 40, 1, -1)
    mask[46:55, 80:200] = 1
    in_arm = {}
    for background in ("none", "1"):
        scribble = draw_scribble(mask, dataclasses.replace(PLAIN, background=background), 0, "a")
        in_arm[background] = int((scribble[:, 100:] != 255).sum())
        assert (scribble[:, :90] == 1).any()
    assert in_arm["none"] > 80
    assert in_arm["1"] == 0
