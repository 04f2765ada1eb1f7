"""The formats that python -m tools.convert reads: to add one, write a module with read() and patch()."""

from tools.convert.formats import coco, colours, cvat, labelme, labelstudio, scribblesup, yolo
from tools.convert.source import Kind

KINDS = {
    "colours": Kind(colours.read, colours.patch, "masks painted in colours", shapes=colours.shapes),
    "labelme": Kind(labelme.read, labelme.patch, "LabelMe's JSON files"),
    "coco": Kind(coco.read, coco.patch, "COCO's JSON: polygons and RLE"),
    "labelstudio": Kind(labelstudio.read, labelstudio.patch, "Label Studio's JSON, or PNG files of its brush"),
    "yolo": Kind(yolo.read, yolo.patch, "YOLO's polygons"),
    "cvat": Kind(cvat.read, cvat.patch, "CVAT for images 1.1, XML"),
    "scribblesup": Kind(scribblesup.read, scribblesup.patch, "ScribbleSup's XML files", unlabelled="ignore"),
}
