"""python -m data.scribbles stats: figures of a folder of scribbles, beside those of another folder."""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data.arguments import Parser
from data.classes import read_classes
from data.images import read_label
from data.processes import work_on
from data.scribbles.figures import NEAR, ClassFigures, Figures, measure
from data.scribbles.folders import find_labels
from errors import UserError
from labels import IGNORE

SPREAD = (0.05, 0.95)  # quantiles; of a few images the least and the largest value
EPILOG = f"""A row has the mean and, in brackets, the values that 5 and 95 percent of the images (or of the classes of the images) do
not exceed. Strokes are connected parts. A class is thin in an image if at least half of its pixels are at most {NEAR} pixels
from its border; the image's edge is no border. Depth is the distance to the border, over the largest one in the region."""


class Column(NamedTuple):
    """A folder of scribbles in numbers. title: of the folder. images: the figures of each."""

    title: str
    images: list[Figures]


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    if args.compare_masks and not args.compare:
        raise UserError(f"--compare_masks {args.compare_masks}: --compare must name the folder of their scribbles")
    background = None if args.background == "none" else 0
    names = read_classes(args.classes, None).names if args.classes else []
    faults: list[str] = []
    folders = [(args.scribbles, args.masks), (args.compare, args.compare_masks)]
    columns = [
        Column(
            str(folder), list(_measure_folder(folder, masks, args.list if number == 0 else None, args.workers, faults))
        )
        for number, (folder, masks) in enumerate(folders)
        if folder
    ]
    for line in faults:
        tqdm.write(line, file=sys.stderr)
    print("\n".join(aligned(summary_rows(columns, background), "<" + ">" * len(columns))))
    for column in columns:
        print(f"\n{column.title}:")
        print("\n".join(aligned(class_rows(column.images, names), "><" + ">" * 7)))
    return 1 if faults else 0


def _measure_folder(
    folder: Path, masks: Path | None, list_file: Path | None, workers: int, faults: list[str]
) -> Iterator[Figures]:
    """Yield the figures of each scribble of a folder; add a line to `faults` for each that cannot be measured."""
    scribbles = find_labels(folder, list_file)
    dense = find_labels(masks) if masks else {}
    missing = [name for name in scribbles if masks and name not in dense]
    faults += [f"{scribbles[name]}: no mask of this name in {masks}: left out" for name in missing]
    pairs = [(path, dense.get(name)) for name, path in scribbles.items() if name not in missing]
    if not pairs:
        raise UserError(f"{masks}: no mask has the name of a scribble in {folder}")
    for result in work_on(_measure_pair, pairs, workers, "image", "measuring"):
        if isinstance(result, str):
            faults.append(result)
        else:
            yield result


def _measure_pair(pair: tuple[Path, Path | None]) -> Figures | str:
    """Return the figures of a scribble file, given its mask file, or a line that says what is wrong."""
    try:
        scribble, mask = (read_label(path, IGNORE) if path else None for path in pair)
    except UserError as error:
        return str(error)
    assert scribble is not None
    if mask is not None and mask.shape != scribble.shape:
        return f"{pair[0]}: {scribble.shape[1]}x{scribble.shape[0]} pixels, but its mask has {mask.shape[1]}x{mask.shape[0]}"
    return measure(scribble, mask)


def summary_rows(columns: list[Column], background: int | None) -> list[list[str]]:
    """Return the table of all figures: a row for each, and a column for each folder. background: class number or None."""

    def images(value: Callable[[Figures], float | None]) -> Callable[[list[Figures]], Iterable[float | None]]:
        return lambda figures: map(value, figures)

    def classes(
        value: Callable[[ClassFigures], float | None], keep: Callable[[int, ClassFigures], bool]
    ) -> Callable[[list[Figures]], Iterable[float | None]]:
        return lambda figures: (
            value(item)
            for image in figures
            for number, item in image.classes.items()
            if item.pixels and keep(number, item)
        )

    def of_strokes(count: int | None, image: Figures) -> float | None:
        return None if count is None or not image.labelled else 100 * count / image.labelled

    def covered(item: ClassFigures) -> float | None:
        return 100 * item.pixels / item.area if item.area else None

    def deep(item: ClassFigures) -> float | None:
        return None if item.depth is None else 100 * item.depth

    def near(item: ClassFigures) -> float | None:
        return 100 * item.near / item.pixels if item.area else None

    def is_object(number: int, _: ClassFigures) -> bool:
        return number != background

    def is_background(number: int, _: ClassFigures) -> bool:
        return number == background

    def lacking(image: Figures) -> float | None:
        return None if image.wrong is None else sum(not item.pixels for item in image.classes.values())

    table: list[tuple[str, Callable[[list[Figures]], Iterable[float | None]]]] = [
        ("pixels on a stroke, %", images(lambda image: 100 * image.labelled / image.size)),
        ("stroke pixels on another class, %", images(lambda image: of_strokes(image.wrong, image))),
        ("stroke pixels on void (255), %", images(lambda image: of_strokes(image.void, image))),
        ("background strokes: share of their area, %", classes(covered, is_background)),
        ("  depth, % of the largest", classes(deep, is_background)),
        ("object strokes: share of their area, %", classes(covered, is_object)),
        ("  depth, % of the largest", classes(deep, is_object)),
        (f"  within {NEAR} px of the border, %", classes(near, is_object)),
        (
            f"  of thin objects, within {NEAR} px, %",
            classes(near, lambda number, item: number != background and item.thin),
        ),
        ("stroke pixels / square root of the area", classes(_scale_free, lambda *_: True)),
        ("strokes an image", images(lambda image: sum(item.strokes for item in image.classes.values()))),
        ("classes of the mask without a stroke, an image", images(lacking)),
    ]
    head = ["", *(column.title for column in columns)]
    counts = ["images", *(str(len(column.images)) for column in columns)]
    return [
        head,
        counts,
        *([title, *(_spread(values(column.images)) for column in columns)] for title, values in table),
    ]


def _scale_free(item: ClassFigures) -> float | None:
    return item.pixels / item.area**0.5 if item.area else None


def _spread(values: Iterable[float | None]) -> str:
    """Return "mean (5 % .. 95 %)" of the values that are not None, "-" without any."""
    known = np.array([value for value in values if value is not None])
    if not len(known):
        return "-"
    low = np.quantile(known, SPREAD[0], method="lower")
    high = np.quantile(known, SPREAD[1], method="higher")
    return f"{known.mean():.2f} ({low:.2f} .. {high:.2f})"


def class_rows(images: list[Figures], names: list[str]) -> list[list[str]]:
    """Return the table of all classes. names: of the classes, or [] for their numbers."""
    rows = [
        [
            "class",
            "name",
            "images",
            "without a stroke",
            "strokes",
            "stroke pixels",
            "share of its area",
            "depth",
            "near",
        ]
    ]
    for number in sorted({number for image in images for number in image.classes}):
        items = [image.classes[number] for image in images if number in image.classes]
        pixels, area, near = (sum(getattr(item, key) for item in items) for key in ("pixels", "area", "near"))
        depths = [item.depth for item in items if item.depth is not None]
        share = [f"{pixels / area:.2%}", f"{np.mean(depths):.0%}" if depths else "-", f"{near / max(pixels, 1):.0%}"]
        rows.append(
            [
                str(number),
                names[number] if number < len(names) else str(number),
                str(len(items)),
                str(sum(not item.pixels for item in items)),
                str(sum(item.strokes for item in items)),
                str(pixels),
                *(share if area else ["-"] * 3),
            ]
        )
    return rows


def aligned(rows: list[list[str]], alignments: str) -> list[str]:
    """Return rows of cells as lines of text. alignments: "<" or ">" for each column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map("{:{}{}}".format, row, alignments, widths)).rstrip() for row in rows]


def parser() -> Parser:
    parser = Parser("data.scribbles stats", "Measure a folder of scribbles, beside another one.", EPILOG)
    add = parser.add_argument
    add("scribbles", type=Path, metavar="SCRIBBLES", help="folder of scribbles")
    add(
        "--masks", type=Path, metavar="DIR", help="folder of their dense masks; without it, only what strokes alone say"
    )
    add("--list", type=Path, metavar="FILE", help="names of the scribbles to measure, one a line [all]")
    add("--compare", type=Path, metavar="DIR", help="another folder of scribbles: a second column")
    add("--compare_masks", type=Path, metavar="DIR", help="folder of the dense masks of --compare")
    add(
        "--background",
        default="0",
        choices=("0", "none"),
        help="class of the background; none: every class is an object",
    )
    add("--classes", default="", metavar="FILE", help="names of the classes: voc, camvid, ..., or a FILE")
    add("--workers", type=int, default=-1, metavar="N", help="processes; 0 measures in this process [number of cores]")
    return parser
