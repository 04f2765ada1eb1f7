"""Write a scribble for each dense mask in a folder, drawn as a person would.

    python -m tools.scribbles simulate MyData/masks MyData/pascal_2012_scribble

Exit status: 0: all done; 1: done except for the files it names; 2: an error stopped the program.
"""

import argparse
import dataclasses
import functools
import sys
from collections import Counter
from pathlib import Path

import numpy as np

if not __package__:  # started as a file from another folder: python PATH/tools/scribbles
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from data.classes import read_classes
from data.images import LABEL_SUFFIXES, NO_JPEG, label_png, read_label
from data.layout import ANY_SUFFIXES, list_folder, read_list, without_suffix
from support import program
from support.errors import UserError
from support.files import write_atomic
from support.labels import IGNORE
from support.processes import work_on
from support.results import reserve
from support.terminal import say, warn
from tools.arguments import Parser
from tools.scribbles.regions import import_extra
from tools.scribbles.strokes import Style, draw_scribble

EPILOG = """Each connected region of a class gets a stroke along its longest axis, which never leaves its class. The
same mask, flags, seed and name give the same scribble, whatever the other images and the number of processes.
The defaults are fitted to ScribbleSup."""


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    import_extra("skimage")  # before anything is written
    style, masks = _style(args), list(find_masks(args.masks, args.list).items())
    job = {"out": args.out, "style": style, "seed": args.seed, "colours": read_classes(args.classes, None).colours}
    settings = dataclasses.asdict(style) | {"seed": args.seed, "classes": args.classes}
    settings |= {"masks": str(args.masks.resolve())}
    reserve(args.out / ".made_from.json", settings, ["**/*"], "tools.scribbles", inputs=[args.masks])
    results = work_on(functools.partial(_simulate, **job), masks, args.workers, "mask", "drawing")
    counts = Counter(results)
    drawn, kept = counts.pop("drawn", 0), counts.pop("kept", 0)
    warn(*counts)  # the lines on masks without a scribble
    say(f"{args.out}: {drawn} scribble(s) drawn" + (f", {kept} kept (from an earlier start)" if kept else ""))
    return 1 if counts else 0


def find_masks(folder: Path, list_file: Path | None) -> dict[str, Path]:
    """Return {name without suffix: file} of the masks below a folder, or of those in a list file, one name per line.

    Raises UserError if there is none, a listed one is missing, or two have one name.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    masks, files = list_folder(folder, LABEL_SUFFIXES), list_folder(folder, ANY_SUFFIXES)
    if twice := next((paths for paths in masks.values() if len(paths) > 1), None):
        raise UserError(f"{twice[0]} and {twice[1].name}: two files of one name: remove or rename one")
    if not masks:
        raise UserError(f"{folder}: no label map in it ({', '.join(LABEL_SUFFIXES)})")
    if not list_file and (others := sorted(files.keys() - masks.keys())):
        warn(f"{len(others)} JPEG file(s), such as {files[others[0]][0]}, left out: {NO_JPEG}")
    names = [without_suffix(line, masks) for line in read_list(list_file)] if list_file else list(masks)
    if missing := [name for name in names if name not in masks]:
        raise UserError(f"{list_file}: {missing[0]!r}: no label map of this name in {folder}")
    return {name: masks[name][0] for name in names}


def _style(args: argparse.Namespace) -> Style:
    """Return the Style of the flags. Raises UserError if one is out of range."""
    if not 0 < args.length <= 1:
        raise UserError(f"--length {args.length}: must be above 0 and at most 1")
    limits = {"wiggle": 1, "skip": 0.99, "width": 255}
    limits |= dict.fromkeys(("min_area", "max_length", "per_class", "seed"), 2**31)
    for name, most in limits.items():
        least = int(name in ("width", "min_area"))
        if not least <= getattr(args, name) <= most:
            raise UserError(f"--{name} {getattr(args, name)}: must be {least} to {most}")
    fields = {item.name: getattr(args, item.name) for item in dataclasses.fields(Style)}
    return Style(**fields | {"background": None if args.background == "none" else 0})


def _simulate(named: tuple[str, Path], out: Path, style: Style, seed: int, colours: np.ndarray) -> str:
    """Write the scribble of a mask (name, file), unless there is one that is not older than the mask.

    colours: (256, 3) uint8. Returns "drawn", "kept", or a line that says why there is none.
    """
    name, mask = named
    target = out / f"{name}.png"
    if target.exists() and target.stat().st_mtime >= mask.stat().st_mtime:
        return "kept"
    try:
        scribble = draw_scribble(read_label(mask, IGNORE), style, seed, name)
        write_atomic(target, label_png(scribble, colours), parents=True)
    except UserError as error:
        return str(error)
    return "drawn"


def parser() -> Parser:
    parser = Parser("tools.scribbles", "Draw scribbles from dense masks, as a person would.", EPILOG)
    add = parser.add_argument
    add("command", choices=("simulate",), metavar="simulate", help="what to do")
    add("masks", type=Path, metavar="MASKS", help="folder of dense masks; 255 = ignore")
    out = "folder for the scribbles, named as the masks; new, or of the same command"
    add("out", type=Path, metavar="OUT", help=out)
    add("--list", type=Path, metavar="FILE", help="names of the masks to use, one a line [all]")
    add("--background", default="0", choices=("0", "none"), help="class whose strokes stay deep inside; none: no class")
    area = "regions below this get no stroke, except the largest one of each class in an image"
    add("--min_area", type=int, default=200, metavar="PIXELS", help=area)
    add("--length", type=float, default=1.0, metavar="SHARE", help="share of the path through a region that is drawn")
    add("--max_length", type=float, default=0, metavar="PIXELS", help="longest stroke; 0: no limit")
    add("--width", type=int, default=3, metavar="PIXELS", help="width of the strokes")
    wiggle = "random deviation to the sides, at most this share of the way to the border"
    add("--wiggle", type=float, default=0.7, metavar="SHARE", help=wiggle)
    skip = "probability that a thin region, such as a pole, gets no stroke; wider ones are skipped less often"
    add("--skip", type=float, default=0.0, metavar="SHARE", help=skip)
    add("--per_class", type=int, default=0, metavar="N", help="strokes of a class in an image, at most; 0: no limit")
    add("--seed", type=int, default=0, metavar="N", help="another number gives other strokes")
    add("--classes", default="", metavar="FILE", help="colours of the PNGs: voc, camvid, ..., or a FILE [voc]")
    add("--workers", type=int, default=-1, metavar="N", help="processes; 0 draws in this process [number of cores]")
    return parser


if __name__ == "__main__":
    program.run_and_exit(main)
