"""ScribbleSup's own XML files of PASCAL VOC images, one for each image: lines that people drew.

Format: scribble_annotation/pascal_2012 of ScribbleSup (Lin et al., CVPR 2016). An `annotation` has `filename`, `size`
(`width`, `height`) and a `polygon` for each line, which is open in spite of its name: `tag`, its class, and `point`
elements with `X` and `Y`: pixels counted from 1. meng-tang/rloss, convertscribbles.m, draws them 3 pixels wide.
"""

import difflib
from pathlib import Path

from data.classes import read_classes
from support.errors import InputError, UserError
from tools.convert.drawing import Patch, read_points, stroke
from tools.convert.reading import read_size, read_xml
from tools.convert.source import Entry, Shape, Source

# Tags that differ from VOC's names.
NAMES = {
    "plane": "aeroplane",
    "bike": "bicycle",
    "table": "dining table",
    "plant": "potted plant",
    "monitor": "tv monitor",
}


def read(source: Source) -> None:
    """Read the images and classes of a folder of ScribbleSup's files, or of one file.

    If VOC has all classes, they are VOC's 21 in their order. Raises UserError if a tag is almost one of VOC's.
    """

    def read_file(path: Path) -> list[Entry]:
        content = read_xml(path)
        if content.tag != "annotation" or content.find("object") is not None:
            raise InputError(f"{path}: no scribbles of ScribbleSup: expected <annotation> with <polygon> elements")
        size = None
        if content.find("size") is not None:
            size = read_size(content.findtext("size/height"), content.findtext("size/width"), str(path))
        shapes = []
        for number, line in enumerate(content.findall("polygon"), 1):
            tag = line.findtext("tag", "").strip()
            if not tag:
                raise InputError(f"{path}: polygon {number}: it has no tag")
            name = NAMES.get(tag, tag)
            points = [[point.findtext(key, "").strip() for key in ("X", "Y")] for point in line.findall("point")]
            shapes.append(Shape(name, f"{path}: polygon {number} ({name})", points))
        reference = content.findtext("filename", "").strip() or f"{path.stem}.jpg"
        return [Entry(source.output_name(path), str(path), source.find_image(reference, str(path)), shapes, size)]

    source.read_files(".xml", read_file)
    names, voc = source.shape_names, read_classes("voc", None).names
    others = [name for name in names if name not in voc]
    source.names = sorted(names) if others else voc
    for name in others if not source.options.known else ():
        where = next(shape.where for entry in source.entries for shape in entry.record if shape.name == name)
        if near := difflib.get_close_matches(name.lower(), [*voc, *NAMES], n=1, cutoff=0.8):
            remedy = f"correct it to {near[0]!r} or, if it is another class, list all classes with --classes FILE"
            raise UserError(f"{where}: its tag is no class of VOC: {remedy}")
        if name == others[0] and len(others) < len(names):
            source.notes.append(f"{where}: its tag is no class of VOC, so the classes are not numbered as VOC's")


def patch(points: list, where: str, size: tuple[int, int], line_width: float) -> Patch:
    """Return the pixels of a line."""
    return stroke(read_points(points, where) - 0.5, line_width, size)
