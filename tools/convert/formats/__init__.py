"""The formats that python -m tools.convert reads: to add one, write a module with read() and patch() or draw()."""

from tools.convert.formats import (
    binary,
    coco,
    colours,
    cvat,
    labelme,
    labelstudio,
    panoptic,
    scribblesup,
    supervisely,
    yolo,
)
from tools.convert.source import Kind, shapes

KINDS = {
    "colours": Kind(colours.read, colours.draw, "masks painted in colours"),
    "binary": Kind(binary.read, binary.draw, "masks of 0 and 255"),
    "labelme": Kind(labelme.read, shapes(labelme.patch), "LabelMe's JSON files"),
    "coco": Kind(coco.read, shapes(coco.patch), "COCO's JSON: polygons and RLE"),
    "yolo": Kind(yolo.read, shapes(yolo.patch), "YOLO's polygons"),
    "panoptic": Kind(panoptic.read, panoptic.draw, "COCO's panoptic JSON and PNGs", unlabelled="ignore"),
    "cvat": Kind(cvat.read, shapes(cvat.patch), "CVAT for images 1.1, XML"),
    "labelstudio": Kind(labelstudio.read, shapes(labelstudio.patch), "Label Studio's JSON export"),
    "supervisely": Kind(supervisely.read, shapes(supervisely.patch), "a Supervisely project"),
    "scribblesup": Kind(scribblesup.read, shapes(scribblesup.patch), "ScribbleSup's XML files", unlabelled="ignore"),
}
