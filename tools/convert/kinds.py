"""The formats that python -m tools.convert reads: to add one, write a module with read() and draw()."""

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
from tools.convert.source import Kind

KINDS = {
    "colours": Kind(
        colours.read, colours.draw, "masks painted in colours", class_files=("labelmap.txt", "classes.txt")
    ),
    "binary": Kind(binary.read, binary.draw, "masks of 0 and 255"),
    "labelme": Kind(labelme.read, labelme.draw, "LabelMe's JSON files"),
    "coco": Kind(coco.read, coco.draw, "COCO's JSON: polygons and RLE"),
    "yolo": Kind(yolo.read, yolo.draw, "YOLO's polygons"),
    "panoptic": Kind(panoptic.read, panoptic.draw, "COCO's panoptic JSON and PNGs", unlabelled="ignore"),
    "cvat": Kind(cvat.read, cvat.draw, "CVAT for images 1.1, XML"),
    "labelstudio": Kind(labelstudio.read, labelstudio.draw, "Label Studio's JSON export"),
    "supervisely": Kind(supervisely.read, supervisely.draw, "a Supervisely project"),
    "scribblesup": Kind(scribblesup.read, scribblesup.draw, "ScribbleSup's XML files", unlabelled="ignore"),
}
