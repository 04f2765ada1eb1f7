"""CVAT for images 1.1: an XML file, with the images in the folder images beside it.

Format: https://docs.cvat.ai/docs/other/xml_format. An `image` has name, width and height, and the elements `polygon`
and `polyline` (points="x,y;x,y"), `box` (xtl, ytl, xbr, ybr, rotation about its centre in degrees), `ellipse` (cx, cy,
rx, ry, rotation), `points`, and `mask` (left, top, width, height, and rle: run lengths along the rows of this box,
beginning with a run of zeros). A shape with a higher z_order covers one with a lower; in one layer, the later one.
In a project, an image has a `subset`, and its file is images/SUBSET/NAME, or images/default/NAME if it has none; the
task of a file has a subset in `meta`.
"""

import functools
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from support.errors import InputError
from tools.convert import polygons, rle
from tools.convert.polygons import Patch, read_points
from tools.convert.reading import (
    ImageFinder,
    Shape,
    annotation_files,
    colour_of,
    draw_shapes,
    output_name,
    place,
    read_xml,
    size_of,
    split_of,
)
from tools.convert.source import Entry, Options, Region, Source

SHAPES = ("polygon", "polyline", "box", "ellipse", "points", "mask")


def read(source: Path, options: Options) -> Source:
    """Return the images and classes of a CVAT file, or of all XML files below a folder."""
    result = Source()
    tags: dict[str, None] = {}
    for path in annotation_files(source, ".xml"):
        try:
            root = read_xml(path)
        except InputError as error:
            result.faults.append(str(error))
            continue
        if root.tag != "annotations" or root.find("track") is not None:
            result.faults.append(f"{path}: not 'CVAT for images 1.1': export the task again in this format")
            continue
        for label in root.iter("label"):
            name, colour = label.findtext("name") or "", colour_of(label.findtext("color"))
            if label.findtext("type") == "tag":
                tags[name] = None
                continue
            result.names += [name] if name and name not in result.names else []
            if colour:
                result.colours[name] = colour
        beside = [folder for folder in (path.parent / "images", path.parent) if folder.is_dir()]
        # Datumaro writes a file for each subset, and names it after the subset.
        subset = root.findtext("meta/task/subset") or (split_of(path.stem) if source.is_dir() else "")
        _read_images(root, path, subset, ImageFinder(beside, options.images), result)
    if tags:
        result.notes.append(f"label(s) {', '.join(tags)}: tags of whole images, which have no area: left out")
    return result


def _read_images(root: ElementTree.Element, path: Path, subset: str, finder: ImageFinder, result: Source) -> None:
    """Add an entry for each image of a file. Its record has (tag, attributes) of each shape, bottom layer first.

    subset: of images that name none.
    """
    for position, image in enumerate(root.iter("image")):
        name, own = image.get("name", ""), image.get("subset") or subset
        folder = own or ("default" if "subset" in image.attrib else "")
        own = "" if own.lower() == "default" else own
        where = f"{path}: {name or f'image {position}'}"
        try:
            if not name:
                raise InputError(f"{where}: it has no name")
            size = size_of(
                {key: _number(image.attrib, key, where) for key in ("height", "width")}, "height", "width", where
            )
            shapes = [(shape.tag, dict(shape.attrib)) for shape in image if shape.tag in SHAPES]
            others = sorted({shape.tag for shape in image} - {*SHAPES, "tag"})
            if others:
                raise InputError(f"{where}: it has a {others[0]}, which has no area: skipped")
            record = sorted(shapes, key=lambda shape: _number({"z_order": "0"} | shape[1], "z_order", where))
            found = finder.find(name, str(path), folder)
        except InputError as error:
            result.faults.append(str(error))
            continue
        split = split_of(own) or output_name(own) if own else ""
        result.entries.append(Entry(output_name(name), where, found, record, size, split=split))
        for _, attributes in shapes:  # labels that the file does not declare come last
            label = attributes.get("label", "")
            result.names += [label] if label and label not in result.names else []


def draw(entry: Entry, size: tuple[int, int], options: Options, faults: list[str]) -> Iterator[Region]:
    """Yield the shapes by z_order, then in the order of the file."""

    def shapes() -> Iterator[Shape]:
        for tag, attributes in entry.record:
            where = f"{entry.where}: {tag} ({attributes.get('label')})"
            if not attributes.get("label"):
                raise InputError(f"{where}: it has no label")
            yield attributes["label"], where, functools.partial(_patch, tag, attributes, where, size, options)

    return draw_shapes(shapes(), faults)


def _patch(tag: str, attributes: dict[str, str], where: str, size: tuple[int, int], options: Options) -> Patch:
    def number(key: str, default: str | None = None) -> float:
        return _number(attributes if default is None else {key: default} | attributes, key, where)

    if tag == "mask":
        left, top, width, height = (int(number(key)) for key in ("left", "top", "width", "height"))
        runs = [run for run in attributes.get("rle", "").replace(" ", "").split(",") if run]
        if width < 1 or height < 1 or not runs:
            raise InputError(f"{where}: an empty mask")
        return place(rle.from_runs(runs, width * height, where).reshape(height, width), top, left, size, where)
    if tag == "ellipse":
        centre, radii = (number("cx"), number("cy")), (number("rx"), number("ry"))
        return polygons.ellipse(centre, radii, size, number("rotation", "0"))
    if tag == "box":
        x0, y0, x1, y1 = (number(key) for key in ("xtl", "ytl", "xbr", "ybr"))
        ring = polygons.rectangle(x0, y0, x1, y1)
        centre = ring.mean(axis=0)
        return polygons.fill([polygons.turned(ring, number("rotation", "0"), centre)], size)
    pairs = [pair.split(",") for pair in attributes.get("points", "").split(";") if pair.strip()]
    points = read_points(pairs, 3 if tag == "polygon" else 1 if tag == "points" else 2, where)
    if tag == "polygon":
        return polygons.fill([points], size)
    if tag == "points":
        return polygons.union([polygons.stroke(point[None], options.line_width, size) for point in points])
    return polygons.stroke(points, options.line_width, size)


def _number(attributes: dict[str, str], key: str, where: str) -> float:
    """Return a number in an attribute. Raises InputError if it is missing, or not a finite number of pixels."""
    try:
        value = float(attributes[key])
    except (KeyError, ValueError):
        raise InputError(f"{where}: {key} is missing or not a number") from None
    if not abs(value) < polygons.LIMIT:
        raise InputError(f"{where}: {key} is {value}")
    return value
