"""Draw shapes by one rule: a pixel belongs to a shape if its centre lies inside.

Coordinates are in pixels from the image's top left corner, so the pixel in row r and column c has its centre at
(c + 0.5, r + 0.5). A centre on a left or top edge lies inside, on a right or bottom edge outside: shapes that share an
edge neither overlap nor leave a gap. What lies outside the image is cut off.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from support.errors import InputError

MAX_CROSSINGS = 2**22  # of edges and rows that are computed at once
LINE_WIDTH, STROKE_WIDTH = 10, 3  # pixels; of lines in masks and in scribbles, unless --line_width is set
LIMIT = 1e7  # pixels; a coordinate beyond is a fault, and would overflow


class Patch(NamedTuple):
    """Pixels of an image: mask (height, width) bool, whose pixel [0, 0] is pixel [top, left] of the image.

    is_thin: whether they belong to a polygon that is less than 2 pixels wide on average.
    """

    top: int
    left: int
    mask: np.ndarray
    is_thin: bool = False


_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?")

EMPTY = Patch(0, 0, np.zeros((0, 0), bool))


def number(value: object) -> float:
    """Return a number of JSON, or its text in decimal digits. Raises ValueError for others, such as true or "1_2"."""
    is_text = isinstance(value, str) and _NUMBER.fullmatch(value.strip())
    if not is_text and type(value) not in (int, float):
        raise ValueError
    return float(value)  # type: ignore[arg-type]


def read_points(values: Any, where: str) -> np.ndarray:
    """Return [[x, y], ...] from a file as a float64 array (N, 2).

    Raises InputError, naming `where`, if the values are not points, or not finite.
    """
    try:
        points = np.array([[*map(number, pair)] if isinstance(pair, list) else number(pair) for pair in values])
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{where}: coordinates that are not numbers") from None
    if points.shape == (0,):  # of []
        points = points.reshape(0, 2)
    if points.ndim != 2 or points.shape[1] != 2:
        raise InputError(f"{where}: coordinates that are not pairs of x and y")
    if not (np.abs(points) < LIMIT).all():  # False for NaN, too
        raise InputError(f"{where}: a coordinate that is not a finite number of pixels")
    return points


def fill(ring: np.ndarray, size: tuple[int, int]) -> Patch:
    """Return the pixels inside a closed line through points (N, 2) by the even-odd rule.

    size: (height, width) of the image. The patch may be empty.
    """
    start, end = ring, np.roll(ring, -1, axis=0)
    # An edge that two shapes share gives the same crossings in both, to the last bit, if both go from top to bottom.
    swap = start[:, 1] > end[:, 1]
    start, end = np.where(swap[:, None], end, start), np.where(swap[:, None], start, end)
    # The edge crosses the centre line of these rows: y0 <= row + 0.5 < y1.
    first, last = (np.clip(np.ceil(points[:, 1] - 0.5), 0, size[0]).astype(np.int64) for points in (start, end))
    count = last - first
    if not count.any():
        return EMPTY
    top, height = int(first[count > 0].min()), int(last.max() - first[count > 0].min())
    left, right = np.clip((ring[:, 0].min() - 1, ring[:, 0].max() + 2), 0, size[1]).astype(np.int64).tolist()
    width = right - left + 1
    crossings = np.zeros(height * width, np.int64)
    # A small file can have a million edges that each cross every row of the image, so take them part by part.
    ends = np.searchsorted(np.cumsum(count), np.arange(MAX_CROSSINGS, count.sum(), MAX_CROSSINGS))
    for part in np.split(np.arange(len(start)), ends):
        edge = np.repeat(part, count[part])
        row = np.arange(len(edge)) - np.repeat(np.cumsum(count[part]) - count[part], count[part]) + first[edge]
        (x0, y0), (x1, y1) = start[edge].T, end[edge].T
        x = x0 + (row + 0.5 - y0) / (y1 - y0) * (x1 - x0)
        column = np.clip(np.ceil(x - 0.5), 0, size[1]).astype(np.int64)  # the first pixel right of the crossing
        crossings += np.bincount((row - top) * width + column - left, minlength=len(crossings))
    inside = (np.cumsum(crossings.reshape(height, width), axis=1) & 1).astype(bool)
    mask = inside[:, :-1]  # all crossings lie left of the last column: it is outside
    # A strip of width w and length l has w * l pixels and the perimeter 2 * (w + l): with w = 2, perimeter - 4 pixels.
    return Patch(top, left, mask, bool(mask.sum() < _perimeter(ring, size) - 4))


def _perimeter(ring: np.ndarray, size: tuple[int, int]) -> float:
    """Return the length, in the image or up to half a pixel outside, of a closed line through points (N, 2)."""
    step, far = np.roll(ring, -1, axis=0) - ring, np.array(size[::-1]) + 0.5
    with np.errstate(divide="ignore", invalid="ignore"):  # where each edge crosses the borders, as shares of the edge
        crossings = np.sort(np.nan_to_num([(-0.5 - ring) / step, (far - ring) / step]), axis=0)
    share = np.minimum(crossings[1].min(axis=1), 1) - np.maximum(crossings[0].max(axis=1), 0)
    return float((np.hypot(*step.T) * np.maximum(share, 0)).sum())


def rectangle(x0: float, y0: float, x1: float, y1: float) -> np.ndarray:
    """Return the ring (4, 2) of a rectangle between two opposite corners."""
    return np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], np.float64)


def turned(ring: np.ndarray, degrees: float, centre: np.ndarray | None = None) -> np.ndarray:
    """Return the points (N, 2) turned clockwise, as seen on the screen, about `centre` or else about their mean."""
    angle, centre = np.deg2rad(degrees), ring.mean(axis=0) if centre is None else centre
    turn = np.array([(np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))])
    return (ring - centre) @ turn + centre if degrees else ring


def ellipse(
    centre: tuple[float, float], radii: tuple[float, float], size: tuple[int, int], degrees: float = 0
) -> Patch:
    """Return the pixels whose centre lies in an ellipse, turned clockwise about its centre by `degrees`."""
    if min(radii) <= 0:
        return EMPTY
    top, left, area = _grid(np.array([centre]), max(radii), size)
    angle = np.deg2rad(degrees)
    x, y = area[0] - centre[0], area[1] - centre[1]
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    return Patch(top, left, (along / radii[0]) ** 2 + (across / radii[1]) ** 2 <= 1)


def stroke(points: np.ndarray, width: float, size: tuple[int, int]) -> Patch:
    """Return the pixels whose centre is at most width / 2 from the open line through `points`; one point is a disc."""
    if not len(points):
        return EMPTY
    reach = width / 2
    top, left, (x, y) = _grid(points, reach, size)
    mask = np.zeros(np.broadcast_shapes(x.shape, y.shape), bool)
    for start, end in zip(points, points[1:] if len(points) > 1 else points, strict=False):
        row, column, (x, y) = _grid(np.stack([start, end]), reach, size)
        (x0, y0), (dx, dy) = start, end - start
        along = np.clip(((x - x0) * dx + (y - y0) * dy) / ((dx * dx + dy * dy) or 1), 0, 1)
        near = (x - x0 - along * dx) ** 2 + (y - y0 - along * dy) ** 2 <= reach**2
        mask[row - top : row - top + near.shape[0], column - left : column - left + near.shape[1]] |= near
    return Patch(top, left, mask)


def _grid(points: np.ndarray, reach: float, size: tuple[int, int]) -> tuple[int, int, tuple[np.ndarray, np.ndarray]]:
    """Return (top, left, (x (1, W), y (H, 1))): the pixel centres at most `reach` outside the box around the points."""
    low = np.clip(np.floor(points.min(axis=0) - reach - 0.5), 0, size[::-1]).astype(np.int64)
    high = np.clip(np.ceil(points.max(axis=0) + reach + 0.5), low, size[::-1]).astype(np.int64)
    return int(low[1]), int(low[0]), (np.arange(low[0], high[0])[None] + 0.5, np.arange(low[1], high[1])[:, None] + 0.5)


def place(mask: np.ndarray, top: int, left: int, size: tuple[int, int]) -> Patch:
    """Return the Patch of a mask (height, width) bool, cut off at the image's borders."""
    cut = mask[max(0, -top) : max(0, size[0] - top), max(0, -left) : max(0, size[1] - left)]
    return Patch(max(top, 0), max(left, 0), cut)


def from_runs(runs: Sequence[int | str], num_pixels: int, where: str) -> np.ndarray:
    """Return a mask (num_pixels,) bool of run lengths that are 0, 1, 0, ... in turn, beginning with a run of zeros.

    Raises InputError if the lengths do not fit.
    """
    try:
        lengths = np.array([*map(number, runs)])
    except (ValueError, OverflowError):
        raise InputError(f"{where}: run lengths that are not whole numbers") from None
    if (is_wrong := ~(lengths >= 0) | (lengths != np.floor(lengths))).any():
        raise InputError(f"{where}: a run length of {lengths[is_wrong][0]:g} pixels")
    if lengths.sum() != num_pixels:
        raise InputError(f"{where}: run lengths of {lengths.sum():.0f} pixels in all, but the mask has {num_pixels}")
    return np.repeat(np.arange(len(lengths)) % 2 == 1, lengths.astype(np.int64))
