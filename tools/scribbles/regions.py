"""Find the connected regions of each class in a dense mask, their depth, their skeleton and the longest path in it.

Skeletons need scikit-image and SciPy (the extra `scribbles`).
"""

from functools import partial

import cv2
import numpy as np

from support import shell
from support.labels import IGNORE

import_extra = partial(shell.import_extra, extra="scribbles", feature="drawing strokes")


def find_regions(label: np.ndarray, min_area: int) -> tuple[np.ndarray, list[int]]:
    """Return the regions that get a stroke: (number (H, W) int32, the class of regions 1, 2, ...). 0: no region.

    These are the regions of at least `min_area` pixels, and the largest one of each class whatever its size.
    label: (H, W) uint8; 255 belongs to no region. Pixels that touch at a corner are connected.
    """
    number = np.zeros(label.shape, np.int32)
    classes: list[int] = []
    for value in np.flatnonzero(np.bincount(label.ravel(), minlength=256)[:IGNORE]).tolist():
        _, numbers, stats, _ = cv2.connectedComponentsWithStats((label == value).view(np.uint8), connectivity=8)
        areas = stats[1:, cv2.CC_STAT_AREA]
        kept = areas >= min_area
        kept[np.argmax(areas)] = True
        renumbered = np.zeros(len(stats), np.int32)
        renumbered[1:][kept] = np.arange(len(classes) + 1, len(classes) + 1 + int(kept.sum()))
        number += renumbered[numbers]
        classes += [value] * int(kept.sum())
    return number, classes


def depth_inside(number: np.ndarray) -> np.ndarray:
    """Return the distance in pixels to the nearest border pixel of the own region, (H, W) float32; 0 on the border.

    number: as find_regions() returns it. A border pixel has a neighbour to the left, right, top or bottom that belongs
    to another region or lies outside the image. All pixels closer than the depth belong to the same region.
    """
    padded = np.pad(number, 1)
    inside = number > 0
    for neighbour in (padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]):
        inside &= neighbour == number
    return cv2.distanceTransform(inside.view(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)


def skeleton(inside: np.ndarray) -> np.ndarray:
    """Return the pixels of a region's skeleton, (N, 2) int64: rows and columns. inside: (H, W) bool."""
    return np.argwhere(import_extra("skimage.morphology").skeletonize(inside))


def longest_path(pixels: np.ndarray) -> np.ndarray:
    """Return the longest path in a skeleton, (L, 2) int64: rows and columns from one end to the other.

    pixels: (N, 2) int64, the rows and columns of one connected skeleton, N > 0. It is searched as a tree, that of a
    breadth-first search from the first pixel, so that a path may go around a loop.
    """
    sparse, graphs, spatial = (import_extra(f"scipy.{name}") for name in ("sparse", "sparse.csgraph", "spatial"))
    pairs = spatial.KDTree(pixels).query_pairs(1.5, output_type="ndarray")  # beside each other, or across a corner
    steps = np.hypot(*(pixels[pairs[:, 0]] - pixels[pairs[:, 1]]).T)
    graph = sparse.csr_array((steps, pairs.T), shape=(len(pixels), len(pixels)))
    tree = graphs.breadth_first_tree(graph, 0, directed=False)
    # The pixel that is farthest from any other one in a tree is an end of the longest path.
    end = np.argmax(graphs.dijkstra(tree, directed=False, indices=0))
    distance, before = graphs.dijkstra(tree, directed=False, indices=end, return_predecessors=True)
    assert np.isfinite(distance).all(), "the skeleton has several parts"
    path = [int(np.argmax(distance))]
    while before[path[-1]] >= 0:
        path.append(int(before[path[-1]]))
    return pixels[path]
