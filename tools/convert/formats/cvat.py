"""CVAT for images 1.1: an XML file, with the images in the folder images beside it.

Format: https://docs.cvat.ai/docs/other/xml_format. An `image` has name, width and height, and the elements `polygon`
and `polyline` (points="x,y;x,y"), `box` (xtl, ytl, xbr, ybr, rotation about its centre in degrees), `ellipse` (cx, cy,
rx, ry, rotation), `points`, and `mask` (left, top, width, height, and rle: run lengths along the rows of this box,
beginning with a run of zeros). A shape with a higher z_order covers one with a lower; in one layer, the later one.
In a project, an image has a `subset`, and its file is images/SUBSET/NAME, or images/default/NAME if it has none; the
task of a file has a subset in `meta`.
"""

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from support.errors import InputError
from tools.convert import polygons, rle
from tools.convert.polygons import Patch, read_points
from tools.convert.reading import (
    ImageFinder,
    annotation_files,
    colour_of,
    output_name,
    place,
    read_xml,
    size_of,
    split_of,
)
from tools.convert.source import Entry, Options, Shape, Source, collect

SHAPES = ("polygon", "polyline", "box", "ellipse", "points", "mask")


def read(source: Path, options: Options) -> Source:
    """Return the images and classes of a CVAT file, or of all XML files below a folder."""
    result = Source()
    tags: list[str] = []

    def read_one(path: Path) -> list[Entry]:
        root = read_xml(path)
        if root.tag != "annotations" or root.find("track") is not None:
            raise InputError(f"{path}: not 'CVAT for images 1.1': export the task again in this format")
        for label in root.iter("label"):
            name, colour = label.findtext("name") or "", colour_of(label.findtext("color"))
            names = tags if label.findtext("type") == "tag" else result.names
            names += [name] if name and name not in names else []
            if colour:
                result.colours[name] = colour
        beside = [folder for folder in (path.parent / "images", path.parent) if folder.is_dir()]
        finder = ImageFinder(beside, options.images)
        # Datumaro writes a file for each subset, and names it after the subset.
        subset = root.findtext("meta/task/subset") or (split_of(path.stem) if source.is_dir() else "")
        images = [(number, image, path, subset, finder) for number, image in enumerate(root.iter("image"))]
        return list(collect(_entry, images, result.faults))

    for entries in collect(read_one, annotation_files(source, ".xml"), result.faults):
        result.entries += entries
    result.names += [name for name in result.shape_names() if name not in result.names]  # not declared
    if tags:
        result.notes.append(f"label(s) {', '.join(tags)}: tags of whole images, which have no area: left out")
    return result


def _entry(item: tuple[int, ElementTree.Element, Path, str, ImageFinder]) -> Entry:
    """Return the entry of an image, with its shapes, bottom layer first. Its subset is `subset` if it names none."""
    position, image, path, subset, finder = item
    name, own = image.get("name", ""), image.get("subset") or subset
    folder = own or ("default" if "subset" in image.attrib else "")
    own = "" if own.lower() == "default" else own
    where = f"{path}: {name or f'image {position}'}"
    if not name:
        raise InputError(f"{where}: it has no name")
    sides = {key: _number(image.attrib, key, where) for key in ("height", "width")}
    others = sorted({shape.tag for shape in image} - {*SHAPES, "tag"})
    if others:
        raise InputError(f"{where}: it has a {others[0]}, which has no area: skipped")
    shapes = []
    for shape in image:
        if shape.tag in SHAPES:
            label = shape.get("label", "")
            if not label:
                raise InputError(f"{where}: {shape.tag}: it has no label")
            shapes.append(Shape(label, f"{where}: {shape.tag} ({label})", {"tag": shape.tag} | shape.attrib))
    shapes.sort(key=lambda shape: _number({"z_order": "0"} | shape.data, "z_order", where))
    found = finder.find(name, str(path), folder)
    split = split_of(own) or output_name(own) if own else ""
    return Entry(output_name(name), where, found, shapes, size_of(sides, "height", "width", where), split=split)


def patch(shape: dict[str, Any], where: str, size: tuple[int, int], options: Options, faults: list[str]) -> Patch:
    """Return the pixels of a shape: its tag and attributes."""

    def numbers(*keys: str) -> list[float]:
        return [_number({"rotation": "0"} | shape, key, where) for key in keys]

    tag = shape["tag"]
    if tag == "mask":
        left, top, width, height = map(int, numbers("left", "top", "width", "height"))
        runs = [run for run in shape.get("rle", "").replace(" ", "").split(",") if run]
        if width < 1 or height < 1 or not runs:
            raise InputError(f"{where}: an empty mask")
        return place(rle.from_runs(runs, width * height, where).reshape(height, width), top, left, size, where)
    if tag == "ellipse":
        x, y, *radii, rotation = numbers("cx", "cy", "rx", "ry", "rotation")
        return polygons.ellipse((x, y), (radii[0], radii[1]), size, rotation)
    if tag == "box":
        *corners, rotation = numbers("xtl", "ytl", "xbr", "ybr", "rotation")
        ring = polygons.rectangle(*corners)
        return polygons.fill([polygons.turned(ring, rotation, ring.mean(axis=0))], size)
    pairs = [pair.split(",") for pair in shape.get("points", "").split(";") if pair.strip()]
    points = read_points(pairs, {"polygon": 3, "points": 1}.get(tag, 2), where)
    if tag == "polygon":
        return polygons.fill([points], size)
    lines = points[:, None] if tag == "points" else [points]
    return polygons.union([polygons.stroke(line, options.line_width, size) for line in lines])


def _number(attributes: dict[str, str], key: str, where: str) -> float:
    """Return a number in an attribute. Raises InputError if it is missing, or not a finite number of pixels."""
    try:
        value = float(attributes[key])
    except (KeyError, ValueError):
        raise InputError(f"{where}: {key} is missing or not a number") from None
    if not abs(value) < polygons.LIMIT:
        raise InputError(f"{where}: {key} is {value}")
    return value
