"""Run a conversion: read the source, write OUT, and report what became of each image."""

import difflib
import functools
import os
import posixpath
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path

from data.images.files import IMAGE_SUFFIXES
from data.layout import SCRIBBLES, list_folder
from flags.declare import flag
from support import shell
from support.errors import UserError
from support.files import check_place, read_bytes, write_atomic
from support.labels import IGNORE
from support.processes import work_on
from support.results import reserve
from support.terminal import say, warn
from tools.convert.find import find_kind
from tools.convert.formats import KINDS
from tools.convert.formats.colours import check_hint, class_file
from tools.convert.formats.labelstudio import BRUSH
from tools.convert.hidden_colours import HIDDEN
from tools.convert.output import convert
from tools.convert.reading import MAX_BYTES, list_name, output_name
from tools.convert.source import Converted, Entry, Numbering, Options, Source, number_classes, read_known

MOST_FAULTS = 20  # faults that are named
COLOUR = "#[0-9a-f]{6}"  # the name of a class that has none


@dataclass(frozen=True)
class ConvertFlags(Options):
    """Conversion."""

    kind: str = flag("", "format of the labels [found from the files]", is_argument=True, choices=tuple(KINDS))
    source: Path = flag(None, "file or folder of the labels", is_argument=True)
    out: Path = flag(
        None, "folder to write: images, masks and classes.txt; new, or of the same command", is_argument=True
    )
    unlabelled: str = flag(
        "",
        "what pixels without a label become: the class named background, or 255 [background; ignore with --scribbles]; "
        "if set to background, images without a label beside labelled ones are background, too [left out]",
        choices=("background", "ignore"),
    )
    split: str = flag("", "write to images/NAME and masks/NAME; OUT may have other splits")
    workers: int = flag(-1, "processes; 0 converts in this process [number of cores]", ge=-1)


def run(args: ConvertFlags) -> tuple[int, list[str]]:
    """Convert as the flags of tools.convert say. Return the exit status and the names of the images with masks.

    Raises UserError if a flag is wrong, or if nothing can be converted.
    """
    _check_flags(args)
    unsaved = ("workers", "out", "known")
    settings = {item.name: str(getattr(args, item.name)) for item in fields(args) if item.name not in unsaved}
    name = args.kind or find_kind(args.source, args.out)
    kind = KINDS[name]
    classes = args.classes or (class_file(args.source) if name == "colours" else "")
    args = replace(args, classes=classes, known=read_known(classes))
    source = Source(args.source, args)
    kind.read(source)
    _add_unlabelled(source, args)
    entries = _named_entries(source, args)
    if not source.names or not any(entry.record for entry in entries):
        _print_faults([*source.faults, *source.notes])
        hint = check_hint(args.source) if name == "colours" else ""
        raise UserError(f"{args.source}: {'no shape' if entries else 'nothing'} to convert as {name}{hint}")
    unlabelled = args.unlabelled or ("ignore" if args.scribbles else kind.unlabelled)
    numbering = number_classes(source, unlabelled)
    folders = ("JPEGImages", SCRIBBLES) if args.scribbles else ("images", "masks")
    images, masks = (args.out / folder / args.split for folder in folders)
    file, text, beside = args.out / "classes.txt", numbering.text(), _split_flag(source, args)
    if os.path.lexists(file) and not (file.is_file() and read_bytes(file, MAX_BYTES) == text.encode()):
        remedy = f", or convert this split with --classes {file}" if args.split else ""
        add = f", or add this export, without classes that the file lacks, by --classes {file} {beside}"
        remedy = add if beside else remedy
        raise UserError(f"{file}: lists other classes than this export: choose a new output folder{remedy}")
    if comments := [name for name in numbering.names if name.split(" ")[0] == "#"]:
        problem = f"a class is named {comments[0]!r}, which is a comment in classes.txt"
        raise UserError(f"{args.source}: {problem}: rename it")
    note = args.out / f".made_from{'_' if args.split else ''}{args.split}.json"
    results = [f"{folder.relative_to(args.out).as_posix()}/**/*" for folder in (images, masks)]
    settings |= {"kind": name, "source": str(args.source.resolve())}
    remedy = f", or add this export beside them by {beside}" if beside else ""
    reserve(note, settings, results, "tools.convert", remedy=remedy)
    write_atomic(file, text)
    write = functools.partial(convert, kind=kind, options=args, numbering=numbering, images=images, masks=masks)
    done = work_on(write, entries, args.workers, "image", "converting")
    written = [entry for entry, result in zip(entries, done, strict=True) if not result.fault]
    source.faults += _stale(masks, args, entries)
    return _report(args, source, done, written, numbering), [entry.name for entry in written]


def _split_flag(source: Source, args: ConvertFlags) -> str:
    """Return the flag that puts an export beside others in OUT; "" if --split is set or cannot be."""
    if args.split or args.scribbles or len({entry.split for entry in source.entries} - {""}) > 1:
        return ""
    return shell.quoted(["--split", args.source.resolve().stem.lstrip(".") or "more"])


def _check_flags(args: ConvertFlags) -> None:
    if not args.source.exists():
        missing = " (OUT is missing)" if str(args.source) in KINDS else ""
        raise UserError(f"{args.source}: no such file or folder{missing}")
    if args.images and not args.images.is_dir():
        raise UserError(f"--images {args.images}: no such folder")
    if args.split and (Path(args.split).name != args.split or args.split.startswith(".") or args.scribbles):
        raise UserError(f"--split {args.split}: must be the name of a folder, such as train, without --scribbles")
    check_place(args.out, "OUT", filter(None, (args.source, args.images)))


def _add_unlabelled(source: Source, args: ConvertFlags) -> None:
    """Add an entry without shapes for each image that has no label but is beside one that has; or a note on them.

    --unlabelled background makes them background; of scribbles, --unlabelled ignore takes them without a stroke. It
    does not count for images below --images, beside a single annotation file, or with faulty labels.
    """
    labelled = {Path(os.path.abspath(entry.image)): entry for entry in source.entries if isinstance(entry.record, list)}
    used, beside = {path.with_suffix("") for path in labelled}, {path.parent: entry for path, entry in labelled.items()}
    others = [
        replace(entry, name=posixpath.join(posixpath.dirname(entry.name), output_name(path.name)), where=str(path),
                image=path, record=[], size=None)
        for folder, entry in beside.items()
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in IMAGE_SUFFIXES and path.with_suffix("") not in used
        if not path.name.startswith(".") and not BRUSH.fullmatch(path.stem)
    ]  # fmt: skip
    is_sure = args.source.is_dir() and not args.images and not source.faults
    if is_sure and args.unlabelled == ("ignore" if args.scribbles else "background"):
        source.entries += others
    elif others:
        remedy = "; if they show background only, convert to a new folder with --unlabelled background"
        remedy = "" if args.unlabelled or args.scribbles or not is_sure else remedy
        source.notes.append(f"{len(others)} image(s) have no usable label, such as {others[0].where}: left out{remedy}")


def _named_entries(source: Source, args: ConvertFlags) -> list[Entry]:
    """Return the entries with the names of their files in OUT; with several splits, names begin with the split.

    An entry is left out, and a fault, if an earlier one has its image or, in any letter case, its name. Raises
    UserError if --split and the labels both name splits.
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
        entries = [replace(entry, name=list_name(entry.name)) for entry in entries]
    kept: list[Entry] = []
    taken: dict[object, Entry] = {}
    for entry in entries:
        image = entry.split, os.path.abspath(entry.image)
        uses = {entry.name.casefold(): f"output {entry.name!r} would replace", image: f"image {entry.image} is"}
        if twice := [f"its {use} that of {taken[key].where}" for key, use in uses.items() if key in taken]:
            source.faults.append(f"{entry.where}: {twice[0]}: skipped")
        else:
            kept.append(entry)
            taken |= dict.fromkeys(uses, entry)
    return kept


def _stale(masks: Path, args: ConvertFlags, entries: list[Entry]) -> list[str]:
    """Return a line on masks that an earlier start wrote and whose labels are gone, if there are any."""
    names = {entry.name.casefold() for entry in entries}
    names |= {path.stem.removeprefix(".made_from_") for path in args.out.glob(".made_from_*.json")}  # of --split
    stale = [
        paths[0]
        for name, paths in list_folder(masks, (".png",)).items()
        if names.isdisjoint((name.casefold(), name.split("/")[0]))
    ]
    remedy = f"{args.source} has no usable label for them now: remove them and their images, unless you want them"
    return [f"{len(stale)} mask(s) of an earlier start, such as {stale[0]}: {remedy}"] if stale else []


def _report(
    args: ConvertFlags, source: Source, results: list[Converted], written: list[Entry], numbering: Numbering
) -> int:
    """Print the faults, and what became of the images, of which `written` have a mask. Return the exit status."""
    faults = [*source.faults, *(result.fault for result in results if result.fault)]
    empty = [where for result in results for where in result.empty]
    thin = [where for result in results for where in result.thin]
    blank = [entry.where for entry in written if not entry.record]
    if empty:
        faults.append(f"{len(empty)} shape(s) cover no pixel of the image, such as {empty[0]}: left out")
    missing = dict[str | None, list[str]]()
    for name, places in (item for result in results for item in result.unlisted.items()):
        missing.setdefault(name, []).extend(places)
    for name, places in sorted(missing.items(), key=lambda item: -len(item[1])):
        is_colour = re.fullmatch(COLOUR, str(name))
        what = f"{name}: a colour that no class has" if is_colour else f"class {name!r}: not in the list of classes"
        near = difflib.get_close_matches(str(name), numbering.names, n=1)
        what += f" (did you mean {near[0]!r}?)" if near else ""
        faults.append(f"{what}: ignored (255) in {len(places)} place(s), such as {places[0]}")
    _print_faults(faults)
    say(*source.notes)
    num_unlabelled = sum(result.num_unlabelled for result in results)
    if num_unlabelled and numbering.unlabelled != IGNORE and not args.unlabelled:
        share = f"{num_unlabelled / sum(result.num_pixels for result in results):.1%}"
        remedy = "; if they mean unlabelled, convert to a new folder with --unlabelled ignore"
        remedy = remedy if len({*source.names} & {*numbering.names}) > 1 else ""  # a model needs 2 classes
        background = numbering.names[numbering.unlabelled]
        say(f"{share} of the pixels have no label (no shape, or black): class {background}{remedy}")
    if hidden := sum(result.is_hidden for result in results):
        say(f"{hidden} mask(s) have {HIDDEN}")
    if thin:
        loss = f"such shapes lose pixels at their borders ({shell.document('docs/converting.md')}, Edges)"
        say(f"{len(thin)} polygon(s) are less than 2 pixels wide, such as {thin[0]}: {loss}")
    if blank:
        value = "ignored (255)" if numbering.unlabelled == IGNORE else numbering.names[numbering.unlabelled]
        say(f"{len(blank)} image(s) have no shape, such as {blank[0]}: all of their pixels are {value}")
    done = f"{len(written)} image(s) with masks of {len(numbering.names)} classes"
    done += f"; {len(empty)} shape(s) cover no pixel" if empty else ""
    say(f"{args.out}: {done}; do not edit the images: they may be hard links to the originals")
    if any(re.fullmatch(COLOUR, name) for name in source.colours):
        file = args.out / "classes.txt"
        say(f"classes are named by colour: to rename them, edit the first word of each line of {file}")
    if faults:
        say(f"{len(faults)} fault(s): the lines on standard error name what was left out")
    if not written:
        raise UserError(f"{args.out}: no image could be converted")
    return 1 if faults else 0


def _print_faults(faults: list[str]) -> None:
    """Print the first lines to standard error, and the number of the others."""
    more = [f"... and {len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else []
    warn(*faults[:MOST_FAULTS], *more)
