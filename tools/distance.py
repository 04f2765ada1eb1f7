"""Write distance maps as PNGs, which training otherwise computes on the fly, from each label at its own size.

python -m tools.distance --scribbles VOC2012/pascal_2012_scribble --out VOC2012/distance_map
python -m tools.distance --pseudo VOC2012/bmp_pseudolabel --out VOC2012/distance_pseudo
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

if not __package__:  # started as a file from another folder: python PATH/tools/distance.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from data.distance import pseudo_distance, scribble_distance
from data.images import read_label
from data.label_map import LabelMap, read_label_map
from data.layout import find_labels
from flags.declare import flag
from flags.reader import FlagReader
from support import program
from support.errors import UserError
from support.files import write_atomic
from support.labels import IGNORE
from support.processes import work_on
from support.results import reserve
from support.terminal import say


@dataclass(frozen=True)
class DistanceFlags:
    """Labels and maps."""

    scribbles: Path | None = flag(None, "folder of scribbles, for --distancemap_s of train.py")
    pseudo: Path | None = flag(None, "folder of pseudo-labels, for --distancemap_c; instead of --scribbles")
    out: Path | None = flag(None, "folder for the maps, named as the labels; new, or of the same command [required]")
    background: str = flag("0", "background class, as in train.py", choices=("0", "none"))
    label_map: str = flag("", "map of the labels' values to class numbers, as in train.py")
    workers: int = flag(-1, "processes; 0 works in this process [number of cores]", ge=-1)


READER = FlagReader(DistanceFlags, "-m tools.distance", "Write distance maps as PNGs.", has_config=False)


def main(argv: list[str] | None = None) -> None:
    args = DistanceFlags(**READER.command_line(argv).values)
    folders = [folder for folder in (args.scribbles, args.pseudo) if folder]
    if len(folders) != 1:
        raise UserError("--scribbles DIR or --pseudo DIR: set one of them, to the folder of the labels")
    if not args.out:
        raise UserError("--out is not set: name a new folder for the maps")
    folder, distance = folders[0], scribble_distance if args.scribbles else pseudo_distance
    labels = list(find_labels(folder).items())
    settings = {"labels": str(folder.resolve()), "kind": distance.__name__, "background": args.background}
    settings["label_map"] = args.label_map
    reserve(args.out / ".made_from.json", settings, ["**/*"], "tools.distance", flag="--out", inputs=[folder])
    distance = functools.partial(distance, background=None if args.background == "none" else 0)
    write = functools.partial(_write_map, out=args.out, distance=distance, label_map=read_label_map(args.label_map))
    work_on(write, labels, args.workers, "map", "writing")
    say(f"{args.out}: {len(labels)} distance map(s)")


def _write_map(
    named: tuple[str, Path], out: Path, distance: Callable[[np.ndarray], np.ndarray], label_map: LabelMap | None
) -> None:
    name, path = named
    # Only whether a pixel is labelled matters, so accept every class number.
    _, data = cv2.imencode(".png", distance(read_label(path, IGNORE, label_map)))
    write_atomic(out / f"{name}.png", data.tobytes(), parents=True)


if __name__ == "__main__":
    program.run_and_exit(main)
