"""python -m tools.scribbles simulate: write a scribble for each dense mask of a folder."""

import argparse
import dataclasses
import functools
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.classes import read_classes
from data.images import IMAGE_SUFFIXES, label_png, read_image, read_label
from data.layout import list_folder
from support import shell
from support.errors import UserError
from support.files import write_atomic
from support.labels import IGNORE
from support.processes import work_on
from tools.arguments import Parser
from tools.scribbles.folders import find_labels
from tools.scribbles.output import claim, write_overlay
from tools.scribbles.skeleton import import_extra
from tools.scribbles.strokes import Style, draw_scribble

EPILOG = """Each connected region of a class gets a stroke along its longest axis, which never leaves its class. The
same mask, flags, seed and name give the same scribble, whatever the other images and the number of processes.
The defaults are fitted to ScribbleSup; to compare with your own strokes: python -m tools.scribbles stats."""


@dataclass(frozen=True)
class Job:
    """What all masks have in common. colours: (256, 3) uint8. overlays: folder of the pictures, or None."""

    out: Path
    style: Style
    seed: int
    colours: np.ndarray
    overlays: Path | None


@dataclass(frozen=True)
class Task:
    """A mask, its name without suffix, and the image to paint on, None without --overlays."""

    name: str
    mask: Path
    image: Path | None


@dataclass(frozen=True)
class Result:
    """Outcome of a task. fault: why there is no scribble, or "". kept: the scribble was there from an earlier run."""

    fault: str = ""
    kept: bool = False


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    import_extra("skimage")  # before anything is written
    style, tasks, colours = _style(args), _tasks(args), read_classes(args.classes, None).colours
    settings = dataclasses.asdict(style) | {"seed": args.seed, "classes": args.classes}
    claim(args.out, settings | {"masks": str(args.masks.resolve())})
    job = Job(args.out, style, args.seed, colours, args.overlays)
    results = work_on(functools.partial(_simulate, job=job), tasks, args.workers, "mask", "drawing")
    faults = [result.fault for result in results if result.fault]
    for line in faults:
        tqdm.write(line, file=sys.stderr)
    how = Counter(result.kept for result in results if not result.fault)
    kept = f", {how[True]} kept (from an earlier start)" if how[True] else ""
    shown = f"; overlays: {args.overlays}" if args.overlays else ""
    print(f"{args.out}: {how[False]} scribble(s) drawn{kept}{shown}")
    words = ["--masks", args.masks, "--background", args.background]
    print(f"to measure them: {shell.python_command('-m', 'tools.scribbles', 'stats', args.out, *words)}")
    return 1 if faults else 0


def _style(args: argparse.Namespace) -> Style:
    """Return the Style of the flags. Raises UserError if one is out of range."""
    if not 0 < args.length <= 1:
        raise UserError(f"--length {args.length}: must be above 0 and at most 1")
    for name, least, most in (
        *((name, 0, 1) for name in ("wiggle", "shrink", "drop")),
        ("width", 1, 255),
        ("min_area", 1, 2**31),
        ("seed", 0, 2**31),
    ):
        if not least <= getattr(args, name) <= most:
            raise UserError(f"--{name} {getattr(args, name)}: must be {least} to {most}")
    fields = {item.name: getattr(args, item.name) for item in dataclasses.fields(Style)}
    return Style(**fields | {"background": None if args.background == "none" else 0})


def _tasks(args: argparse.Namespace) -> list[Task]:
    """Return a Task for each mask. Raises UserError if folders are missing, or inside each other."""
    masks = find_labels(args.masks, args.list)
    inside = [("", args.out, args.masks)]
    inside += [("--overlays ", args.overlays, folder) for folder in (args.masks, args.images, args.out)]
    for flag, folder, other in inside:
        if folder and other and folder.resolve().is_relative_to(other.resolve()):
            raise UserError(f"{flag}{folder}: is in {other}: name a folder outside")
    if bool(args.overlays) != bool(args.images):
        raise UserError("--overlays DIR and --images DIR, the folder of the images, must be given together")
    if not args.images:
        return [Task(name, path, None) for name, path in masks.items()]
    images = {name: paths[0] for name, paths in list_folder(args.images, IMAGE_SUFFIXES).items()}
    missing = [name for name in masks if name not in images]
    if missing:
        raise UserError(f"--images {args.images}: no image {missing[0]!r}; {len(missing)} of {len(masks)} are missing")
    return [Task(name, path, images[name]) for name, path in masks.items()]


def _simulate(task: Task, job: Job) -> Result:
    """Write the scribble of a mask, unless there is one that is not older than the mask, and its overlay."""
    target = job.out / f"{task.name}.png"
    picture = job.overlays / f"{task.name}.jpg" if job.overlays else None
    kept = target.exists() and target.stat().st_mtime >= task.mask.stat().st_mtime
    try:
        if not kept:
            scribble = draw_scribble(read_label(task.mask, IGNORE), job.style, job.seed, task.name)
            write_atomic(target, label_png(scribble, job.colours), parents=True)
        if picture and task.image:
            write_overlay(picture, read_image(task.image), read_label(target, IGNORE), job.colours)
    except UserError as error:
        return Result(fault=str(error))
    return Result(kept=kept)


def parser() -> Parser:
    parser = Parser("tools.scribbles simulate", "Draw scribbles from dense masks, as a person would.", EPILOG)
    add = parser.add_argument
    add("masks", type=Path, metavar="MASKS", help="folder of dense masks; 255 = ignore")
    add("out", type=Path, metavar="OUT", help="folder for the scribbles, named as the masks; must be new")
    add("--list", type=Path, metavar="FILE", help="names of the masks to use, one a line [all]")
    add("--background", default="0", choices=("0", "none"), help="class whose strokes stay deep inside; none: no class")
    area = "regions below this get no stroke, except the largest one of each class in an image"
    add("--min_area", type=int, default=200, metavar="PIXELS", help=area)
    add("--length", type=float, default=1.0, metavar="SHARE", help="share of the path through a region that is drawn")
    add("--width", type=int, default=3, metavar="PIXELS", help="width of the strokes")
    wiggle = "random deviation to the sides, at most this share of the way to the border"
    add("--wiggle", type=float, default=0.7, metavar="SHARE", help=wiggle)
    shrink = "share of each stroke to cut off, half at each end; 1 leaves a point in the middle"
    add("--shrink", type=float, default=0.0, metavar="SHARE", help=shrink)
    drop = "share of the strokes to leave out at random; each class of an image keeps at least one"
    add("--drop", type=float, default=0.0, metavar="SHARE", help=drop)
    border = "also draw along the inside of each region's border, as in nnU-Net's protocol"
    add("--border", action="store_true", help=border)
    add("--seed", type=int, default=0, metavar="N", help="another number gives other strokes")
    add("--classes", default="", metavar="FILE", help="colours of the PNGs: voc, camvid, ..., or a FILE [voc]")
    add("--images", type=Path, metavar="DIR", help="folder of the images, for --overlays")
    add("--overlays", type=Path, metavar="DIR", help="write JPEGs to look at: the images with their strokes")
    add("--workers", type=int, default=-1, metavar="N", help="processes; 0 draws in this process [number of cores]")
    return parser
