"""python -m data.scribbles simulate: write a scribble for each dense mask of a folder."""

import contextlib
import dataclasses
import functools
import io
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from PIL import Image
from tqdm import tqdm

import shell
from data.arguments import Parser
from data.classes import read_classes
from data.images import IMAGE_SUFFIXES, read_image, read_label
from data.layout import list_folder
from data.processes import work_on
from data.scribbles.folders import find_labels
from data.scribbles.strokes import Style, draw_scribble
from errors import UserError
from files import remove_scratch, write_atomic, writing
from labels import IGNORE

MARK = ".scribbles.json"  # what OUT was made from; a hidden file, which readers of data sets skip
SHARES = ("length", "wiggle", "shrink", "drop")


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
    """What became of a task. fault: why there is no scribble, "" if there is one. kept: it is from an earlier start."""

    fault: str = ""
    kept: bool = False


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    style, masks = _style(args), find_labels(args.masks, args.list)
    for one, other in (
        (args.out, args.masks),
        (args.masks, args.out),
        (args.overlays, args.masks),
        (args.overlays, args.out),
    ):
        if one and one.resolve().is_relative_to(other.resolve()):
            raise UserError(f"{one}: is in {other}: name a folder outside")
    if bool(args.overlays) != bool(args.images):
        raise UserError("--overlays DIR needs --images DIR, the folder of the images, and --images needs --overlays")
    images = {name: paths[0] for name, paths in list_folder(args.images, IMAGE_SUFFIXES).items()} if args.images else {}
    missing = [name for name in masks if args.images and name not in images]
    if missing:
        raise UserError(
            f"--images {args.images}: no image {missing[0]!r}, nor {len(missing) - 1} other(s) of the masks"
        )
    settings = dataclasses.asdict(style) | {
        "masks": str(args.masks.resolve()),
        "seed": args.seed,
        "classes": args.classes,
    }
    claim(args.out, settings)
    colours = read_classes(args.classes, None).colours
    job = Job(args.out, style, args.seed, colours, args.overlays)
    tasks = [Task(name, path, images.get(name)) for name, path in masks.items()]
    results = work_on(functools.partial(_simulate, job=job), tasks, args.workers, "mask", "drawing")
    faults = [result.fault for result in results if result.fault]
    for line in faults:
        tqdm.write(line, file=sys.stderr)
    how = Counter(result.kept for result in results if not result.fault)
    kept = f", {how[True]} kept (from an earlier start)" if how[True] else ""
    print(
        f"{args.out}: {how[False]} scribble(s) drawn{kept}"
        + (f"; overlays in {args.overlays}" if args.overlays else "")
    )
    words = [] if style.background == 0 else ["--background", "none"]
    print(
        f"to measure them: {shell.python_command('-m', 'data.scribbles', 'stats', args.out, '--masks', args.masks, *words)}"
    )
    return 1 if faults else 0


def _style(args) -> Style:
    """Return the Style of the flags. Raises UserError if one is out of range."""
    for name in SHARES:
        value = getattr(args, name)
        if not (0 <= value <= 1 and (value or name != "length")):
            raise UserError(
                f"--{name} {value}: must be {'above 0' if name == 'length' else 'at least 0'} and at most 1"
            )
    for name, least, most in (("width", 1, 255), ("min_area", 1, 2**31), ("seed", 0, 2**31)):
        if not least <= getattr(args, name) <= most:
            raise UserError(f"--{name} {getattr(args, name)}: must be {least} to {most}")
    fields = {item.name: getattr(args, item.name) for item in dataclasses.fields(Style)}
    return Style(**fields | {"background": None if args.background == "none" else 0})


def claim(out: Path, settings: dict) -> None:
    """Create the folder OUT, or check that it is the result of the same command.

    settings: what decides the content of a scribble; JSON. Raises UserError if OUT has other content, before anything
    is written.
    """
    mark = out / MARK
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file: name a new folder")
    if mark.is_file():
        remove_scratch(out.rglob(".*.part*"))
        done = None
        with contextlib.suppress(ValueError, OSError):
            done = json.loads(mark.read_text(encoding="utf-8"))
        if done != settings:
            raise UserError(f"{out}: holds the result of another command: name a new folder, or remove this one")
    elif out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out}: exists and is not empty: name a new folder")
    write_atomic(mark, json.dumps(settings, indent=1), parents=True)


def _simulate(task: Task, job: Job) -> Result:
    """Write the scribble of a mask and its overlay, unless they are there."""
    target = job.out / f"{task.name}.png"
    picture = job.overlays / f"{task.name}.jpg" if job.overlays else None
    kept = target.exists()
    try:
        if not kept:
            label = read_label(task.mask, IGNORE)
            scribble = draw_scribble(label, job.style, job.seed, task.name)
            write_atomic(target, _png(scribble, job.colours), parents=True)
        if picture and task.image and not picture.exists():
            painted = _paint(read_image(task.image), read_label(target, IGNORE), job.colours)
            with writing(picture, parents=True) as scratch:
                Image.fromarray(painted).save(scratch, quality=90)
    except UserError as error:
        return Result(fault=str(error))
    return Result(kept=kept)


def _png(label: np.ndarray, colours: np.ndarray) -> bytes:
    picture = Image.fromarray(label)
    picture.putpalette(colours.tobytes())
    data = io.BytesIO()
    picture.save(data, format="PNG")
    return data.getvalue()


def _paint(image: np.ndarray, scribble: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """Return the image, paler, with the strokes in the colours of their classes, (H, W, 3) uint8.

    image: (H, W, 3) uint8 RGB. scribble: (h, w) uint8, scaled to the image's size if it has another one.
    """
    strokes = cv2.resize(scribble, image.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    pale = cv2.addWeighted(image, 0.6, np.full_like(image, 255), 0.4, 0)
    return np.where((strokes != IGNORE)[..., None], colours[strokes], pale)


def parser() -> Parser:
    parser = Parser("data.scribbles simulate", "Draw scribbles as a person would, from dense masks.", EPILOG)
    add = parser.add_argument
    add("masks", type=Path, metavar="MASKS", help="folder of dense masks; 255 = ignore")
    add("out", type=Path, metavar="OUT", help="folder to write: a scribble of the name of each mask; must be new")
    add("--list", type=Path, metavar="FILE", help="names of the masks to use, one a line [all]")
    add("--background", default="0", choices=("0", "none"), help="class whose strokes stay deep inside; none: no class")
    add(
        "--min_area",
        type=int,
        default=100,
        metavar="PIXELS",
        help="regions below it have no stroke, unless the class has no larger one",
    )
    add("--length", type=float, default=0.8, metavar="SHARE", help="of the path through a region, how much is drawn")
    add("--width", type=int, default=3, metavar="PIXELS", help="width of the strokes")
    add("--wiggle", type=float, default=0.5, metavar="SHARE", help="deviation to the sides, of the way to the border")
    add(
        "--shrink",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of each stroke, how much its ends lose; 1: only a point stays",
    )
    add(
        "--drop",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of the strokes, how many are left out; each class of an image keeps one",
    )
    add(
        "--border",
        action="store_true",
        help="also a stroke along the inside of each region's border, as in nnU-Net's protocol",
    )
    add("--seed", type=int, default=0, metavar="N", help="another number gives other strokes")
    add("--classes", default="", metavar="FILE", help="colours of the palette: voc, camvid, ..., or a FILE [voc]")
    add("--images", type=Path, metavar="DIR", help="folder of the images, for --overlays")
    add("--overlays", type=Path, metavar="DIR", help="write JPEGs to look at: the images with their strokes")
    add("--workers", type=int, default=-1, metavar="N", help="processes; 0 draws in this process [number of cores]")
    return parser


EPILOG = """Each connected region of a class has a stroke along its longest axis. It never leaves its class. The same seed and
name give the same scribble, whatever the other images and the number of processes."""
