"""Run a conversion: read the source, write OUT, and report what became of each image."""

import argparse
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from data.classes import aligned
from data.layout import SCRIBBLES
from support.errors import UserError
from support.files import write_atomic
from support.labels import IGNORE
from support.processes import work_on
from tools.claims import claim
from tools.convert.find import find_kind
from tools.convert.formats import KINDS
from tools.convert.formats.colours import class_file
from tools.convert.formats.pairs import check_hint
from tools.convert.numbering import Numbering, number_classes, read_known
from tools.convert.output import Job, Result, convert
from tools.convert.reading import colour_of
from tools.convert.source import Entry, Source

MOST_UNLISTED = 20  # classes without a number that are named one by one
MOST_ALIKE = 10  # lines that are printed one by one though they differ only in names and numbers


def run(args: argparse.Namespace) -> tuple[int, list[str]]:
    """Convert as the flags of tools.convert say. Return the exit status and the names of the images with masks.

    Raises UserError if a flag is wrong, or if nothing can be converted.
    """
    _check_flags(args)
    settings = {flag: str(value) for flag, value in vars(args).items() if flag not in ("workers", "out")}
    name = args.kind or find_kind(args.source, args.out)
    kind = KINDS[name]
    args.line_width = args.line_width or (3 if args.scribbles else 10)
    args.classes = args.classes or (class_file(args.source) if name == "colours" else "")
    args.known = read_known(args.classes)
    source = kind.read(args.source, args)
    entries = _named_entries(source, args)
    if not entries or not source.names:
        _name_all([*source.faults, *source.notes])
        hint = check_hint(args.source) if name in ("colours", "binary") else ""
        raise UserError(f"{args.source}: {'no shape' if entries else 'nothing'} to convert as {name}{hint}")
    unlabelled = args.unlabelled or ("ignore" if args.scribbles else kind.unlabelled)
    numbering = number_classes(source, args.known, unlabelled, args.classes)
    _start(args, numbering, settings | {"kind": name, "source": str(args.source.resolve())})
    folders = ("JPEGImages", SCRIBBLES) if args.scribbles else ("images", "masks")
    job = Job(kind.draw, args, numbering, (args.out / folders[0] / args.split, args.out / folders[1] / args.split))
    results = work_on(functools.partial(convert, job=job), entries, args.workers, "image", "converting")
    status = _report(args, source, results, numbering)
    return status, [entry.name for entry, result in zip(entries, results, strict=True) if result.pixels is not None]


def _check_flags(args: argparse.Namespace) -> None:
    if not args.source.exists():
        missing = " (OUT is missing)" if str(args.source) in KINDS else ""
        raise UserError(f"{args.source}: no such file or folder{missing}")
    if args.line_width is not None and not 0 < args.line_width < 1e5:
        raise UserError(f"--line_width {args.line_width}: must be a number of pixels above 0")
    if args.split and (Path(args.split).name != args.split or args.split.startswith(".") or args.scribbles):
        raise UserError(f"--split {args.split}: must be the name of a folder, such as train, without --scribbles")
    if args.out.resolve().is_relative_to(args.source.resolve()):
        raise UserError(f"{args.out}: is in {args.source}, which the program reads: name a folder outside")


def _named_entries(source: Source, args: argparse.Namespace) -> list[Entry]:
    """Return the entries with the names of their files in OUT; with several splits, names begin with the split.

    An entry whose name an earlier one has, in any letter case, is left out, and a fault. Raises UserError if --split
    and the labels both name splits.
    """
    entries = source.entries
    splits = sorted({entry.split for entry in entries} - {""})
    if len(splits) > 1:
        if args.split:
            shown = ", ".join(splits)
            raise UserError(f"--split {args.split}: the labels have splits of their own ({shown}): drop the flag")
        without = [entry.where for entry in entries if not entry.split]
        if without:
            source.notes.append(f"{len(without)} image(s) are in none of {', '.join(splits)}, such as {without[0]}")
        entries = [replace(entry, name="/".join(filter(None, (entry.split, entry.name)))) for entry in entries]
    if args.scribbles:  # a list of VOC's has a name on each line, without folder or space
        entries = [replace(entry, name=re.sub(r"[\s/]+", "_", entry.name)) for entry in entries]
    taken: dict[str, Entry] = {}
    for entry in entries:
        other = taken.setdefault(entry.name.casefold(), entry)
        if other is not entry:
            source.faults.append(
                f"{entry.where}: its output {entry.name!r} would replace that of {other.where}: skipped"
            )
    return list(taken.values())


def _start(args: argparse.Namespace, numbering: Numbering, settings: dict[str, str]) -> None:
    """Create OUT with its classes.txt, or check that it is the result of the same command, or of another split."""
    classes = args.out / "classes.txt"
    if classes.is_file() and classes.read_text(encoding="utf-8") != numbering.text():
        raise UserError(
            f"{classes}: other classes than those of this command: name a new folder, or add --classes {classes}"
        )
    claim(args.out, settings, args.split or "all")
    if not classes.is_file():
        write_atomic(classes, numbering.text())


def _report(args: argparse.Namespace, source: Source, results: list[Result], numbering: Numbering) -> int:
    """Print the faults, the table of pixels by class, and what became of the images. Return the exit status."""
    faults = [*source.faults, *(line for result in results for line in result.faults)]
    missing = sum((result.unlisted for result in results), Counter())
    if not args.unlisted:
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
    print(f"{args.out}: {len(done)} image(s) with masks; images: {shown or 'none'}")
    if any(name in source.colours and colour_of(name) for name in numbering.names):
        file = args.out / "classes.txt"
        print(f"classes are named by colour: to rename them, edit the first word of each line of {file}")
    if faults:
        print(f"{len(faults)} fault(s): the lines above name what was left out")
    if not done:
        raise UserError(f"{args.out}: no image could be converted")
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
