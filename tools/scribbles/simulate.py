"""Simulate scribbles from a dense mask: a stroke along the interior of each region.

A stroke follows the longest path in the region's skeleton, as a person draws along an object. It is smoothed and
deviates to the sides, but stays in the discs around the path that fit into the region: it never leaves its class.
Skeletons need scikit-image and SciPy (the extra `scribbles`).
"""

import hashlib
import math
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np

from flags.declare import flag
from support import shell
from support.labels import IGNORE

import_extra = partial(shell.import_extra, extra="scribbles", feature="drawing strokes")

REACH = 0.9  # share of the way from an end of the skeleton to the border by which a stroke is longer
SMOOTHNESS = 0.3  # standard deviation of the smoothing, as a share of the median depth along the path
SHALLOW = 0.2  # a background stroke ends where the depth falls below this share of the largest one in its region
MARGIN = 0.75  # pixels; rounding moves a point by up to 0.71
SPACING = 0.25  # pixels between the points that are drawn
THIN = 0.01  # times the image's shorter side: half the width of regions that are skipped with probability `skip`


@dataclass(frozen=True)
class Style:
    """Strokes."""

    background: str = flag("0", "class whose strokes stay deep inside; none: no class", choices=("0", "none"))
    min_area: int = flag(
        200, "pixels: smaller regions get no stroke, except the largest one of each class in an image", ge=1, le=2**31
    )
    length: float = flag(1.0, "share of the path through a region that is drawn", gt=0, le=1)
    max_length: float = flag(0.0, "longest stroke in pixels; 0: no limit", ge=0, le=2**31)
    width: int = flag(3, "width of the strokes in pixels", ge=1, le=255)
    wiggle: float = flag(0.7, "random deviation to the sides, at most this share of the way to the border", ge=0, le=1)
    skip: float = flag(
        0.0,
        "probability that a thin region, such as a pole, gets no stroke; wider ones are skipped less often",
        ge=0,
        le=0.99,
    )
    per_class: int = flag(0, "strokes of a class in an image, at most; 0: no limit", ge=0, le=2**31)

    @property
    def background_class(self) -> int | None:
        """Return --background as a class number; None for "none"."""
        return None if self.background == "none" else int(self.background)


def draw_scribble(label: np.ndarray, style: Style, seed: int, name: str) -> np.ndarray:
    """Return a scribble, (H, W) uint8: the class on each stroke, 255 elsewhere.

    label: dense mask, (H, W) uint8, 255 = ignore. name: the image's; seed and name give the random numbers, so that
    the result depends on neither the order of images nor the number of processes.
    """
    scribble = np.full(label.shape, IGNORE, np.uint8)
    regions = find_regions(label, style.min_area)
    depths = [depth_inside(inside) for _, _, inside in regions]
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).digest()
    seeds = [seed, int.from_bytes(digest[:8], "big")]
    rngs = [np.random.default_rng([*seeds, index]) for index in range(len(regions))]
    drawn = _chosen(regions, depths, [rng.random() for rng in rngs], min(label.shape), style)
    for (value, box, inside), depth, rng, is_drawn in zip(regions, depths, rngs, drawn, strict=True):
        if not is_drawn:
            continue
        pixels = np.argwhere(import_extra("skimage.morphology").skeletonize(inside))  # (N, 2) int64: rows and columns
        if not len(pixels):  # thinning can use up a region of a few pixels
            pixels = np.argwhere(inside & (depth == depth[inside].max()))[:1]
        if value == style.background_class:
            pixels = _deep_part(pixels, depth)
        curve = _interior(longest_path(pixels), depth, style, rng)
        stroke = _drawn(curve, inside.shape, style.width)
        scribble[box][stroke & inside] = value
    return scribble


def find_regions(label: np.ndarray, min_area: int) -> list[tuple[int, tuple[slice, slice], np.ndarray]]:
    """Return the regions that may get a stroke: (class, box as two slices, mask of the region in the box).

    These are the regions of at least `min_area` pixels, and the largest one of each class whatever its size. The masks
    are (h, w) bool. label: (H, W) uint8; 255 belongs to no region. Pixels that touch at a corner are connected.
    """
    regions = []
    for value in np.flatnonzero(np.bincount(label.ravel(), minlength=256)[:IGNORE]).tolist():
        _, number, stats, _ = cv2.connectedComponentsWithStats((label == value).view(np.uint8), connectivity=8)
        areas = stats[1:, cv2.CC_STAT_AREA]
        for index in np.flatnonzero((areas >= min_area) | (np.arange(len(areas)) == areas.argmax())) + 1:
            left, top, width, height, _ = stats[index].tolist()
            box = slice(top, top + height), slice(left, left + width)
            regions.append((value, box, number[box] == index))
    return regions


def depth_inside(inside: np.ndarray) -> np.ndarray:
    """Return the distance in pixels to the nearest border pixel of a region, (h, w) float32; 0 there and outside.

    inside: a region in its box, as find_regions() returns it. A border pixel has a neighbour to the left, right, top or
    bottom outside the region. All pixels closer than the depth belong to the region.
    """
    cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
    inner = cv2.erode(inside.view(np.uint8), cross, borderType=cv2.BORDER_CONSTANT, borderValue=0)
    return cv2.distanceTransform(inner, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)


def longest_path(pixels: np.ndarray) -> np.ndarray:
    """Return the longest path in a skeleton, (L, 2) int64: rows and columns from one end to the other.

    pixels: (N, 2) int64, the rows and columns of one connected skeleton, N > 0. A breadth-first search from the first
    pixel makes it a tree, which cuts each loop open; the result is the longest path in this tree.
    """
    sparse, graphs, spatial = (import_extra(f"scipy.{name}") for name in ("sparse", "sparse.csgraph", "spatial"))
    pairs = spatial.KDTree(pixels).query_pairs(1.5, output_type="ndarray")  # beside each other, or across a corner
    steps = np.hypot(*(pixels[pairs[:, 0]] - pixels[pairs[:, 1]]).T)
    graph = sparse.csr_array((steps, pairs.T), shape=(len(pixels), len(pixels)))
    tree = graphs.breadth_first_tree(graph, 0, directed=False)
    # From any pixel of a tree, the farthest one is an end of a longest path.
    end = np.argmax(graphs.dijkstra(tree, directed=False, indices=0))
    distance, before = graphs.dijkstra(tree, directed=False, indices=end, return_predecessors=True)
    assert np.isfinite(distance).all(), "the skeleton has several parts"
    path = [int(np.argmax(distance))]
    while before[path[-1]] >= 0:
        path.append(int(before[path[-1]]))
    return pixels[path]


def _chosen(regions: list, depths: list[np.ndarray], draws: list[float], shorter_side: int, style: Style) -> list[bool]:
    """Return which regions get a stroke.

    A region is skipped with probability skip ** (d / (THIN * shorter side)), where d is 1 more than its largest depth:
    people skip thin things first. The largest others of each class are drawn, at most `per_class`.
    """
    areas, deepest = np.array([inside.sum() for _, _, inside in regions]), np.array([depth.max() for depth in depths])
    skipped = np.array(draws) < style.skip ** ((deepest.astype(float) + 1) / (THIN * shorter_side))
    drawn, count = [False] * len(regions), style.per_class or len(regions)
    left = dict.fromkeys((value for value, *_ in regions), count)
    for index in np.argsort(-areas, kind="stable"):
        value = regions[index][0]
        if not skipped[index] and left[value]:
            drawn[index], left[value] = True, left[value] - 1
    return drawn


def _deep_part(pixels: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Return the part of a skeleton (N, 2) around its deepest pixel that is nowhere shallower than SHALLOW says."""
    depths = depth[pixels[:, 0], pixels[:, 1]]
    deep = np.zeros(depth.shape, np.uint8)
    deep[tuple(pixels[depths >= SHALLOW * depths.max()].T)] = 1
    _, part = cv2.connectedComponents(deep, connectivity=8)
    return np.argwhere(part == part[tuple(pixels[np.argmax(depths)])])


def _interior(path: np.ndarray, depth: np.ndarray, style: Style, rng: np.random.Generator) -> np.ndarray:
    """Return the points (N, 2) float64, row and column, of the stroke along a path (L, 2) in a region.

    depth: (H, W) of the region's box, as depth_inside() returns it.
    """
    radius = depth[path[:, 0], path[:, 1]].astype(np.float64)
    centres = path.astype(np.float64)
    angle = rng.uniform(0, 2 * np.pi)  # of a path without a direction
    ends = _extension(centres, radius[0], angle), _extension(centres[::-1], radius[-1], angle + np.pi)
    points = np.concatenate([ends[0][::-1], centres, ends[1]])
    added = len(ends[0]), len(ends[1])
    centres, radius = np.pad(centres, (added, (0, 0)), mode="edge"), np.pad(radius, added, mode="edge")
    points = _smooth(points + _deviation(points, radius, style.wiggle, rng), SMOOTHNESS * float(np.median(radius)))
    # Into the largest disc around the skeleton's pixel that fits into the region.
    offset = points - centres
    size = np.maximum(np.hypot(*offset.T), 1e-9)
    points = centres + offset * np.minimum(1, np.maximum(radius - MARGIN, 0) / size)[:, None]
    longest = style.max_length / max(1.0, float(_arc(points)[-1])) if style.max_length else 1.0
    return _part(points, min(style.length, longest), rng.random())


def _extension(points: np.ndarray, radius: float, angle: float) -> np.ndarray:
    """Return points, one pixel apart, that go on from points[0] in the direction in which the line arrives there."""
    before = points[min(len(points) - 1, max(3, math.ceil(radius)))]
    step = points[0] - before if len(points) > 1 else np.array([math.sin(angle), math.cos(angle)])
    step = step / max(np.hypot(*step), 1e-9)
    return points[0] + np.arange(1, int(REACH * radius) + 1)[:, None] * step


def _deviation(points: np.ndarray, radius: np.ndarray, wiggle: float, rng: np.random.Generator) -> np.ndarray:
    """Return random offsets (N, 2) to the sides of a line, up to `wiggle` times the radius, which vary smoothly."""
    spacing = max(8.0, 2 * float(np.median(radius)))
    knots = np.arange(0, len(points) + spacing, spacing)
    amount = wiggle * radius * np.interp(np.arange(len(points)), knots, rng.uniform(-1, 1, len(knots)))
    if len(points) < 2:
        return np.zeros_like(points)
    along = np.gradient(_smooth(points, 0.5 * spacing), axis=0)
    along /= np.maximum(np.hypot(*along.T), 1e-9)[:, None]
    return np.stack([along[:, 1], -along[:, 0]], axis=1) * amount[:, None]


def _smooth(points: np.ndarray, sigma: float) -> np.ndarray:
    """Return points (N, 2) convolved with a Gaussian; the ends stay where they are."""
    reach = math.ceil(3 * sigma)
    if len(points) < 3 or reach < 1:
        return points
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    padded = np.pad(points, ((reach, reach), (0, 0)), mode="reflect", reflect_type="odd")
    return np.stack([np.convolve(column, kernel / kernel.sum(), mode="valid") for column in padded.T], axis=1)


def _part(points: np.ndarray, share: float, position: float) -> np.ndarray:
    """Return a share of the line by arc length. position: 0 begins with the first point, 1 ends with the last one."""
    arc = _arc(points)
    first = position * (1 - share) * arc[-1]
    start = int(np.argmin(np.abs(arc - first)))
    stop = int(np.argmin(np.abs(arc - first - share * arc[-1])))
    return points[start : stop + 1]


def _drawn(points: np.ndarray, size: tuple[int, int], width: int) -> np.ndarray:
    """Return the pixels whose centre is at most width / 2 from a line, (H, W) bool.

    points: (N, 2) row and column, where whole numbers are centres. The pixel around each point is drawn in any case.
    """
    drawn = np.zeros(size, bool)
    arc = _arc(points)
    places = np.linspace(0, arc[-1], math.ceil(arc[-1] / SPACING) + 1)
    points = np.stack([np.interp(places, arc, column) for column in points.T], axis=1)
    near = np.arange(-(width // 2) - 1, width // 2 + 2)
    rows, columns = (np.round(column).astype(int)[:, None] + near for column in points.T)
    far = (rows - points[:, :1])[:, :, None] ** 2 + (columns - points[:, 1:])[:, None] ** 2
    inside = ((rows >= 0) & (rows < size[0]))[:, :, None] & ((columns >= 0) & (columns < size[1]))[:, None]
    is_hit = (far <= max(width / 2, MARGIN) ** 2) & inside
    number, row, column = np.nonzero(is_hit)
    drawn[rows[number, row], columns[number, column]] = True
    return drawn


def _arc(points: np.ndarray) -> np.ndarray:
    """Return the length of a line up to each of its points, (N,)."""
    return np.concatenate([[0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))])
