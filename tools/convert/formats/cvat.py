"""CVAT for images 1.1: an XML file, with the images in the folder images beside it.

Format: https://docs.cvat.ai/docs/other/xml_format. An `image` has name, width and height, and the elements `polygon`
and `polyline` (points="x,y;x,y"), `box` (xtl, ytl, xbr, ybr, rotation about its centre in degrees), `ellipse` (cx, cy,
rx, ry, rotation), and `mask` (left, top, width, height, and rle: run lengths along the rows of this box, beginning with
a run of zeros). A shape with a higher z_order covers one with a lower; in one layer, the later one.
In a project, an image has a `subset`, and its file is images/SUBSET/NAME, or images/default/NAME if it has none; the
task of a file has a subset in `meta`.
"""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from support.errors import InputError
from tools.convert import drawing
from tools.convert.reading import output_name, read_size, read_xml, split_in
from tools.convert.source import Entry, Shape, Source

NO_AREA = ("tag", "points", "skeleton")  # tags are of whole images


def read(source: Source) -> None:
    """Read the images and classes of a CVAT file, or of all XML files below a folder."""

    def read_file(path: Path) -> list[Entry]:
        root = read_xml(path)
        if root.tag != "annotations" or root.find("track") is not None:
            raise InputError(f"{path}: not 'CVAT for images 1.1': export the task again in this format")
        for label in root.iter("label"):
            name, colour = label.findtext("name"), label.findtext("color") or ""
            if not name or label.findtext("type") in NO_AREA:
                continue
            source.names += [] if name in source.names else [name]
            if re.fullmatch("#[0-9a-fA-F]{6}", colour):
                source.colours[name] = tuple(bytes.fromhex(colour[1:]))
        # Datumaro writes a file for each subset, and names it after the subset.
        subset = root.findtext("meta/task/subset") or (split_in(path.stem) if source.path.is_dir() else "")
        return list(source.collect(lambda image: _entry(image, path, subset, source), root.iter("image")))

    source.read_files(".xml", read_file)
    source.names += [name for name in source.shape_names if name not in source.names]  # the files declare no others


def _entry(image: ElementTree.Element, path: Path, subset: str, source: Source) -> Entry:
    """Return the entry of an image with its shapes, bottom layer first. subset: that of an image which names none.

    Adds a fault for each shape without area, which is left out.
    """
    name, subset = image.get("name", ""), image.get("subset") or subset
    folder = subset or ("default" if "subset" in image.attrib else "")
    subset = "" if subset.lower() == "default" else subset
    where = f"{path}: {name}"
    shapes = []
    for shape in image:
        if shape.tag in NO_AREA[1:]:
            kind = f"{shape.tag} ({shape.get('label', '')})"
            source.faults.append(f"{where}: {kind}: this kind of shape has no area: left out")
        elif shape.tag != "tag":
            label = shape.get("label", "")
            if not label:
                raise InputError(f"{where}: {shape.tag}: it has no label")
            shapes.append(Shape(label, f"{where}: {shape.tag} ({label})", {"tag": shape.tag} | shape.attrib))
    shapes.sort(key=lambda shape: _number({"z_order": "0"} | shape.data, "z_order", where))
    file = source.find_image(name, str(path), path.parent, subset=folder)
    split = split_in(subset) or output_name(subset) if subset else ""
    size = read_size(image.get("height"), image.get("width"), where)
    return Entry(output_name(name), where, file, shapes, size, split=split)


def patch(shape: dict[str, str], where: str, size: tuple[int, int], line_width: float) -> drawing.Patch:
    """Return the pixels of a shape: its tag and attributes."""

    def numbers(*keys: str) -> list[float]:
        return [_number({"rotation": "0"} | shape, key, where) for key in keys]

    tag = shape["tag"]
    if tag == "mask":
        left, top, width, height = map(int, numbers("left", "top", "width", "height"))
        runs = [run for run in shape.get("rle", "").replace(" ", "").split(",") if run]
        if not 1 <= width <= size[1] or not 1 <= height <= size[0] or not runs:
            raise InputError(f"{where}: a mask of {width}x{height} pixels, but the image has {size[1]}x{size[0]}")
        mask = drawing.from_runs(runs, width * height, where).reshape(height, width)
        return drawing.place(mask, top, left, size)
    if tag == "ellipse":
        x, y, *radii, rotation = numbers("cx", "cy", "rx", "ry", "rotation")
        return drawing.ellipse((x, y), (radii[0], radii[1]), size, rotation)
    if tag == "box":
        *corners, rotation = numbers("xtl", "ytl", "xbr", "ybr", "rotation")
        return drawing.fill(drawing.turned(drawing.rectangle(*corners), rotation), size)
    if tag not in ("polygon", "polyline"):
        raise InputError(f"{where}: this kind of shape is not read: the image is skipped; draw polygons in CVAT")
    pairs = [pair.split(",") for pair in shape.get("points", "").split(";") if pair.strip()]
    points = drawing.read_points(pairs, where)
    return drawing.fill(points, size) if tag == "polygon" else drawing.stroke(points, line_width, size)


def _number(attributes: dict[str, str], key: str, where: str) -> float:
    """Return a number in an attribute. Raises InputError if it is missing, or not a finite number of pixels."""
    try:
        value = drawing.number(attributes[key])
    except (KeyError, ValueError, OverflowError):
        raise InputError(f"{where}: {key} is missing or not a number") from None
    if not abs(value) < drawing.LIMIT:
        raise InputError(f"{where}: {key} is {value}")
    return value
