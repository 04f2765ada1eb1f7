"""The skeleton of a region and the longest path in it, by scikit-image and SciPy (the extra `scribbles`)."""

import importlib
from types import ModuleType

import numpy as np

from support import shell
from support.errors import UserError


def import_extra(name: str) -> ModuleType:
    """Import and return a module that only drawing strokes needs. Raises UserError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"drawing strokes needs packages that are missing ({error}): {shell.install_command('scribbles')}"
        ) from None


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
