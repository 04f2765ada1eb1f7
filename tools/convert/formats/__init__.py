"""The formats that python -m tools.convert reads: to add one, write a module with read() and patch() or draw()."""

from tools.convert.formats import coco, colours, cvat, labelme, labelstudio, scribblesup, yolo
from tools.convert.source import Kind, shapes

KINDS = {
    "colours": Kind(colours.read, colours.draw, "masks painted in colours"),
    "labelme": Kind(labelme.read, shapes(labelme.patch), "LabelMe's JSON files"),
    "coco": Kind(coco.read, shapes(coco.patch), "COCO's JSON: polygons and RLE"),
    "labelstudio": Kind(labelstudio.read, shapes(labelstudio.patch), "Label Studio's JSON, or PNG files of its brush"),
    "yolo": Kind(yolo.read, shapes(yolo.patch), "YOLO's polygons"),
    "cvat": Kind(cvat.read, shapes(cvat.patch), "CVAT for images 1.1, XML"),
    "scribblesup": Kind(scribblesup.read, shapes(scribblesup.patch), "ScribbleSup's XML files", unlabelled="ignore"),
}
