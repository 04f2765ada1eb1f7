"""Give each class of a source its number, name and colour."""

from dataclasses import dataclass

import numpy as np

from data.classes import Classes, read_classes, voc_colours
from support.errors import UserError
from support.labels import IGNORE
from tools.convert.source import Source

BACKGROUND = ("background", "_background_", "__background__")  # in any letter case; the second one is LabelMe's
IGNORED = "__ignore__"  # LabelMe's name for what is not labelled


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
    cleaned = {name: " ".join(name.split()) for name in source.names}
    if known:
        names, colours = known.names, known.colours
    else:
        own = [name for name in dict.fromkeys(cleaned.values()) if name and name != IGNORED]
        background = [name for name in own if name.lower() in BACKGROUND]
        if not background and source.unlabelled and unlabelled == "background":
            background = ["background"]
        names, colours = [*background, *(name for name in own if name not in background)], voc_colours()
        for number, name in enumerate(names):
            colours[number] = source.colours.get(name, colours[number])
    if not 2 <= len(names) <= 255:
        raise UserError(f"{len(names)} class(es) ({', '.join(names[:5]) or 'none'}): there must be 2 to 255")
    numbers = {name: number for number, name in enumerate(names)} | {IGNORED: IGNORE}
    numbers |= {name: numbers[clean] for name, clean in cleaned.items() if clean in numbers}
    if not source.unlabelled or unlabelled == "ignore":
        return Numbering(names, colours, numbers, IGNORE)
    background = [name for name in names if name.lower() in BACKGROUND]
    if not background:
        raise UserError(
            f"--classes {chosen}: no class is named background, but pixels without a label need one: add a line "
            "'background' to a copy of the file, or ignore these pixels with --unlabelled ignore"
        )
    return Numbering(names, colours, numbers, numbers[background[0]])
