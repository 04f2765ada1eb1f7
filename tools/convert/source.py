"""Define what a format's reader fills in (images, classes, shapes), and number the classes."""

import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from posixpath import splitext
from typing import Any, NamedTuple

from data.classes import Classes, read_classes, voc_colours
from data.folders import list_files
from data.images.files import IMAGE_SUFFIXES
from flags.declare import flag
from support.errors import InputError, UserError
from support.labels import BACKGROUND, IGNORE
from tools.convert.drawing import Patch
from tools.convert.reading import images_by_name, output_name, split_in

IGNORED = "__ignore__"  # LabelMe's name for what is not labelled


@dataclass(frozen=True)
class Options:
    """Labels and images."""

    scribbles: bool = flag(False, "write JPEGImages, pascal_2012_scribble and ImageSets: 255 where no line or area is")
    classes: str = flag(
        "",
        "classes in order, with colours: voc, camvid, cityscapes, ade20k, cocostuff, or FILE [labels' order]",
    )
    images: Path | None = flag(None, "folder of the images [beside the labels, or where the labels say]")
    image_suffix: str = flag("", "colours: end of the images' names: _leftImg8bit")
    label_suffix: str = flag("", "colours: end of the masks' names, such as _mask")
    line_width: float | None = flag(None, "width of lines in pixels [10; scribbles: 3]", gt=0, lt=1e5)

    known: Classes | None = None  # not a flag: the classes of --classes


class Shape(NamedTuple):
    """A shape of an annotation. name: its class, or None to ignore its pixels. where: its place, for messages."""

    name: str | None
    where: str
    data: Any


@dataclass(frozen=True)
class Entry:
    """An image to convert.

    name: the output's name without suffix, with "/" after each folder. where: the file, or a position in it, for
    messages. image: its file, or LabelMe's JSON file that contains it. record: its Shapes, or the file of its mask.
    size: (height, width) in the annotation, or None. split: train, val, test or another subset of the export, or "".
    """

    name: str
    where: str
    image: Path
    record: Any
    size: tuple[int, int] | None = None
    split: str = ""


@dataclass
class Source:
    """A data set in its own format: the file or folder `path`, and what the format's read() adds.

    names: classes in the format's own order. colours: {name: (red, green, blue)}, if the format has them.
    unlabelled: whether there may be pixels without a class. ignored: names whose pixels become 255 without a message.
    faults: one line for each entry that cannot be used. notes: lines for the user that are no faults.
    """

    path: Path
    options: Options
    names: list[str] = field(default_factory=list)
    colours: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unlabelled: bool = True
    ignored: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    images: dict[Path, dict[str, set[Path]]] = field(default_factory=dict)  # images_by_name() of folders

    @property
    def root(self) -> Path:
        """Return the folder of the export, to which the names of outputs are relative."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def shape_names(self) -> list[str]:
        """Return the classes of all entries' Shapes, each once, in their order."""
        return list(dict.fromkeys(shape.name for entry in self.entries for shape in entry.record))

    def output_name(self, path: Path) -> str:
        """Return the name of the output for an annotation file that belongs to one image."""
        return output_name(path.relative_to(self.root).as_posix())

    def find_image(self, reference: str, where: str, *roots: Path, subset: str = "") -> Path:
        """Return the image that an annotation names: at this path in a root or its folder `images`, or else the one
        file of this name below the roots.

        roots: folders to look in; --images takes their place, and the export's folder is the default. subset: a folder
        to look in first, such as "Train". A file counts if its folder is named after the subset or its split, and does
        not if its folder is another split's. If no file has the name, one with another suffix counts, because images
        are often saved again as JPEG. Raises InputError if no file counts, or several do.
        """
        folders = [self.options.images] if self.options.images else list(dict.fromkeys(roots)) or [self.root]
        path = PurePosixPath(reference.replace("\\", "/"))
        whole = subset / path
        # A reference that leads out of the folders that the user named finds nothing there.
        for root in [] if whole.is_absolute() or ".." in whole.parts else folders:
            for file in (root / "images" / whole, root / whole, root / "images" / path, root / path):
                # os.path.isfile() returns False if the name is too long; Path.is_file() would raise.
                if path.suffix.lower() in IMAGE_SUFFIXES and os.path.isfile(file):
                    return file
        self.images |= {root: images_by_name(root) for root in folders if root not in self.images}
        name = unicodedata.normalize("NFC", path.name)
        named = (
            set().union(*(self.images[root].get(key, ()) for root in folders)) for key in (name, splitext(name)[0])
        )
        files = next(filter(None, named), set())
        if subset:
            top = os.path.commonpath([os.path.abspath(root) for root in folders])
            parts = {file: file.parent.relative_to(top).parts for file in files}
            wanted = {subset, split_in(subset)} - {""}
            of_subset = {file for file in files if any({part, split_in(part)} & wanted for part in parts[file])}
            files = of_subset or {file for file in files if not any(map(split_in, parts[file]))}
        if len(files) == 1:
            return next(iter(files))
        problem = f"not below {' or '.join(map(str, folders))}; name its folder with --images DIR"
        if files:
            problem = f"{len(files)} files have its name, such as {', '.join(map(str, sorted(files)[:2]))}"
        raise InputError(f"{where}: image {reference!r}: {problem}")

    def collect(self, read: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Yield read(item) of each item. An InputError becomes a line of `faults` instead, and the others go on."""
        for item in items:
            try:
                yield read(item)
            except InputError as error:
                self.faults.append(str(error))

    def read_files(self, suffix: str, read: Callable[[Path], list[Entry]]) -> None:
        """Add the entries that `read` returns for each annotation file with a suffix, such as ".json".

        Skips hidden files and folders. Raises UserError if there is no such file.
        """
        if self.path.is_file() and self.path.suffix.lower() != suffix:
            raise UserError(f"{self.path}: expected a {suffix} file; unpack a .zip file and name the folder")
        files = [self.path] if self.path.is_file() else sorted(list_files(self.path, (suffix,)))
        if not files:
            raise UserError(f"{self.path}: no {suffix} file in it")
        for entries in self.collect(read, files):
            self.entries += entries


@dataclass
class Converted:
    """What became of an entry. fault: why its image and mask are not written, "" if they are.

    is_hidden: whether the mask has colours under alpha 0.
    num_pixels, num_unlabelled: pixels of the image, and those in no shape. unlisted: {class without a number: places}.
    empty, thin: places of shapes without a pixel, and of thin polygons.
    """

    fault: str = ""
    is_hidden: bool = False
    num_pixels: int = 0
    num_unlabelled: int = 0
    empty: list[str] = field(default_factory=list)
    thin: list[str] = field(default_factory=list)
    unlisted: dict[str | None, list[str]] = field(default_factory=dict)


class Kind(NamedTuple):
    """A format. read: fills in a Source. about: its line of --help. unlabelled: its default of --unlabelled.

    patch(shape's data, where, image's (height, width), line width): returns the pixels of a shape.
    shapes(record, (height, width), flags, converted): yields the Shapes of an entry, later ones over earlier ones; None
    if the record is a list of them. Both raise InputError if the mask would be wrong, so that the entry is skipped.
    """

    read: Callable[[Source], None]
    patch: Callable[[Any, str, tuple[int, int], float], Patch]
    about: str
    unlabelled: str = "background"
    shapes: Callable[[Path, tuple[int, int], Options, Converted], Iterator[Shape]] | None = None


@dataclass(frozen=True)
class Numbering(Classes):
    """The label values of a source's classes.

    numbers: {class of the source, or None to ignore: label value}. unlabelled: the value of pixels without a class.
    """

    numbers: dict[str | None, int]
    unlabelled: int


def read_known(chosen: str) -> Classes | None:
    """Return the classes of --classes without LabelMe's __ignore__, or None without the flag."""
    if not chosen:
        return None
    classes, colours = read_classes(chosen, None), voc_colours()
    kept = [number for number, name in enumerate(classes.names) if name != IGNORED]
    for number, old in enumerate(kept):
        if (classes.colours[old] != voc_colours()[old]).any():  # the file gives it a colour
            colours[number] = classes.colours[old]
    return Classes([classes.names[number] for number in kept], colours)


def number_classes(source: Source, unlabelled: str) -> Numbering:
    """Return the numbers of a source's classes: in the order of --classes, or else of the source after "background".

    unlabelled: "background" or "ignore", for pixels without a class. Raises UserError if there are not 2 to 255
    classes, or if --classes lacks a background that is needed.
    """
    known = source.options.known
    cleaned = {name: " ".join(name.split()).encode(errors="replace").decode() for name in source.names}  # "\ud800"
    if known:
        names, colours = known.names, known.colours
    else:
        labels = [name for name in dict.fromkeys(cleaned.values()) if name and name != IGNORED]
        background = [name for name in labels if name.lower() in BACKGROUND]
        if not background and source.unlabelled and unlabelled == "background":
            background = ["background"]
        names, colours = [*background, *(name for name in labels if name not in background)], voc_colours()
        for number, name in enumerate(names[:255]):
            colours[number] = source.colours.get(name, colours[number])
    if not 2 <= len(names) <= 255:
        remedy = "label another, such as background" if len(names) < 2 else "name those to keep by --classes FILE"
        shown = f"{len(names)} class(es) ({', '.join(names[:5]) or 'none'})"
        raise UserError(f"the labels have {shown}, but a model needs 2 to 255: {remedy}")
    twice = [name for name, count in Counter(cleaned[name] for name in source.names).items() if count > 1]
    source.notes += [f"several classes are named {name!r}: they become one" for name in twice]
    numbers: dict[str | None, int] = {name: number for number, name in enumerate(names)}
    numbers |= dict.fromkeys((None, IGNORED, *source.ignored), IGNORE)
    numbers |= {name: numbers[clean] for name, clean in cleaned.items() if clean in numbers}
    if not source.unlabelled or unlabelled == "ignore":
        return Numbering(names, colours, numbers, IGNORE)
    background = [name for name in names if name.lower() in BACKGROUND]
    if not background:
        problem = "no class is named background, but pixels without a label need one"
        remedy = "or add a line 'background' to a copy of the file, and convert all labels with it"
        ignore = "ignore them with --unlabelled ignore"
        raise UserError(f"--classes {source.options.classes}: {problem}: {ignore}; {remedy}")
    return Numbering(names, colours, numbers, numbers[background[0]])
