"""Names and colours of classes, for tables, pictures and palette PNGs."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from support.errors import InputError, UserError
from support.files import read_text

PRESETS = Path(__file__).parent.parent / "configs"
PRESET_FOLDERS = {"classes": "classes", "label_map": "label_maps"}  # of each flag's presets, NAME.txt, in configs/
MAX_TEXT = 2**22  # bytes of a file; a map that lists 131072 values has fewer

_LINE = re.compile(r"(.*?)(?:\s+#([0-9a-fA-F]{6}))?")  # name and colour
_NUMBERED = re.compile(r"(\d{1,3})[\s:,.)=-]+(\S.*)")  # a class number before the name, such as "0: road"
_COMMENT = re.compile(r"#(\s|$)")  # how one begins
_LABELMAP = re.compile(r"([^:]+):(\d{1,3},\d{1,3},\d{1,3}|):[^:]*:[^:]*")  # labelmap.txt of CVAT and Datumaro
_PIXEL_VALUES = re.compile(r"pixel value\s*,\s*class", re.IGNORECASE)  # first line of Roboflow's _classes.csv


@dataclass(frozen=True)
class Classes:
    """Names and colours of the classes of a data set.

    names: one per class, by class number. colours: (256, 3) uint8 RGB, by label value; row 255 is for ignored pixels.
    """

    names: list[str]
    colours: np.ndarray

    def text(self) -> str:
        """Return the content of classes.txt: a line "name #RRGGBB" for each class."""
        pairs = zip(self.names, self.colours, strict=False)
        return "".join(f"{name} #{bytes(colour).hex()}\n" for name, colour in pairs)


def read_classes(chosen: str, num_classes: int | None, text: str | None = None) -> Classes:
    """Return the Classes of a preset or a file; for "", the names are "0", "1", ... and the colours are PASCAL VOC's.

    chosen: NAME of configs/classes/NAME.txt, path of a text file, or "". A file has one class per line: the name and,
    optionally, #RRGGBB, which replaces VOC's colour; a line that begins with "# " is a comment. Class numbers may stand
    before all names, as in "0: road". This also reads CVAT's labelmap.txt and Roboflow's _classes.csv. num_classes:
    required number of classes; None accepts any number, but gives no names for "". text: the file's text, if known.
    Raises UserError if the file cannot be read, or does not have 2 to 255 or num_classes classes.
    """
    colours = voc_colours()
    if not chosen:
        return Classes([str(number) for number in range(num_classes or 0)], colours)
    text = read_preset("classes", chosen) if text is None else text
    lines = map(str.strip, text.split("\n"))
    used = {number: line for number, line in enumerate(lines, 1) if line and not _COMMENT.match(line)}
    classes = _parse(used, chosen)
    names = [name for name, _ in classes]
    if len(names) == 1:
        raise UserError(f"--classes {chosen}: 1 name; the background is a class, too: add a line for it above")
    if not 2 <= len(names) <= 255:
        raise UserError(f"--classes {chosen}: {len(names)} names; there must be 2 to 255")
    if twice := next((name for number, name in enumerate(names) if name in names[:number]), ""):
        raise UserError(f"--classes {chosen}: the name {twice!r} occurs twice: rename one")
    if num_classes not in (None, len(names)):
        raise UserError(f"--classes {chosen}: {len(names)} names, but --numclasses is {num_classes}")
    for number, (_, colour) in enumerate(classes):
        if colour:
            colours[number] = list(colour)
    return Classes(names, colours)


def read_preset(flag: str, chosen: str) -> str:
    """Return the text of a preset, the file NAME.txt in the flag's folder of configs/, or of another file.

    flag: a key of PRESET_FOLDERS. chosen: the value of --flag: NAME, or the path of a text file; "": no text. Raises
    UserError if the file cannot be read.
    """
    if not chosen:
        return ""
    presets = {path.stem: path for path in sorted((PRESETS / PRESET_FOLDERS[flag]).glob("*.txt"))}
    path = presets.get(chosen, Path(chosen))
    try:
        return read_text(path, MAX_TEXT)
    except InputError as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise UserError(f"--{flag} {chosen}: {reason}; give a FILE, or one of {', '.join(presets)}") from None


def _parse(used: dict[int, str], chosen: str) -> list[tuple[str, bytes]]:
    """Return (name, RGB colour or b"") of each class in the order of class numbers. Raises UserError.

    used: {number of a line: its text}, without empty lines and comments. A labelmap.txt has no class numbers: the class
    named background comes first. If it has no colours, Datumaro paints VOC's colours in the order of the lines.
    """
    lines = list(used.values())
    if lines and _PIXEL_VALUES.fullmatch(lines[0]):
        for number, line in list(used.items())[1:]:
            if not re.match(r"\d{1,3}\s*,", line):
                raise UserError(f"--classes {chosen} line {number}: {line!r}: expected a number, a comma and a name")
        rows = sorted((int(value), name.strip()) for value, _, name in (line.partition(",") for line in lines[1:]))
        if [value for value, _ in rows] != list(range(len(rows))):
            raise UserError(f"--classes {chosen}: the pixel values are not 0, 1, 2, ...: list the names in a text file")
        return [(name, b"") for _, name in rows]
    if any(map(_LABELMAP.fullmatch, lines)):
        classes: list[tuple[str, bytes]] = []
        for number, line in used.items():
            match = _LABELMAP.fullmatch(line)
            colour = [int(value) for value in match[2].split(",") if value] if match else [256]
            if not match or max(colour, default=0) > 255 or (classes and bool(colour) != bool(classes[0][1])):
                expected = "expected name:red,green,blue::, as in a labelmap.txt"
                raise UserError(f"--classes {chosen} line {number}: {line!r}: {expected}")
            classes.append((match[1], bytes(colour)))
        return sorted(classes, key=lambda item: item[0].lower() != "background") if classes[0][1] else classes
    matches = [match.groups() for match in map(_LINE.fullmatch, lines) if match]
    numbered = [match.groups() for match in (_NUMBERED.fullmatch(name) for name, _ in matches) if match]
    numbers = [int(number) for number, _ in numbered] if len(numbered) == len(matches) else []
    if numbers and sorted(numbers) == list(range(1, len(numbers) + 1)):
        remedy = "add a line for class 0, or remove the numbers"
        raise UserError(f"--classes {chosen}: numbers its names from 1, but classes count from 0: {remedy}")
    if sorted(numbers) == list(range(len(matches))):  # else numbers are part of the names
        named = zip(numbers, numbered, matches, strict=True)
        matches = [(name, colour) for _, (_, name), (_, colour) in sorted(named, key=lambda row: row[0])]
    return [(name, bytes.fromhex(colour or "")) for name, colour in matches]


def voc_colours() -> np.ndarray:
    """Return PASCAL VOC's colours by class number, (256, 3) uint8 RGB.

    The lowest bit of a number is the highest bit of its red, the next one that of its green, and so on in turn.
    """
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.hstack([np.packbits(bits[:, channel::3], axis=1) for channel in range(3)])
