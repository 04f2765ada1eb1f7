"""What a format's reader hands over: the images it found, the classes it names, and the regions it draws."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from support.errors import InputError
from tools.convert.polygons import Patch

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
    """

    name: str
    where: str
    image: Path
    record: Any
    size: tuple[int, int] | None = None
    split: str = ""


@dataclass
class Source:
    """A data set in its own format.

    names: classes in the format's own order. colours: {name: (red, green, blue)}, if the format has them.
    unlabelled: whether there may be pixels without a class.
    faults: one line for each entry that cannot be used. notes: lines for the user that are no faults.
    """

    names: list[str] = field(default_factory=list)
    colours: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unlabelled: bool = True
    entries: list[Entry] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def shape_names(self) -> list[str]:
        """Return the classes of all entries' Shapes, each once, in their order."""
        return list(dict.fromkeys(shape.name for entry in self.entries for shape in entry.record))


# Yields (class or None, pixels) of an entry in drawing order: later ones cover earlier ones. The arguments are the
# entry, the image's (height, width), the options, and a list to which it adds a line for each shape that is left out.
# Raises InputError if the mask would be wrong: the entry is then skipped.
Draw = Callable[[Entry, tuple[int, int], Options, list[str]], Iterator[tuple[str | None, Patch]]]

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
    patch: Patcher, entry: Entry, size: tuple[int, int], options: Options, faults: list[str]
) -> Iterator[tuple[str | None, Patch]]:
    for name, where, data in entry.record:
        found = patch(data, where, size, options.line_width)
        if found.mask.any():
            yield name, found
        else:
            faults.append(f"{where}: covers no pixel of the image: left out")


def collect(read: Callable[[Any], Any], items: Any, faults: list[str]) -> Iterator[Any]:
    """Yield read(item) of each item; add a line to `faults` for each that raises InputError."""
    for item in items:
        try:
            result = read(item)
        except InputError as error:
            faults.append(str(error))
        else:
            yield result
