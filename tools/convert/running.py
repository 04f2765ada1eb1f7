"""Run a conversion: read the source, write OUT, and report what became of each image."""

import argparse
import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from data.classes import aligned
from support.errors import UserError
from support.labels import IGNORE
from support.processes import work_on
from tools.convert.find import find_kind
from tools.convert.formats.pairs import beside
from tools.convert.kinds import KINDS
from tools.convert.numbering import Numbering, number_classes, read_known
from tools.convert.output import Job, Result, convert, drop_clashes, prepare
from tools.convert.reading import colour_of
from tools.convert.source import Entry, Kind, Options, Source

MOST_UNLISTED = 20  # classes without a number that are named one by one
MOST_ALIKE = 10  # lines that are printed one by one though they differ only in names and numbers


class Layout(NamedTuple):
    """Where images and masks go in OUT.

    images, masks: folders. name: returns the name of an entry's files. finish: called with OUT and the names of the
    images that were converted; returns lines with the commands that come next.
    """

    images: str
    masks: str
    name: Callable[[str], str]
    finish: Callable[[Path, list[str]], list[str]]


def run(args: argparse.Namespace, layout: Layout) -> int:
    """Convert as the flags of tools.convert say, and return the exit status. Raises UserError if a flag is wrong."""
    if not args.source.exists():
        missing = " (OUT is missing)" if str(args.source) in KINDS else ""
        raise UserError(f"{args.source}: no such file or folder{missing}")
    name = args.kind or find_kind(args.source, args.out)
    kind = KINDS[name]
    if not 0 < args.line_width < 1e5:
        raise UserError(f"--line_width {args.line_width}: must be a number of pixels above 0")
    if args.split and (Path(args.split).name != args.split or args.split.startswith(".")):
        raise UserError(f"--split {args.split}: must be the name of a folder, such as train")
    if args.out.resolve().is_relative_to(args.source.resolve()):
        raise UserError(f"{args.out}: is in {args.source}, which the program reads: name a folder outside")
    classes = args.classes or _class_file(args.source, kind)
    known = read_known(classes)
    unlabelled = args.unlabelled or kind.unlabelled
    pairs = zip(known.names, known.colours.tolist(), strict=False) if known else ()
    options = Options(
        **{item.name: getattr(args, item.name) for item in fields(Options) if item.name not in ("classes", "known")},
        classes=classes,
        known=tuple((name, tuple(colour)) for name, colour in pairs),
    )
    source = kind.read(args.source, options)
    renamed = [replace(entry, name=layout.name(name)) for entry, name in _with_splits(source, args.split)]
    entries = drop_clashes(renamed, source.faults)
    if not entries or not source.names:
        _name_all([*source.faults, *source.notes])
        raise UserError(f"{args.source}: {'no shape' if entries else 'nothing'} to convert as {name}")
    numbering = number_classes(source, known, unlabelled, classes)
    settings = {flag: str(value) for flag, value in vars(args).items() if flag not in ("workers", "out")}
    prepare(args.out, numbering.text(), args.split, settings | {"kind": name, "source": str(args.source.resolve())})
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
        folders=(layout.images, layout.masks),
    )
    results = work_on(functools.partial(convert, job=job), entries, args.workers, "image", "converting")
    status = _report(args.out, source, results, numbering, args.unlisted)
    done = [entry.name for entry, result in zip(entries, results, strict=True) if result.pixels is not None]
    print("\n".join(layout.finish(args.out, done)))
    return status


def _class_file(source: Path, kind: Kind) -> str:
    """Return the path of the export's file of names and colours, "" without one, and say that it is used."""
    found = [path for name in kind.class_files if (path := beside(source, name)) and path.is_file()]
    # Without colours, a list of names does not say which class a colour is.
    coloured = [path for path in found if any(char in path.read_text("utf-8", "replace") for char in "#:")]
    if coloured:
        print(f"classes: {coloured[0]}")
    return str(coloured[0]) if coloured else ""


def _with_splits(source: Source, flag: str) -> list[tuple[Entry, str]]:
    """Return the entries with their names, which begin with the folder of the split if the export has several.

    flag: value of --split. Raises UserError if both name splits.
    """
    splits = sorted({entry.split for entry in source.entries} - {""})
    if len(splits) < 2:
        return [(entry, entry.name) for entry in source.entries]
    if flag:
        raise UserError(f"--split {flag}: the labels have splits of their own ({', '.join(splits)}): drop the flag")
    without = [entry.where for entry in source.entries if not entry.split]
    if without:
        source.notes.append(f"{len(without)} image(s) are in none of {', '.join(splits)}, such as {without[0]}")
    return [(entry, "/".join(filter(None, (entry.split, entry.name)))) for entry in source.entries]


def _report(out: Path, source: Source, results: list[Result], numbering: Numbering, unlisted: str) -> int:
    """Print the faults, the table of pixels by class, and what became of the images.

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
    if any(name in source.colours and colour_of(name) for name in numbering.names):
        print(f"classes are named by colour: to rename them, edit the first word of each line of {out / 'classes.txt'}")
    if faults:
        print(f"{len(faults)} fault(s): the lines above name what was left out")
    if not done:
        raise UserError(f"{out}: no image could be converted")
    return 1 if faults else 0


def _name_all(faults: Iterable[str]) -> None:
    """Print the lines; of many that differ only in names and numbers, the first three and the number of the others."""
    alike: dict[str, list[str]] = {}
    for line in faults:
        alike.setdefault(re.sub(r"\S*[\d./\\]\S*", "", line), []).append(line)
    for lines in alike.values():
        shown = lines if len(lines) <= MOST_ALIKE else [*lines[:3], f"... and {len(lines) - 3} more lines like these"]
        for line in shown:
            tqdm.write("".join(char if char.isprintable() else repr(char)[1:-1] for char in line), file=sys.stderr)


def _table(pixels: list[dict[int, int]], numbering: Numbering) -> list[str]:
    """Return a text table as lines: pixels and images of each class, and the ignored ones. pixels: of each mask."""
    total = sum(sum(counts.values()) for counts in pixels) or 1
    rows = [["class", "name", "pixels", "share", "images"]]
    for number, name in [*enumerate(numbering.names), (IGNORE, "(ignored)")]:
        count = sum(counts.get(number, 0) for counts in pixels)
        images = sum(number in counts for counts in pixels)
        rows.append([str(number), name, str(count), f"{count / total:.2%}", str(images)])
    return [f"  {line}" for line in aligned(rows)]
