"""Pseudo-labels: which of a model's pixels are kept, how strokes are spread, and how labels are scored."""

import cv2
import numpy as np
import pytest
import torch

from pseudo_labels import confidence, drafts, walker
from pseudo_labels.walker import NO_WALK, Grid, grid, walk, walk_from


def test_levels_tell_sure_pixels_apart():
    """10 * -log2(1 - p)."""
    probs = torch.tensor([0, 0.5, 0.75, 1 - 2**-20, 1])
    assert confidence.levels(probs).tolist() == [0, 10, 20, 200, 255]


def test_floors_are_the_threshold_or_keep_the_surest_share_of_each_class():
    """Class 0 has 4, 3, 2, 1 pixels at levels 10, 20, 30, 255; class 1 has 2 at level 5; class 2 none.

    Of class 0's 10 pixels, 0.3 are the 3 pixels from level 30 on; 0.31 needs 4, so level 20 too, which adds 3; 1 needs
    all. Of class 1's 2 pixels any share needs level 5. The probability 3/4 is level 20.
    """
    counts = np.zeros((3, 256), np.int64)
    counts[0, [10, 20, 30, 255]] = 4, 3, 2, 1
    counts[1, 5] = 2
    assert confidence.floors(counts, 1, 0.3).tolist() == [30, 5, 255]
    assert confidence.floors(counts, 1, 0.31).tolist() == [20, 5, 255]
    assert confidence.floors(counts, 1, 1.0).tolist() == [10, 5, 255]
    assert confidence.floors(counts, 0.75, 0.3).tolist() == [20, 5, 20]
    assert confidence.floors(counts, 0, 0.3).tolist() == [0, 0, 0]
    assert confidence.floors(counts, 1).tolist() == confidence.floors(counts, 1, 0.7).tolist()


def test_only_stroked_classes_and_the_background_may_win():
    """Of the probabilities 0.5, 0.3, 0.2, the classes 1 and 2 alone have 0.6 and 0.4."""
    scribble = np.array([[255, 1], [2, 255]], np.uint8)
    assert confidence.stroked_classes(scribble, None) == [1, 2]
    assert confidence.stroked_classes(scribble, 0) == [0, 1, 2]
    assert confidence.stroked_classes(np.full((2, 2), 255, np.uint8), 0) == []  # nothing is known: all may occur
    probs = torch.tensor([0.5, 0.3, 0.2]).view(3, 1, 1)
    assert confidence.restrict(probs, [1, 2]).flatten().tolist() == pytest.approx([0, 0.6, 0.4])
    assert confidence.restrict(probs, []).equal(probs)
    certain = torch.tensor([1.0, 0, 0]).view(3, 1, 1)
    assert confidence.restrict(certain, [1, 2]).argmax() in (1, 2)


def test_merged_labels_follow_strokes_then_the_sure_class():
    """Pixels: on a stroke; sure; unsure; of no known class."""
    scribble = np.array([[2, 255, 255, 255]], np.uint8)
    classes = np.array([[0, 0, 1, 255]], np.uint8)
    levels = np.array([[255, 30, 39, 255]], np.uint8)
    assert confidence.merge(scribble, classes, levels, np.array([30, 40, 0])).tolist() == [[2, 0, 255, 255]]


def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An image of a disc, a square and a ground, in noisy colours; a stroke in each; and their mask."""
    mask = np.zeros((60, 80), np.uint8)
    cv2.circle(mask, (22, 30), 14, 3, -1)
    mask[15:45, 48:72] = 7
    colours = np.zeros((8, 3))
    colours[[0, 3, 7]] = (60, 120, 60), (200, 60, 60), (70, 80, 210)
    noise = np.random.default_rng(0).normal(0, 8, (60, 80, 3))
    scribble = np.full_like(mask, 255)
    cv2.line(scribble, (5, 5), (75, 5), 0, 2)
    cv2.line(scribble, (18, 28), (26, 32), 3, 2)
    cv2.line(scribble, (55, 25), (62, 35), 7, 2)
    return (colours[mask] + noise).clip(0, 255).astype(np.uint8), scribble, mask


def test_strokes_spread_to_the_borders_of_drawn_objects():
    image, scribble, mask = drawn()
    walked = walk(image, scribble)
    assert walked.classes.tolist() == [0, 3, 7]
    assert walked.probs.shape == (3, 30, 40)  # cells of 2 x 2 pixels
    assert np.allclose(walked.probs.sum(0), 1, atol=1e-5)
    label, probs = walked.best(mask.shape)
    assert (label == mask).mean() > 0.98
    full = np.stack([cv2.resize(values, mask.shape[::-1]) for values in walked.probs])
    assert (label == walked.classes[full.argmax(0)]).all()
    assert (probs == full.max(0)).all()


def laplacian_of(cells: Grid) -> np.ndarray:
    """Return the graph's Laplacian, (number of cells, number of cells) float64."""
    numbers = np.arange(cells.seeds.size).reshape(cells.seeds.shape)
    laplacian = np.zeros((numbers.size, numbers.size))
    for weights, one, other in ((cells.down, np.s_[:-1], np.s_[1:]), (cells.right, np.s_[:, :-1], np.s_[:, 1:])):
        for weight, a, b in zip(weights.ravel(), numbers[one].ravel(), numbers[other].ravel(), strict=True):
            laplacian[[a, b], [b, a]] -= weight
            laplacian[[a, b], [a, b]] += weight
    return laplacian


@pytest.mark.parametrize("with_model", [False, True])
def test_walks_solve_the_random_walker_equations(with_model):
    """In a free cell, the probability is the mean of its neighbours', weighted by conductance: solved densely here.

    With a model, its prediction counts too, with a weight of 1 / (REACH^2 * number of cells).
    """
    image, scribble, _ = drawn()
    image, scribble = image[:20, :24], scribble[:20, :24].copy()  # 10 x 12 cells
    scribble[18, 20] = 7
    cells, classes = grid(image, scribble), np.array([0, 3, 5, 7] if with_model else [0, 7], np.uint8)
    draws = np.random.default_rng(0).dirichlet(np.ones(len(classes)), cells.seeds.shape)
    prior = draws.transpose(2, 0, 1).astype(np.float32)
    weight = with_model / (walker.REACH**2 * cells.seeds.size)
    walked = walk_from(cells, classes, prior) if with_model else walk(image, scribble)
    assert walked.classes.tolist() == classes.tolist()
    system, free = laplacian_of(cells) + weight * np.eye(cells.seeds.size), cells.seeds.ravel() == 255
    for number, found, own in zip(*walked, prior, strict=True):
        exact = (cells.seeds.ravel() == number).astype(float)
        known = weight * own.ravel()[free] - system[np.ix_(free, ~free)] @ exact[~free]
        exact[free] = np.linalg.solve(system[np.ix_(free, free)], known)
        assert np.abs(found.ravel() - exact).max() < 1e-3


def test_predictions_of_bands_are_averaged_by_cell():
    """7 rows, in bands of 3, 3 and 1, are 3 cells of rows 0-2, 3-4 and 5-6; 4 columns are 2 cells."""
    probs = torch.rand(2, 7, 4, dtype=torch.float64)
    bands = [slice(0, 3), slice(3, 6), slice(6, 7)]
    sums = sum(drafts._cell_sums(probs[:, rows], rows, 7, (3, 2)) for rows in bands)
    for top, bottom, row in ((0, 3, 0), (3, 5, 1), (5, 7, 2)):
        for left, column in ((0, 0), (2, 1)):
            expected = probs[:, top:bottom, left : left + 2].mean((1, 2)) * (bottom - top)
            assert torch.allclose(sums[:, row, column], expected)


@pytest.mark.parametrize("size", [(1, 2), (7, 4)])
def test_tiny_images_are_walked_and_strokes_of_one_class_are_not(size):
    scribble = np.full(size, 255, np.uint8)
    scribble.flat[0], scribble.flat[-1] = 0, 1
    walked = walk(np.zeros((*size, 3), np.uint8), scribble)
    assert walked.classes.tolist() == [0, 1]
    assert np.isfinite(walked.probs).all()
    scribble[scribble == 1] = 255  # nothing says where class 0 ends
    assert walk(np.zeros((*size, 3), np.uint8), scribble) is NO_WALK
