"""Text tables of what was measured: a column for each folder of scribbles, or a row for each class."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from tools.scribbles.figures import NEAR, ClassFigures, Figures

SPREAD = (0.05, 0.95)  # quantiles; of a few images the least and the largest value


class Column(NamedTuple):
    """A folder of scribbles in numbers.

    title: of the folder. images: the figures of each. background: class number, None if every class is an object.
    """

    title: str
    images: list[Figures]
    background: int | None


# A row of the first table: its title, and the value of each image, or of each class of each image; None: left out.
Row = tuple[str, Callable[[Column], Iterable[float | None]]]


def summary_rows(columns: list[Column]) -> list[list[str]]:
    """Return the cells of all figures: a row for each figure, a column for each folder."""
    table: list[Row] = [
        ("pixels on a stroke, %", lambda column: (100 * image.labelled / image.size for image in column.images)),
        ("stroke pixels on another class, %", lambda column: (_share(image, image.wrong) for image in column.images)),
        ("stroke pixels on void (255), %", lambda column: (_share(image, image.void) for image in column.images)),
        ("background strokes: share of their area, %", _of_classes(_covered, is_object=False)),
        ("  depth, % of the largest", _of_classes(_depth, is_object=False)),
        ("object strokes: share of their area, %", _of_classes(_covered)),
        ("  depth, % of the largest", _of_classes(_depth)),
        (f"  within {NEAR} px of the border, %", _of_classes(_near)),
        (f"  of thin objects, within {NEAR} px, %", _of_classes(lambda item: _near(item) if item.thin else None)),
        ("stroke pixels / square root of the area", lambda column: map(_scale_free, _stroked(column))),
        ("strokes an image", lambda column: map(_num_strokes, column.images)),
        ("classes without a stroke, an image", lambda column: map(_num_lacking, column.images)),
    ]
    head = [["", *(column.title for column in columns)], ["images", *(str(len(column.images)) for column in columns)]]
    return [*head, *([title, *(_spread(values(column)) for column in columns)] for title, values in table)]


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


def _of_classes(value: Callable[[ClassFigures], float | None], *, is_object: bool = True) -> Callable:
    """Return a function that yields the value of each object, or of each background, that has a stroke in an image."""
    return lambda column: map(value, _stroked(column, is_object))


def _stroked(column: Column, is_object: bool | None = None) -> Iterator[ClassFigures]:
    """Yield each class with a stroke, image by image; all of them, only objects (True), or only the background."""
    for image in column.images:
        for number, item in image.classes.items():
            if item.pixels and is_object in (None, number != column.background):
                yield item


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


def _num_strokes(image: Figures) -> int:
    return sum(item.strokes for item in image.classes.values())


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
