"""ScribbleSup's own XML files of PASCAL VOC images, one for each image: lines that people drew.

Format: scribble_annotation/pascal_2012 of ScribbleSup (Lin et al., CVPR 2016). An `annotation` has `filename`, `size`
(`width`, `height`) and a `polygon` for each line, which is open in spite of its name: `tag`, its class, and `point`
elements with `X` and `Y`: pixels counted from 1. meng-tang/rloss, convertscribbles.m, draws them 3 pixels wide.
"""

import functools
from collections.abc import Iterator
from pathlib import Path

from data.classes import read_classes
from support.errors import InputError
from tools.convert import polygons
from tools.convert.polygons import Patch, read_points
from tools.convert.reading import ImageFinder, Shape, annotation_files, draw_shapes, output_name, read_xml, size_of
from tools.convert.source import Entry, Options, Region, Source

# Tags that differ from VOC's names.
NAMES = {
    "plane": "aeroplane",
    "bike": "bicycle",
    "table": "dining table",
    "plant": "potted plant",
    "monitor": "tv monitor",
}


def read(source: Path, options: Options) -> Source:
    """Return the images and classes of a folder of ScribbleSup's files, or of one file.

    Without other classes than VOC's, the classes are VOC's 21 in their order.
    """
    result = Source()
    root = source if source.is_dir() else source.parent
    finder, names = ImageFinder([root], options.images), set()
    for path in annotation_files(source, ".xml"):
        try:
            entry = _entry(path, root, finder)
        except InputError as error:
            result.faults.append(str(error))
            continue
        result.entries.append(entry)
        names |= {name for name, _ in entry.record}
    voc = read_classes("voc", None).names
    result.names = voc if names <= set(voc) else sorted(names)
    return result


def _entry(path: Path, root: Path, finder: ImageFinder) -> Entry:
    """Return the entry of a file. Its record has (class, [(X, Y), ...] as text) of each line. Raises InputError."""
    content = read_xml(path)
    if content.tag != "annotation" or content.find("object") is not None:
        raise InputError(f"{path}: no scribbles of ScribbleSup: expected <annotation> with <polygon> elements")
    size = None
    if content.find("size") is not None:
        sides = {key: content.findtext(f"size/{key}", "") for key in ("height", "width")}
        if not all(text.strip().isdecimal() for text in sides.values()):
            raise InputError(f"{path}: size: height or width is missing or not a number")
        size = size_of({key: int(text) for key, text in sides.items()}, "height", "width", str(path))
    record = []
    for number, line in enumerate(content.findall("polygon"), 1):
        tag = line.findtext("tag", "").strip()
        if not tag:
            raise InputError(f"{path}: polygon {number}: it has no tag")
        points = [(point.findtext("X", "").strip(), point.findtext("Y", "").strip()) for point in line.findall("point")]
        record.append((NAMES.get(tag, tag), points))
    reference = content.findtext("filename", "").strip() or f"{path.stem}.jpg"
    image = finder.find(reference, str(path))
    return Entry(output_name(path.relative_to(root).as_posix()), str(path), image, record, size)


def draw(entry: Entry, size: tuple[int, int], options: Options, faults: list[str]) -> Iterator[Region]:
    """Yield the lines in the order of the file."""

    def shapes() -> Iterator[Shape]:
        for number, (name, points) in enumerate(entry.record, 1):
            where = f"{entry.where}: polygon {number} ({name})"
            yield name, where, functools.partial(_patch, points, where, size, options)

    return draw_shapes(shapes(), faults)


def _patch(points: list[tuple[str, str]], where: str, size: tuple[int, int], options: Options) -> Patch:
    return polygons.stroke(read_points(points, 1, where) - 0.5, options.line_width, size)
