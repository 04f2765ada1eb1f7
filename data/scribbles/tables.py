"""Text tables of what was measured: a column for each folder of scribbles, or a row for each class."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from data.scribbles.figures import NEAR, ClassFigures, Figures

SPREAD = (0.05, 0.95)  # quantiles; of a few images the least and the largest value


class Column(NamedTuple):
    """A folder of scribbles in numbers. title: of the folder. images: the figures of each."""

    title: str
    images: list[Figures]


# A row of the first table: its title, and the value of each image, or of each class of each image; None: left out.
Row = tuple[str, Callable[[list[Figures]], Iterable[float | None]]]


def summary_rows(columns: list[Column], background: int | None) -> list[list[str]]:
    """Return the cells of all figures: a row for each figure, a column for each folder.

    background: class number, or None if every class is an object.
    """

    def of_background(number: int, _: ClassFigures) -> bool:
        return number == background

    def of_objects(number: int, _: ClassFigures) -> bool:
        return number != background

    def of_thin(number: int, item: ClassFigures) -> bool:
        return number != background and item.thin

    table: list[Row] = [
        ("pixels on a stroke, %", lambda images: (100 * image.labelled / image.size for image in images)),
        ("stroke pixels on another class, %", lambda images: (_share(image, image.wrong) for image in images)),
        ("stroke pixels on void (255), %", lambda images: (_share(image, image.void) for image in images)),
        ("background strokes: share of their area, %", _of_classes(_covered, of_background)),
        ("  depth, % of the largest", _of_classes(_depth, of_background)),
        ("object strokes: share of their area, %", _of_classes(_covered, of_objects)),
        ("  depth, % of the largest", _of_classes(_depth, of_objects)),
        (f"  within {NEAR} px of the border, %", _of_classes(_near, of_objects)),
        (f"  of thin objects, within {NEAR} px, %", _of_classes(_near, of_thin)),
        ("stroke pixels / square root of the area", _of_classes(_scale_free, lambda *_: True)),
        ("strokes an image", lambda images: (sum(item.strokes for item in image.classes.values()) for image in images)),
        ("classes without a stroke, an image", lambda images: map(_num_lacking, images)),
    ]
    head = [["", *(column.title for column in columns)], ["images", *(str(len(column.images)) for column in columns)]]
    return [*head, *([title, *(_spread(values(column.images)) for column in columns)] for title, values in table)]


def class_rows(images: list[Figures], names: list[str]) -> list[list[str]]:
    """Return the cells of all classes: a row for each. names: of the classes; missing ones are their numbers."""
    rows = [["class", "name", "images", "without a stroke", "strokes", "pixels", "share of area", "depth", "near"]]
    for number in sorted({number for image in images for number in image.classes}):
        items = [image.classes[number] for image in images if number in image.classes]
        pixels, area, near = (sum(getattr(item, key) for item in items) for key in ("pixels", "area", "near"))
        depths = [item.depth for item in items if item.depth is not None]
        name = names[number] if number < len(names) else str(number)
        counts = [len(items), sum(not item.pixels for item in items), sum(item.strokes for item in items), pixels]
        depth = f"{np.mean(depths):.0%}" if depths else "-"
        shares = [f"{pixels / area:.2%}", depth, f"{near / pixels:.0%}" if pixels else "-"] if area else ["-"] * 3
        rows.append([str(number), name, *map(str, counts), *shares])
    return rows


def aligned(rows: list[list[str]], alignments: str) -> list[str]:
    """Return rows of cells as lines of text. alignments: "<" or ">" for each column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map("{:{}{}}".format, row, alignments, widths)).rstrip() for row in rows]


def _of_classes(
    value: Callable[[ClassFigures], float | None], keep: Callable[[int, ClassFigures], bool]
) -> Callable[[list[Figures]], Iterator[float | None]]:
    """Return a function that yields the value of each class with a stroke, image by image."""
    return lambda images: (
        value(item) for image in images for number, item in image.classes.items() if item.pixels and keep(number, item)
    )


def _share(image: Figures, count: int | None) -> float | None:
    return None if count is None or not image.labelled else 100 * count / image.labelled


def _covered(item: ClassFigures) -> float | None:
    return 100 * item.pixels / item.area if item.area else None


def _depth(item: ClassFigures) -> float | None:
    return None if item.depth is None else 100 * item.depth


def _near(item: ClassFigures) -> float | None:
    return 100 * item.near / item.pixels if item.area else None


def _scale_free(item: ClassFigures) -> float | None:
    return item.pixels / item.area**0.5 if item.area else None


def _num_lacking(image: Figures) -> int | None:
    return None if image.wrong is None else sum(not item.pixels for item in image.classes.values())


def _spread(values: Iterable[float | None]) -> str:
    """Return "mean (5 % .. 95 %)" of the values that are not None, "-" without any."""
    known = np.array([value for value in values if value is not None])
    if not len(known):
        return "-"
    low = np.quantile(known, SPREAD[0], method="lower")
    high = np.quantile(known, SPREAD[1], method="higher")
    return f"{known.mean():.2f} ({low:.2f} .. {high:.2f})"
