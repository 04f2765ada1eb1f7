"""Convert labels of other formats to images, palette PNGs and classes.txt, as --dataset Folder reads them.

    python -m data.convert labelme annotated Photos
    python -m data.convert coco instances_train2017.json COCO --images train2017 --split train

Exit status: 0 done, 1 done, except for what is named, 2 an error that stopped the program.
"""

import functools
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tqdm import tqdm
from tqdm.contrib.concurrent import process_map

if not __package__:  # started as a file from another folder: python PATH/data/convert
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import program
import shell
from data.arguments import Parser
from data.convert.kinds import KINDS
from data.convert.numbering import Numbering, number_classes, read_known
from data.convert.output import Job, Result, convert, drop_clashes, prepare
from data.convert.source import Entry, Options, Source
from data.cores import num_cores
from errors import UserError
from labels import IGNORE

CHUNK = 8  # images that a process takes at once
MOST_UNLISTED = 20  # classes without a number that are named one by one
EPILOG = """kinds:
{kinds}

A pixel belongs to a polygon, rectangle or ellipse if its centre is inside; the centre of pixel (0, 0) is (0.5, 0.5).
Where shapes overlap, a later shape covers an earlier one. Shapes are drawn in the order of the file, in CVAT by z_order
first. Details of each kind: docs/converting.md."""


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    kind = KINDS[args.kind]
    if not args.source.exists():
        raise UserError(f"{args.source}: no such file or folder")
    if not 0 < args.line_width < 1e5:
        raise UserError(f"--line_width {args.line_width}: must be a number of pixels above 0")
    if args.split and (Path(args.split).name != args.split or args.split.startswith(".")):
        raise UserError(f"--split {args.split}: must be the name of a folder, such as train")
    if args.out.resolve().is_relative_to(args.source.resolve()):
        raise UserError(f"{args.out}: is in {args.source}, which the program reads: name a folder outside")
    known = read_known(args.classes)
    unlabelled = args.unlabelled or kind.unlabelled
    pairs = zip(known.names, known.colours.tolist(), strict=False) if known else ()
    options = Options(
        **{name: getattr(args, name) for name in ("images", "image_suffix", "label_suffix", "line_width", "threshold")},
        unlabelled=unlabelled,
        classes=args.classes,
        known=tuple((name, tuple(colour)) for name, colour in pairs),
    )
    source = kind.read(args.source, options)
    entries = drop_clashes(source.entries, source.faults)
    if not entries:
        _name_all(source.faults)
        raise UserError(f"{args.source}: nothing to convert as {args.kind}")
    numbering = number_classes(source, known, unlabelled, args.classes)
    settings = {name: str(value) for name, value in vars(args).items() if name not in ("workers", "out")}
    prepare(args.out, numbering.text(), args.split, settings | {"source": str(args.source.resolve())})
    job = Job(
        out=args.out,
        prefix=f"{args.split}/" if args.split else "",
        draw=kind.draw,
        options=options,
        numbers=numbering.numbers,
        unlabelled=numbering.unlabelled,
        unlisted=numbering.unlabelled if args.unlisted == "background" else IGNORE,
        palette=numbering.colours.tobytes(),
        copy=args.copy,
    )
    results = _convert_all(entries, job, args.workers)
    return _report(args.out, source, results, numbering, args.unlisted)


def _convert_all(entries: list[Entry], job: Job, workers: int) -> list[Result]:
    """Return the Result of each entry, in order. workers: number of processes; 0 converts in this process.

    Raises UserError if a worker process is killed.
    """
    if workers < 0:
        workers = num_cores()
    workers = min(workers, len(entries) // CHUNK)
    work = functools.partial(convert, job=job)
    if workers < 2:
        return [work(entry) for entry in tqdm(entries, unit="image", desc="converting")]
    try:
        return process_map(work, entries, max_workers=workers, chunksize=CHUNK, unit="image", desc="converting")
    except BrokenProcessPool:
        raise UserError("a process was killed, out of memory? Use --workers 0") from None


def _report(out: Path, source: Source, results: list[Result], numbering: Numbering, unlisted: str) -> int:
    """Print the faults, the table of pixels by class, what became of the images, and the next commands.

    Return the exit status. unlisted: value of --unlisted.
    """
    faults = [*source.faults, *(line for result in results for line in result.faults)]
    missing = sum((result.unlisted for result in results), Counter())
    if not unlisted:
        common = missing.most_common(MOST_UNLISTED)
        faults += [
            f"class {name!r}: not in the list of classes: ignored (255) in {count} place(s)" for name, count in common
        ]
        if len(missing) > len(common):
            faults.append(f"{len(missing) - len(common)} more classes that are not in the list")
    _name_all(faults)
    done = [result for result in results if result.pixels is not None]
    print("\n".join([*source.notes, *_table([result.pixels or {} for result in done], numbering)]))
    how = Counter(result.how for result in done)
    meaning = {"linked": " (hard links: no space, do not edit them in place)", "kept": " (from an earlier start)"}
    shown = ", ".join(f"{count} {name}{meaning.get(name, '')}" for name, count in how.items())
    print(f"{out}: {len(done)} image(s) with masks; images: {shown or 'none'}")
    if faults:
        print(f"{len(faults)} line(s) above name what was left out")
    if not done:
        raise UserError(f"{out}: no image could be converted")
    print("\n".join(next_lines(out)))
    return 1 if faults else 0


def next_lines(out: Path) -> list[str]:
    """Return lines with the commands that come next: the split, unless there is one, and the check."""
    check = f"to check it: {shell.python_command('-m', 'data.check', out)}"
    folders = {path.name for path in (out / "images").iterdir() if path.is_dir()}
    lists = all((out / f"{split}.txt").is_file() for split in ("train", "val"))
    if lists or {"train", "val"} <= folders:
        return [check]
    if "train" in folders or "val" in folders:
        missing = "val" if "train" in folders else "train"
        return [f"training needs images/train and images/val: convert {missing} too, with --split {missing}", check]
    return [f"to split it: {shell.python_command('-m', 'data.split', out, '--val', 0.2)}", check]


def _name_all(faults: Iterable[str]) -> None:
    for line in faults:
        tqdm.write("".join(char if char.isprintable() else repr(char)[1:-1] for char in line), file=sys.stderr)


def _table(pixels: list[dict[int, int]], numbering: Numbering) -> list[str]:
    """Return a text table as lines: pixels and images of each class, and the ignored ones. pixels: of each mask."""
    total = sum(sum(counts.values()) for counts in pixels) or 1
    rows = [("class", "name", "pixels", "share", "images")]
    for number, name in [*enumerate(numbering.names), (IGNORE, "(ignored)")]:
        count = sum(counts.get(number, 0) for counts in pixels)
        images = sum(number in counts for counts in pixels)
        rows.append((str(number), name, str(count), f"{count / total:.2%}", str(images)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map("{:{}{}}".format, row, "><>>>", widths)) for row in rows]


def parser() -> Parser:
    kinds = "\n".join(f"  {name:12} {kind.about}" for name, kind in KINDS.items())
    parser = Parser(
        "data.convert", "Convert labels to images and masks for --dataset Folder.", EPILOG.format(kinds=kinds)
    )
    add = parser.add_argument
    add("kind", metavar="KIND", choices=KINDS, help="format of the labels")
    add("source", type=Path, metavar="IN", help="file or folder of the labels")
    add("out", type=Path, metavar="OUT", help="folder to write: images, masks and classes.txt; must be new")
    classes = (
        "classes in order, with colours: voc, camvid, cityscapes, ade20k, cocostuff, or a FILE [the format's own order]"
    )
    add("--classes", default="", metavar="FILE", help=classes)
    unlabelled = (
        "pixels without a label: the class background (0, if --classes is not given), or 255 [panoptic: ignore; else "
    )
    add("--unlabelled", default="", choices=("background", "ignore"), help=unlabelled + "background]")
    unlisted = "what shapes and colours of classes that --classes lacks become [ignore, and name each]"
    add("--unlisted", default="", choices=("background", "ignore"), help=unlisted)
    add("--images", type=Path, metavar="DIR", help="folder of the images [beside the labels, or where the labels say]")
    add("--copy", action="store_true", help="copy images; without it, OUT has hard links to them if the disk can link")
    add("--split", default="", metavar="NAME", help="write to images/NAME and masks/NAME; OUT may have other splits")
    add(
        "--image_suffix",
        default="",
        metavar="TEXT",
        help="colours, binary: end of the images' names, as in _leftImg8bit",
    )
    add("--label_suffix", default="", metavar="TEXT", help="colours, binary: end of the masks' names, such as _mask")
    add(
        "--threshold",
        type=int,
        metavar="N",
        help="binary: values of at least N are the object; JPEG masks are then read, too",
    )
    add("--line_width", type=float, default=10.0, metavar="PIXELS", help="width of lines, diameter of points")
    add("--workers", type=int, default=-1, metavar="N", help="processes; 0 converts in this process [number of cores]")
    return parser


if __name__ == "__main__":
    sys.exit(program.run(main))
