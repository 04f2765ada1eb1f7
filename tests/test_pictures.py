"""Label maps over images."""

import numpy as np
import pytest

from data.classes import Classes, voc_colours
from evaluation.pictures import contours, overlay, panel


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
    clear = label == (255 if background is None else background)
    assert (shown[clear] == image[clear]).all()
    assert (image == before[0]).all()
    assert (label == before[1]).all()


def test_contours_of_large_pictures_are_thicker():
    label = np.zeros((40, 1100), np.uint8)
    label[:, 500:] = 1
    # 1 + 1100 // 500 = 3 pixels, of the class and not of the background; none at the picture's edge.
    assert np.flatnonzero(contours(label, 0)[20]).tolist() == [500, 501, 502]
    assert np.flatnonzero(contours(label, None)[20]).tolist() == [497, 498, 499, 500, 501, 502]


def test_colours_are_vocs_and_panel_shows_the_image_as_it_is():
    # VOC: 1 aeroplane (128, 0, 0), 15 person (192, 128, 128), 255 border (224, 224, 192)
    colours = voc_colours()
    assert colours[[0, 1, 15, 255]].tolist() == [[0, 0, 0], [128, 0, 0], [192, 128, 128], [224, 224, 192]]
    label, predicted = np.full((2, 3), 255), np.ones((2, 3), np.int64)
    classes = Classes(["ground", "aeroplane"], colours)
    picture = panel(np.full((2, 3, 3), 200, np.uint8), label, predicted, classes, 0)
    assert picture.shape[0] > 8  # two pictures in white frames above each other, and a legend
    shown = [[picture[1 + 4 * row, 1 + 5 * column].tolist() for column in (0, 1)] for row in (0, 1)]
    assert shown == [[[200, 200, 200], [224, 224, 192]], [[128, 0, 0], [164, 100, 100]]]  # D21: not scaled twice
    large = np.zeros((600, 1300), np.int64)
    picture = panel(np.zeros((600, 1300, 3), np.uint8), large, large, classes, 0)
    assert picture.shape[1:] == (2 * (512 + 2), 3)
    assert (picture[2 * (236 + 2) :] == 255).any()  # 600 * 512 / 1300; the legend's paper
