"""The strip below an overlay that names the colours of its classes."""

import numpy as np
import pytest

from data.classes import Classes
from evaluation import legend
from evaluation.legend import with_legend

COLOURS = np.zeros((256, 3), np.uint8)
COLOURS[:4] = (10, 20, 30), (200, 0, 0), (0, 200, 0), (0, 0, 200)
CLASSES = Classes(["ground", "road", "tree", "sky"], COLOURS)
PICTURE = np.full((100, 300, 3), 77, np.uint8)


def named(strip: np.ndarray, among=CLASSES) -> set[int]:
    """The classes whose colour fills a square of the strip."""
    return {k for k in range(len(among.names)) if (strip == among.colours[k]).all(axis=2).sum() >= 8 * 8}


@pytest.mark.parametrize(("hidden", "expected"), [(None, {0, 2, 3}), (0, {2, 3})])
def test_it_names_the_classes_that_occur_below_the_unchanged_picture(hidden, expected):
    label = np.zeros((100, 300), np.uint8)
    label[:5, :5], label[50:], label[80:] = 2, 3, 255
    shown = with_legend(PICTURE, label, CLASSES, hidden)
    np.testing.assert_array_equal(shown[:100, :300], PICTURE)
    strip = shown[100:]
    assert named(strip) == expected
    ink = (strip < 100).all(axis=2) & (strip != COLOURS[0]).any(axis=2)  # of the letters
    assert ink.sum() > 20 * len(expected)
    assert strip.shape[0] < 40  # one row of three names
    assert with_legend(PICTURE, np.full_like(label, 255), CLASSES, hidden) is PICTURE  # nothing is painted


def test_a_small_picture_gets_room_for_the_longest_name_and_a_large_one_larger_letters():
    small = with_legend(np.zeros((20, 30, 3), np.uint8), np.full((20, 30), 1, np.uint8), CLASSES)
    assert small.shape[1] > 30
    assert (small[:20, 30:] == 255).all()
    assert named(small[20:]) == {1}
    large = with_legend(np.zeros((2400, 1200, 3), np.uint8), np.full((2400, 1200), 1, np.uint8), CLASSES)
    assert large.shape[0] - 2400 == 1.5 * 40 + 20  # letters of 2400 / 60 pixels, a row and a margin


def test_frames_of_a_video_have_one_size_and_name_the_largest_classes():
    many = Classes([f"class number {k}" for k in range(40)], np.arange(256 * 3).reshape(256, 3).astype(np.uint8))
    labels = [np.full((100, 300), 1), np.arange(30_000).reshape(100, 300) // 800, np.zeros((100, 300))]
    frames = [with_legend(PICTURE, label.astype(np.uint8), many, 0, same_size=True) for label in labels]
    assert len({frame.shape for frame in frames}) == 1
    assert named(frames[0][100:], many) == {1}
    # Classes 1 to 36 have 800 pixels, 37 has 400. There is room for three rows: the first of the largest.
    second = named(frames[1][100:], many)
    assert second == set(range(1, 1 + len(second)))
    assert 3 <= len(second) <= 12
    assert named(frames[2][100:], many) == set()


def test_a_name_without_a_font_becomes_a_number(monkeypatch):
    monkeypatch.setattr(legend, "FONTS", ())
    legend._drawable.cache_clear()
    legend._system_fonts.cache_clear()
    assert legend._drawable("\u9053\u8def", 3, 12)[0] == "class 3"
    assert legend._drawable("road & kerb", 3, 12)[0] == "road & kerb"
    legend._drawable.cache_clear()
    legend._system_fonts.cache_clear()
