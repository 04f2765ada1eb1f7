"""Names and colours of classes, for tables, pictures and palette PNGs."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from errors import UserError

PRESETS = Path(__file__).parent.parent / "configs" / "classes"  # NAME.txt is --classes NAME

_LINE = re.compile(r"(?P<name>.*?)(\s+#(?P<colour>[0-9a-fA-F]{6}))?")


@dataclass(frozen=True)
class Classes:
    """names: one a class. colours: RGB by label value, (256, 3) uint8; that of 255 is of ignored pixels."""

    names: list[str]
    colours: np.ndarray


def read_classes(chosen: str, num_classes: int | None) -> Classes:
    """The classes of the preset `chosen`, or of the file of that path; numbers in VOC's colours if it is "".

    num_classes: how many there must be; None takes as many as the file has. A file has one class a line: its name and,
    where VOC's colours are not wanted, #RRGGBB.
    """
    colours = voc_colours()
    if not chosen:
        return Classes([str(number) for number in range(num_classes or 0)], colours)
    preset = PRESETS / f"{chosen}.txt"
    try:
        lines = (preset if preset.is_file() else Path(chosen)).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(sorted(path.stem for path in PRESETS.glob("*.txt")))
        raise UserError(
            f"--classes {chosen}: {getattr(error, 'strerror', 'not UTF-8 text')}; give a FILE, or one of {known}"
        ) from None
    names: list[str] = []
    for line in lines:
        match = _LINE.fullmatch(line.strip())
        assert match is not None
        if not match["name"]:
            continue
        if match["colour"] and len(names) < len(colours):
            colours[len(names)] = list(bytes.fromhex(match["colour"]))
        names.append(match["name"])
    if not 2 <= len(names) <= 255:
        raise UserError(f"--classes {chosen}: {len(names)} names; there must be 2 to 255")
    if num_classes not in (None, len(names)):
        raise UserError(f"--classes {chosen}: {len(names)} names, but --numclasses is {num_classes}")
    return Classes(names, colours)


def voc_colours() -> np.ndarray:
    """PASCAL VOC's colours, (256, 3) uint8: each class number's bits, spread over the three channels."""
    numbers = np.arange(256)
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= (((numbers >> (3 * bit + channel)) & 1) << (7 - bit)).astype(np.uint8)
    return colours
