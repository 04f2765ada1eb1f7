"""Thin all regions of an image to their skeletons at once, and find the longest path in each skeleton."""

import math

import numpy as np

# Neighbours of a pixel, clockwise from the one above, as (row, column).
AROUND = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
BITS = (1 << np.arange(8)).astype(np.uint8)  # of these neighbours, in a code


def _removable() -> np.ndarray:
    """Return (2, 256) bool: whether Guo and Hall's two passes remove a pixel, by the bits of its neighbours.

    Guo, Hall: Parallel thinning with two-subiteration algorithms, Communications of the ACM 32(3), 1989, algorithm A1:
    the neighbours in clockwise order from above are p2 to p9.
    """
    codes = np.arange(256)
    p2, p3, p4, p5, p6, p7, p8, p9 = ((codes >> bit) & 1 == 1 for bit in range(8))
    branches = sum(
        (~first & (second | third)).astype(int)
        for first, second, third in ((p2, p3, p4), (p4, p5, p6), (p6, p7, p8), (p8, p9, p2))
    )
    pairs = [
        sum((first | second).astype(int) for first, second in pairing)
        for pairing in (((p9, p2), (p3, p4), (p5, p6), (p7, p8)), ((p2, p3), (p4, p5), (p6, p7), (p8, p9)))
    ]
    fewest = np.minimum(*pairs)
    inner = (branches == 1) & (fewest >= 2) & (fewest <= 3)
    return np.stack([inner & ~((p6 | p7 | ~p9) & p8), inner & ~((p2 | p3 | ~p5) & p4)])


REMOVABLE = _removable()


def thin(number: np.ndarray) -> np.ndarray:
    """Return the pixels of the regions' skeletons, (H, W) bool: one pixel wide, and connected as their regions are.

    number: (H, W) int32, the region of each pixel, 0 for none. A pass looks only at pixels that have lost a neighbour
    since the pass before, so that the time grows with the number of pixels and not with the width of the regions.
    """
    height, width = number.shape[0] + 2, number.shape[1] + 2
    region = np.pad(number, 1).ravel()
    around = np.array([row * width + column for row, column in AROUND])
    opposite = np.roll(BITS, 4)  # the bit that a pixel has in the code of its neighbour
    inside = np.flatnonzero(region)
    code = np.zeros(region.size, np.uint8)  # which neighbours of a pixel are left of its region
    is_own = region[inside[:, None] + around] == region[inside, None]
    code[inside] = np.packbits(is_own, axis=1, bitorder="little")[:, 0]
    left = region > 0
    stamp = np.zeros(region.size, np.int64)
    border = inside[code[inside] < 255]
    waiting = [border, border]
    while len(waiting[0]) or len(waiting[1]):
        for half in (0, 1):
            gone = waiting[half][REMOVABLE[half][code[waiting[half]]]]
            order = np.arange(len(gone))
            stamp[gone] = order
            gone = gone[stamp[gone] == order]  # each once
            is_near = (code[gone, None] & BITS) > 0
            near = (gone[:, None] + around)[is_near]
            np.subtract.at(code, near, np.broadcast_to(opposite, is_near.shape)[is_near])
            code[gone], left[gone] = 0, False
            waiting[half] = near
            waiting[1 - half] = np.concatenate([waiting[1 - half], near])
    return left.reshape(height, width)[1:-1, 1:-1]


def longest_path(pixels: np.ndarray) -> np.ndarray:
    """Return the longest path in a skeleton, (L, 2) int64: rows and columns from one end to the other.

    pixels: (N, 2) int64, the rows and columns of one connected skeleton, N > 0. It is searched as a tree, that of a
    breadth-first search from the first pixel, so that a path may go around a loop.
    """
    size = pixels.max(axis=0) + 3
    grid = np.full(size, -1)
    rows, columns = pixels.T + 1
    grid[rows, columns] = np.arange(len(pixels))
    nearest = sorted(AROUND, key=lambda step: abs(step[0]) + abs(step[1]))  # so that a way has few corners
    beside = np.stack([grid[rows + row, columns + column] for row, column in nearest], axis=1)
    neighbours = beside[beside >= 0].tolist()
    sizes = np.broadcast_to([math.hypot(*step) for step in nearest], beside.shape)[beside >= 0].tolist()
    ends = [0, *np.cumsum((beside >= 0).sum(axis=1)).tolist()]
    seen = bytearray(len(pixels))
    seen[0] = 1
    order, parent, step_to = [0], [-1], [0.0]  # by place in the search
    for place, pixel in enumerate(order):
        for entry in range(ends[pixel], ends[pixel + 1]):
            neighbour = neighbours[entry]
            if not seen[neighbour]:
                seen[neighbour] = 1
                order.append(neighbour)
                parent.append(place)
                step_to.append(sizes[entry])
    assert len(order) == len(pixels), "the skeleton has several parts"
    # From the leaves up: the two longest ways down from each pixel, and the places where they begin.
    longest, second = [0.0] * len(order), [0.0] * len(order)
    ways: list[list[int]] = [[-1, -1] for _ in order]
    best, top = -1.0, 0
    for place in range(len(order) - 1, -1, -1):
        if longest[place] + second[place] > best:
            best, top = longest[place] + second[place], place
        above, length = parent[place], longest[place] + step_to[place]
        if above >= 0 and length > longest[above]:
            longest[above], second[above] = length, longest[above]
            ways[above] = [place, ways[above][0]]
        elif above >= 0 and length > second[above]:
            second[above], ways[above][1] = length, place
    arms: list[list[int]] = [[], []]
    for arm, place in zip(arms, ways[top], strict=True):
        while place >= 0:
            arm.append(order[place])
            place = ways[place][0]
    return pixels[[*reversed(arms[0]), order[top], *arms[1]]]
