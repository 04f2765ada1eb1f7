"""python -m tools.scribbles stats: figures of a folder of scribbles, beside those of another folder."""

import sys
from pathlib import Path

from tqdm import tqdm

from data.classes import aligned, read_classes
from data.images import read_label
from support.errors import UserError
from support.labels import IGNORE
from support.processes import work_on
from tools.arguments import Parser
from tools.scribbles.figures import NEAR, Figures, measure
from tools.scribbles.folders import find_labels
from tools.scribbles.tables import Column, class_rows, summary_rows

EPILOG = f"""Each row has the mean and, in brackets, the 5 % and the 95 % quantile of the images, or of the classes of
all images. Strokes are connected parts. Depth is the distance to the border of the class, over the largest one
in the region; the image's edge is no border. A class is thin in an image if half of its pixels are at most
{NEAR} pixels from its border."""


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    if args.compare_masks and not args.compare:
        raise UserError(f"--compare_masks {args.compare_masks}: needs --compare DIR, the folder of the scribbles")
    names = read_classes(args.classes, None).names if args.classes else []
    faults: list[str] = []
    images = _measure_folder(args.scribbles, args.masks, args.list, args.workers, faults)
    columns = [Column(str(args.scribbles), images, _class_of(args.background))]
    if args.compare:
        images = _measure_folder(args.compare, args.compare_masks, None, args.workers, faults)
        columns.append(Column(str(args.compare), images, _class_of(args.compare_background or args.background)))
    for line in faults:
        tqdm.write(line, file=sys.stderr)
    print("\n".join(aligned(summary_rows(columns), "<")))
    for column in columns:
        print("\n".join(["", f"{column.title}:", *aligned(class_rows(column.images, names))]))
    return 1 if faults else 0


def _measure_folder(
    folder: Path, masks: Path | None, list_file: Path | None, workers: int, faults: list[str]
) -> list[Figures]:
    """Return the figures of a folder's scribbles; add a line to `faults` for each that cannot be measured."""
    scribbles = find_labels(folder, list_file)
    dense = find_labels(masks) if masks else {}
    if masks:
        faults += [f"{path}: no mask of this name: left out" for name, path in scribbles.items() if name not in dense]
    pairs = [(path, dense.get(name)) for name, path in scribbles.items() if not masks or name in dense]
    results = work_on(_measure_pair, pairs, workers, "image", "measuring")
    faults += [result for result in results if isinstance(result, str)]
    images = [result for result in results if not isinstance(result, str)]
    if not images:
        raise UserError(f"{folder}: no scribble could be measured: {faults[-1]}")
    return images


def _class_of(background: str) -> int | None:
    return None if background == "none" else int(background)


def _measure_pair(pair: tuple[Path, Path | None]) -> Figures | str:
    """Return the figures of a scribble file, given its mask file or None, or a line that says what is wrong."""
    path, mask_path = pair
    try:
        scribble = read_label(path, IGNORE)
        mask = read_label(mask_path, IGNORE) if mask_path else None
    except UserError as error:
        return str(error)
    if mask is not None and mask.shape != scribble.shape:
        (height, width), (mask_height, mask_width) = scribble.shape, mask.shape
        return f"{path}: {width}x{height} pixels, but {mask_path} has {mask_width}x{mask_height}: left out"
    return measure(scribble, mask)


def parser() -> Parser:
    parser = Parser("tools.scribbles stats", "Measure a folder of scribbles, beside another one.", EPILOG)
    add = parser.add_argument
    add("scribbles", type=Path, metavar="SCRIBBLES", help="folder of scribbles")
    add(
        "--masks",
        type=Path,
        metavar="DIR",
        help="folder of their dense masks, to compare with; without it, fewer figures",
    )
    add("--list", type=Path, metavar="FILE", help="names of the scribbles to measure, one a line [all]")
    add("--compare", type=Path, metavar="DIR", help="another folder of scribbles: a second column")
    add("--compare_masks", type=Path, metavar="DIR", help="folder of the dense masks of --compare")
    add("--background", default="0", choices=("0", "none"), help="class of the background; none: all are objects")
    add("--compare_background", default="", choices=("0", "none"), help="the same for --compare [--background]")
    add("--classes", default="", metavar="FILE", help="names of the classes: voc, camvid, ..., or a FILE [numbers]")
    add("--workers", type=int, default=-1, metavar="N", help="processes; 0 measures in this process [number of cores]")
    return parser
