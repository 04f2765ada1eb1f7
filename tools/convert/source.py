"""What a format's reader hands over: images, classes and the regions it draws; and the numbers of the classes."""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data.classes import Classes, read_classes, voc_colours
from support.errors import InputError, UserError
from support.labels import BACKGROUND, IGNORE
from tools.convert.polygons import Patch

IGNORED = "__ignore__"  # LabelMe's name for what is not labelled

Options = argparse.Namespace  # the flags of tools.convert; known: the Classes of --classes, or None


class Shape(NamedTuple):
    """A shape of an annotation: its class, None to ignore its pixels; its place, for messages; its data."""

    name: str | None
    where: str
    data: Any


@dataclass(frozen=True)
class Entry:
    """An image to convert.

    name: of the output, without suffix; folders are separated by "/". where: file, or file and position in it, for
    messages. record: what Draw needs: the Shapes, or the file of the mask. size: (height, width) that the annotation
    declares, None if it declares none. split: train, val, test or another subset of the export, "" if it names none.
    extract: returns the image's content and suffix from the file `image`, if the image is inside of an annotation file.
    """

    name: str
    where: str
    image: Path
    record: Any
    size: tuple[int, int] | None = None
    split: str = ""
    extract: Callable[[Path], tuple[bytes, str]] | None = None


@dataclass
class Source:
    """A data set in its own format.

    names: classes in the format's own order. colours: {name: (red, green, blue)}, if the format has them.
    unlabelled: whether there may be pixels without a class. ignored: names whose pixels become 255 without more words.
    faults: one line for each entry that cannot be used. notes: lines for the user that are no faults.
    """

    names: list[str] = field(default_factory=list)
    colours: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unlabelled: bool = True
    ignored: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def shape_names(self) -> list[str]:
        """Return the classes of all entries' Shapes, each once, in their order."""
        return list(dict.fromkeys(shape.name for entry in self.entries for shape in entry.record))


@dataclass
class Result:
    """What became of an entry: whether its files are there, faults, and {class without a number: shapes}.

    num_pixels, num_unlabelled: pixels of the image, and those in no shape. Places: empty: of shapes without a pixel;
    thin: of thin polygons; blank: of the image if it has no shape.
    """

    is_written: bool = False
    num_pixels: int = 0
    num_unlabelled: int = 0
    faults: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    thin: list[str] = field(default_factory=list)
    blank: list[str] = field(default_factory=list)
    unlisted: Counter = field(default_factory=Counter)


# Yields (class or None, pixels) of an entry in drawing order: later ones cover earlier ones. The arguments are the
# entry, the image's (height, width), the options, and the Result, to which it adds shapes that are empty or thin.
# Raises InputError if the mask would be wrong: the entry is then skipped.
Draw = Callable[[Entry, tuple[int, int], Options, Result], Iterator[tuple[str | None, Patch]]]

# Returns the pixels of a shape: patch(data, where, size, line width).
Patcher = Callable[[Any, str, tuple[int, int], float], Patch]


class Kind(NamedTuple):
    """A format. about: for --help. unlabelled: default of --unlabelled."""

    read: Callable[[Path, Options], Source]
    draw: Draw
    about: str
    unlabelled: str = "background"


def shapes(patch: Patcher) -> Draw:
    """Return the Draw of a format whose records are lists of Shapes."""
    return partial(_draw_shapes, patch)


def _draw_shapes(
    patch: Patcher, entry: Entry, size: tuple[int, int], options: Options, result: Result
) -> Iterator[tuple[str | None, Patch]]:
    for name, where, data in entry.record:
        found = patch(data, where, size, options.line_width)
        if found.mask.any():
            result.thin += [where] if found.is_thin else []
            yield name, found
        else:
            result.empty.append(where)


def collect(read: Callable[[Any], Any], items: Any, faults: list[str]) -> Iterator[Any]:
    """Yield read(item) of each item; add a line to `faults` for each that raises InputError."""
    for item in items:
        try:
            result = read(item)
        except InputError as error:
            faults.append(str(error))
        else:
            yield result


@dataclass(frozen=True)
class Numbering:
    """names and colours as in Classes. numbers: {class of the source: label value}. unlabelled: the value elsewhere."""

    names: list[str]
    colours: np.ndarray
    numbers: dict[str, int]
    unlabelled: int

    def text(self) -> str:
        """Return the content of classes.txt: a line "name #RRGGBB" for each class."""
        pairs = zip(self.names, self.colours, strict=False)
        return "".join(f"{name} #{bytes(colour).hex()}\n" for name, colour in pairs)


def read_known(chosen: str) -> Classes | None:
    """Return the classes of --classes, without LabelMe's __ignore__, or None if it is not given."""
    if not chosen:
        return None
    classes, colours = read_classes(chosen, None), voc_colours()
    kept = [number for number, name in enumerate(classes.names) if name != IGNORED]
    for number, old in enumerate(kept):
        if (classes.colours[old] != voc_colours()[old]).any():  # a colour of its own
            colours[number] = classes.colours[old]
    return Classes([classes.names[number] for number in kept], colours)


def number_classes(source: Source, known: Classes | None, unlabelled: str, chosen: str) -> Numbering:
    """Return the numbers of a source's classes.

    known: classes of --classes, whose order counts; None: the source's own order, after "background" if pixels without
    a class are background. unlabelled: "background" or "ignore". chosen: --classes, for messages. Raises UserError if
    there are not 2 to 255 classes, or if `known` has no background that is needed.
    """
    cleaned = {name: " ".join(name.split()).encode(errors="replace").decode() for name in source.names}  # "\ud800"
    if known:
        names, colours = known.names, known.colours
    else:
        own = [name for name in dict.fromkeys(cleaned.values()) if name and name != IGNORED]
        background = [name for name in own if name.lower() in BACKGROUND]
        if not background and source.unlabelled and unlabelled == "background":
            background = ["background"]
        names, colours = [*background, *(name for name in own if name not in background)], voc_colours()
    if not 2 <= len(names) <= 255:
        remedy = "label another, such as background" if len(names) < 2 else "name those to keep by --classes FILE"
        found = f"{len(names)} class(es) ({', '.join(names[:5]) or 'none'})"
        raise UserError(f"the labels have {found}, but a model needs 2 to 255: {remedy}")
    for number, name in enumerate(names if not known else ()):
        colours[number] = source.colours.get(name, colours[number])
    twice = [name for name, count in Counter(cleaned[name] for name in source.names).items() if count > 1]
    source.notes += [f"several classes are named {name!r}: they become one" for name in twice]
    numbers = {name: number for number, name in enumerate(names)} | dict.fromkeys((IGNORED, *source.ignored), IGNORE)
    numbers |= {name: numbers[clean] for name, clean in cleaned.items() if clean in numbers}
    if not source.unlabelled or unlabelled == "ignore":
        return Numbering(names, colours, numbers, IGNORE)
    background = [name for name in names if name.lower() in BACKGROUND]
    if not background:
        raise UserError(
            f"--classes {chosen}: no class is named background, but pixels without a label need one: ignore them with "
            "--unlabelled ignore; or add a line 'background' to a copy of the file, and convert all labels with it"
        )
    return Numbering(names, colours, numbers, numbers[background[0]])
