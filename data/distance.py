"""Compute distance maps, which weight the entropy losses (CDSP, "Scribble Hides Class", AAAI 2024).

Training computes them on the fly, from each label at its own size. To save them as PNGs instead:

    python -m data.distance --scribbles VOC2012/pascal_2012_scribble --out VOC2012/distance_map
    python -m data.distance --pseudo VOC2012/bmp_pseudolabel --out VOC2012/distance_pseudo
"""

import argparse
import functools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import cv2
import numpy as np

if not __package__:  # started as a file
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from data.images import read_label
from data.label_map import LabelMap, read_label_map
from data.layout import find_labels
from support import program
from support.errors import UserError
from support.files import write_atomic
from support.labels import IGNORE, is_foreground
from support.processes import work_on
from support.results import reserve
from support.terminal import say

LAMBDA_S = math.e
LAMBDA_C = math.e**6


def scribble_distance(label: np.ndarray, background: int | None = 0, scale: float = 1.0) -> np.ndarray:
    """Return the closeness of each pixel to the nearest stroke, (H, W) uint8: 255 on a stroke, falling to 0.

    The value is 255 - trunc(clip(sqrt(LAMBDA_S) * d, 0, 255)). d is the exact Euclidean distance in pixels, * `scale`.
    label: scribbles (H, W) uint8, 255 = no stroke. background: class whose strokes do not count; None counts all. If no
    stroke counts, the map is 0 everywhere.
    """
    return 255 - _scaled_distance(is_foreground(label, background), LAMBDA_S * scale**2)


def pseudo_distance(label: np.ndarray, background: int | None = 0, scale: float = 1.0) -> np.ndarray:
    """Return the distance of each pixel to a pseudo-label's contours, (H, W) uint8: 0 on a contour, rising to 255.

    The value is trunc(clip(sqrt(LAMBDA_C) * d, 0, 255)). d is the exact Euclidean distance in pixels times `scale`.
    label: pseudo-label (H, W) uint8, 255 = unlabelled. background: contours outline all other classes together; None
    outlines each class by itself. Contours are 1 pixel wide, also around holes. Without any, the map is 255 everywhere.
    """
    if background is None:
        regions = [label == number for number in np.unique(label) if number != IGNORE]
    else:
        regions = [is_foreground(label, background)]
    drawn = np.zeros(label.shape, np.uint8)
    for region in regions:
        contours, _ = cv2.findContours(region.astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(drawn, contours, -1, color=1, thickness=1)
    return _scaled_distance(drawn > 0, LAMBDA_C * scale**2)


def _scaled_distance(target: np.ndarray, scale_squared: float) -> np.ndarray:
    """Return trunc(clip(sqrt(scale_squared) * d, 0, 255)), (H, W) uint8; all 255 if no pixel of `target` is True.

    d is the Euclidean distance in pixels to the nearest True pixel of `target`, (H, W) bool.
    """
    if not target.any():
        return np.full(target.shape, 255, np.uint8)
    distance = cv2.distanceTransform((~target).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    np.multiply(distance, math.sqrt(scale_squared), out=distance)
    return np.minimum(distance, 255, out=distance).astype(np.uint8)


def _write_map(
    named: tuple[str, Path], out: Path, distance: Callable[[np.ndarray], np.ndarray], label_map: LabelMap | None
) -> None:
    name, path = named
    # Only whether a pixel is labelled matters, so accept every class number.
    _, data = cv2.imencode(".png", distance(read_label(path, 255, label_map)))
    write_atomic(out / f"{name}.png", data.tobytes(), parents=True)


class Parser(argparse.ArgumentParser):
    """The command's flags. The reader of the other programs is in flags/, which data/ must not import."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}: {self.prog} --help lists the flags")


def main(argv: list[str] | None = None) -> None:
    args = parser().parse_args(argv)
    if args.workers < -1:
        raise UserError(f"--workers {args.workers}: must be at least -1")
    folder, distance = (args.scribbles, scribble_distance) if args.scribbles else (args.pseudo, pseudo_distance)
    labels = list(find_labels(folder).items())
    settings = {"labels": str(folder.resolve()), "kind": distance.__name__, "background": args.background}
    settings["label_map"] = args.label_map
    reserve(args.out / ".made_from.json", settings, ["**/*"], "data.distance", flag="--out", inputs=[folder])
    distance = functools.partial(distance, background=None if args.background == "none" else 0)
    write = functools.partial(_write_map, out=args.out, distance=distance, label_map=read_label_map(args.label_map))
    work_on(write, labels, args.workers, "map", "writing")
    say(f"{args.out}: {len(labels)} distance map(s)")


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("is empty")
    return Path(text)


def parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m data.distance", description="Write distance maps as PNGs.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--scribbles", type=_path, metavar="DIR", help="folder of scribbles")
    source.add_argument("--pseudo", type=_path, metavar="DIR", help="folder of pseudo-labels")
    parser.add_argument("--out", type=_path, required=True, metavar="DIR", help="output folder; created if missing")
    parser.add_argument("--background", choices=("0", "none"), default="0", help="background class, as in train.py [0]")
    parser.add_argument("--label_map", default="", metavar="FILE", help="as train.py's --label_map [none]")
    parser.add_argument(
        "--workers", type=int, default=-1, metavar="N", help="processes; 0 works in this process [number of cores]"
    )
    return parser


if __name__ == "__main__":
    program.run_and_exit(main)
