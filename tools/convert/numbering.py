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
    classes = read_classes(chosen, None)
    kept = [number for number, name in enumerate(classes.names) if name != IGNORED]
    colours = voc_colours()
    for number, old in enumerate(kept):
        if (classes.colours[old] != voc_colours()[old]).any():  # a colour of its own
            colours[number] = classes.colours[old]
    return Classes([classes.names[number] for number in kept], colours)


def number_classes(source: Source, known: Classes | None, unlabelled: str, chosen: str) -> Numbering:
    """Return the numbers of a source's classes.

    known: classes of --classes, whose order counts; None: the source's own order, after "background" if pixels without
    a class are background. unlabelled: "background" or "ignore". chosen: --classes, for messages. Raises UserError if
    there are not 2 to 255 classes, or if `known` has no class of the source, or no background that is needed.
    """
    if known:
        names, colours = known.names, known.colours
        own = [name for name in source.names if name.lower() not in (*BACKGROUND, IGNORED)]
        if own and not {" ".join(name.split()) for name in own} & set(names):
            shown = ", ".join(own[:5]) + (", ..." if len(own) > 5 else "")
            problem = f"none of its {len(names)} classes is in the labels, whose classes are {shown}: correct the file"
            raise UserError(f"--classes {chosen}: {problem}")
    else:
        cleaned = dict.fromkeys(" ".join(name.split()) for name in source.names)
        own = [name for name in cleaned if name and name != IGNORED and name.lower() not in BACKGROUND]
        background = [name for name in cleaned if name.lower() in BACKGROUND]
        if not background and source.unlabelled and unlabelled == "background":
            background = ["background"]
        names, colours = background + own, voc_colours()
        for number, name in enumerate(names):
            colours[number] = source.colours.get(name, colours[number])
    if not 2 <= len(names) <= 255:
        raise UserError(f"{len(names)} class(es) ({', '.join(names[:5]) or 'none'}): there must be 2 to 255")
    numbers = {name: number for number, name in enumerate(names)} | {IGNORED: IGNORE}
    numbers |= {name: numbers[" ".join(name.split())] for name in source.names if " ".join(name.split()) in numbers}
    if not source.unlabelled or unlabelled == "ignore":
        return Numbering(names, colours, numbers, IGNORE)
    background = [name for name in names if name.lower() in BACKGROUND]
    if not background:
        raise UserError(
            f"--classes {chosen}: no class is named background, but pixels without a label need one: add a line "
            "'background' to a copy of the file, or ignore these pixels with --unlabelled ignore"
        )
    return Numbering(names, colours, numbers, numbers[background[0]])
