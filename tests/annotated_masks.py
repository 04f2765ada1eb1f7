"""Small data sets whose labels are pixels: Supervisely's bitmaps, panoptic PNGs, colours, black and white."""

import base64
import itertools
import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from annotated import CLASSES, COLOURS, Picture, png, save_images
from PIL import Image

from data import demo


def demo_pictures(number: int, step: int = 1, names: Sequence[str] = ("disc", "square", "triangle")) -> list[Picture]:
    """The demo's drawings, every `step`-th pixel of them, with polygons around their discs, squares and triangles."""
    pictures: list[Picture] = []
    for index in itertools.count():
        image, dense, _, _ = (pixels[::step, ::step] for pixels in demo.draw_sample(index))
        shapes = []
        for value, name in enumerate(names, 1):
            contours, _ = cv2.findContours((dense == value).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
            shapes += [(name, "polygon", (ring[:, 0] + 0.5).tolist()) for ring in contours if len(ring) > 8]
        if shapes:
            pictures.append(Picture(f"photo_{len(pictures):03d}", image, shapes))
        if len(pictures) == number:
            break
    return pictures


def write_supervisely(folder: Path, pictures: list[Picture]) -> Path:
    """meta.json and one data set, ds0. Coordinates are rounded to pixels; masks are PNGs with a palette and alpha."""
    save_images(folder / "ds0/img", pictures)
    (folder / "ds0/ann").mkdir()
    classes = [{"title": name, "shape": "any", "color": f"#{bytes(COLOURS[name]).hex()}"} for name in CLASSES]
    (folder / "meta.json").write_text(json.dumps({"classes": classes, "tags": []}))
    for picture in pictures:
        objects = []
        for name, kind, data in picture.shapes:
            item = {"classTitle": name, "geometryType": kind, "description": "", "tags": []}
            if kind == "mask":
                top, left, mask = data
                alpha = np.dstack([mask.astype(np.uint8) * 255] * 4)
                packed = base64.b64encode(zlib.compress(png(alpha))).decode()
                item |= {"geometryType": "bitmap", "bitmap": {"data": packed, "origin": [left, top]}}
            elif kind == "box":
                corners = np.floor(np.array(data).reshape(2, 2)).astype(int).tolist()
                item |= {"geometryType": "rectangle", "points": {"exterior": corners, "interior": []}}
            else:
                item["points"] = {"exterior": np.floor(data).astype(int).tolist(), "interior": []}
            objects.append(item)
        height, width = picture.pixels.shape[:2]
        content = {"description": "", "tags": [], "size": {"height": height, "width": width}, "objects": objects}
        (folder / f"ds0/ann/{picture.name}.png.json").write_text(json.dumps(content))
    return folder


def write_panoptic(folder: Path, pictures: list[Picture], label_of) -> Path:
    """images/, panoptic.json and panoptic/. Two segments of the class 2: its left and its right half; 0 is void."""
    save_images(folder / "images", pictures)
    (folder / "panoptic").mkdir()
    content: dict = {"images": [], "annotations": [], "categories": []}
    content["categories"] = [{"id": 3 * number, "name": name, "isthing": 1} for number, name in enumerate(CLASSES, 1)]
    for index, picture in enumerate(pictures):
        label = label_of(picture)
        size = label.shape
        ids = np.where(label > 0, label.astype(np.int64) * 70_000 + 300, 0)  # uses all three channels
        right = (label == 2) & (np.arange(size[1]) > np.nonzero((label == 2).any(axis=0))[0].mean())
        ids[right] += 1
        numbers = np.unique(ids[ids > 0]).tolist()
        segments = [{"id": number, "category_id": 3 * (number // 70_000), "iscrowd": 0} for number in numbers]
        pixels = np.stack([ids % 256, ids // 256 % 256, ids // 65536], axis=2).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"panoptic/{picture.name}.png")
        image = {"id": index, "file_name": f"{picture.name}.png", "height": size[0], "width": size[1]}
        content["images"].append(image)
        annotation = {"image_id": index, "file_name": f"{picture.name}.png", "segments_info": segments}
        content["annotations"].append(annotation)
    (folder / "panoptic.json").write_text(json.dumps(content))
    return folder / "panoptic.json"


def write_colours(folder: Path, pictures: list[Picture], label_of) -> Path:
    """images/ and masks/, with the colours of COLOURS on black."""
    save_images(folder / "images", pictures)
    (folder / "masks").mkdir()
    colours = np.array([(0, 0, 0), *(COLOURS[name] for name in CLASSES)], np.uint8)
    for picture in pictures:
        Image.fromarray(colours[label_of(picture)]).save(folder / f"masks/{picture.name}.png")
    return folder


def write_binary(folder: Path, pictures: list[Picture], label_of) -> Path:
    """images/ and masks/NAME_mask.png of 0 and 255."""
    save_images(folder / "images", pictures)
    (folder / "masks").mkdir()
    for picture in pictures:
        mask = (label_of(picture) > 0).astype(np.uint8) * 255
        Image.fromarray(mask).save(folder / f"masks/{picture.name}_mask.png")
    return folder
