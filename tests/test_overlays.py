"""Label maps over images, and the legends below them."""

import numpy as np
import pytest

from data import overlays
from data.classes import Classes, voc_colours
from data.overlays import contours, overlay, panel, with_legend


def plain_overlay(image, label, colours, background) -> np.ndarray:
    """Pixel by pixel: a class's colour next to another label, else half of it; the image where nothing is shown."""
    out = image.copy()
    for y, x in np.ndindex(label.shape):
        if label[y, x] in (background, 255):
            continue
        near = label[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2]
        colour = colours[label[y, x]].astype(int)
        out[y, x] = colour if (near != label[y, x]).any() else (image[y, x] + colour + 1) // 2
    return out


@pytest.mark.parametrize("background", [0, None, 2])
def test_background_stays_clear_and_classes_have_contours(background):
    image = np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    label = np.zeros((20, 24), np.uint8)
    label[3:12, 4:14], label[8:18, 10:20], label[0:6, 18:] = 1, 2, 255
    before = image.copy(), label.copy()
    shown = overlay(image, label, voc_colours(), background)
    expected = plain_overlay(image, label, voc_colours(), background)
    assert np.abs(shown.astype(int) - expected).max() <= 1  # halves are rounded
    assert (image == before[0]).all()
    assert (label == before[1]).all()


def test_contours_of_large_pictures_are_thicker():
    label = np.zeros((40, 1100), np.uint8)
    label[:, 500:] = 1
    # 1 + 1100 // 500 = 3 pixels, of the class and not of the background; none at the picture's edge.
    assert np.flatnonzero(contours(label, 0)[20]).tolist() == [500, 501, 502]
    assert np.flatnonzero(contours(label, None)[20]).tolist() == [497, 498, 499, 500, 501, 502]


def test_panel_shows_the_image_as_it_is():
    label, predicted = np.full((2, 3), 255), np.ones((2, 3), np.int64)
    classes = Classes(["ground", "aeroplane"], voc_colours())
    picture = panel(np.full((2, 3, 3), 200, np.uint8), label, predicted, classes, 0)
    shown = [[picture[1 + 4 * row, 1 + 5 * column].tolist() for column in (0, 1)] for row in (0, 1)]
    assert shown == [[[200, 200, 200], [224, 224, 192]], [[128, 0, 0], [164, 100, 100]]]  # not scaled twice
    large = np.zeros((600, 1300), np.int64)
    picture = panel(np.zeros((600, 1300, 3), np.uint8), large, large, classes, 0)
    assert picture.shape[1:] == (2 * (512 + 2), 3)
    assert (picture[2 * (236 + 2) :] == 255).any()  # 600 * 512 / 1300; the legend's paper


COLOURS = np.zeros((256, 3), np.uint8)
COLOURS[:4] = (10, 20, 30), (200, 0, 0), (0, 200, 0), (0, 0, 200)
CLASSES = Classes(["ground", "road", "tree", "sky"], COLOURS)


def named(strip: np.ndarray) -> set[int]:
    """The classes whose colour fills a square of the strip."""
    return {k for k in range(4) if (strip == COLOURS[k]).all(axis=2).sum() >= 8 * 8}


@pytest.mark.parametrize(("hidden", "expected"), [(None, {0, 2, 3}), (0, {2, 3})])
def test_a_legend_names_the_classes_that_occur_below_the_unchanged_picture(hidden, expected):
    picture, label = np.full((100, 300, 3), 77, np.uint8), np.zeros((100, 300), np.uint8)
    label[:5, :5], label[50:], label[80:] = 2, 3, 255
    shown = with_legend(picture, label, CLASSES, hidden)
    np.testing.assert_array_equal(shown[:100, :300], picture)
    assert named(shown[100:]) == expected
    ink = (shown[100:] < 100).all(axis=2) & (shown[100:] != COLOURS[0]).any(axis=2)  # of the letters
    assert ink.sum() > 20 * len(expected)
    assert with_legend(picture, np.full_like(label, 255), CLASSES, hidden) is picture  # nothing is painted
    small = with_legend(np.zeros((20, 30, 3), np.uint8), np.full((20, 30), 1, np.uint8), CLASSES)
    assert small.shape[1] > 30  # room for the longest name
    assert named(small[20:]) == {1}


def test_a_name_without_a_font_becomes_a_number(monkeypatch):
    monkeypatch.setattr(overlays, "FONTS", ())
    overlays._drawable.cache_clear()
    assert overlays._drawable("\u9053\u8def", 3, 12)[0] == "class 3"
    assert overlays._drawable("road & kerb", 3, 12)[0] == "road & kerb"
    overlays._drawable.cache_clear()
