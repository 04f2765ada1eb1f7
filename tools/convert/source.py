"""What a format's reader hands over: the images it found, the classes it names, and the regions it draws."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Region(NamedTuple):
    """Pixels of one class: mask (height, width) bool, whose pixel [0, 0] is pixel [top, left] of the image.

    name: of the class; None for pixels to ignore (255).
    """

    name: str | None
    top: int
    left: int
    mask: np.ndarray


@dataclass(frozen=True)
class Options:
    """The flags that readers use; each has the name and the meaning of its flag.

    images: folder of the images, None to look for them. classes: --classes, or the class file of the export. known:
    (name, (red, green, blue)) of each of its classes.
    """

    images: Path | None = None
    image_suffix: str = ""
    label_suffix: str = ""
    line_width: float = 10
    threshold: int | None = None
    unlabelled: str = ""
    unlisted: str = ""
    classes: str = ""
    known: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class Entry:
    """An image to convert.

    name: of the output, without suffix; folders are separated by "/". where: file, or file and position in it, for
    messages. image: file of the image, or the file to extract() it from. record: what draw() needs; it is pickled.
    size: (height, width) that the annotation declares, None if it declares none.
    split: train, val, test or another subset of the export, "" if it names none.
    extract: returns the bytes of an image that is embedded in the file `image`, and their suffix.
    """

    name: str
    where: str
    image: Path
    record: Any
    size: tuple[int, int] | None = None
    extract: Callable[[Path], tuple[bytes, str]] | None = None
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


# Yields the regions of an entry in drawing order: later ones cover earlier ones. The arguments are the entry, the
# image's (height, width), the options, and a list to which the reader adds a line for each shape that covers nothing.
# Raises InputError if the mask would be wrong: the entry is then skipped.
Draw = Callable[[Entry, tuple[int, int], Options, list[str]], Iterator[Region]]


@dataclass(frozen=True)
class Kind:
    """A format.

    about: for --help. unlabelled: default of --unlabelled. draw: see Draw. class_files: names of files in
    an export that may have names and colours of the classes.
    """

    read: Callable[[Path, Options], Source]
    draw: Draw
    about: str
    unlabelled: str = "background"
    class_files: tuple[str, ...] = ()
