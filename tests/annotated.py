"""Small data sets as annotation tools export them, written from the documentation of their formats.

The shapes of a picture are (class, kind, data). Kinds: "polygon" and "line" (points), "box" (x0, y0, x1, y1), "circle"
(x, y, radius) and "mask" (top, left, bool array). write_FORMAT(folder, pictures) writes the shapes that the format
knows.
"""

import base64
import json
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

import cv2
import numpy as np
from PIL import Image

SIZE = (47, 61)  # height and width of all pictures
CLASSES = ["cat", "dog", "tree"]
STROKES = ["aeroplane", "background", "person"]  # classes of strokes, those of VOC
COLOURS = {"cat": (200, 0, 10), "dog": (0, 220, 30), "tree": (40, 40, 250)}


class Picture(NamedTuple):
    """name: of the image file, without suffix."""

    name: str
    pixels: np.ndarray
    shapes: list[tuple]


def draw_pictures(number: int = 3, seed: int = 0, kinds: str = "polygon mask box circle") -> list[Picture]:
    """Pictures of random shapes that overlap, cross themselves and reach over the image's borders."""
    rng = np.random.default_rng(seed)
    height, width = SIZE
    pictures = []
    for index in range(number):
        shapes = []
        for kind in ("polygon", "mask", "polygon", "box", "polygon", "circle", "mask", "polygon"):
            name = CLASSES[rng.integers(len(CLASSES))]
            corner = rng.uniform(-5, (width, height))
            if kind == "polygon":
                data = (corner + rng.uniform(-15, 25, (int(rng.integers(3, 9)), 2))).tolist()
            elif kind == "box":
                data = [*corner, *(corner + rng.uniform(3, 25, 2))]
            elif kind == "circle":
                data = [*corner, rng.uniform(2, 12)]
            else:
                box = int(rng.integers(height - 12)), int(rng.integers(width - 12))
                data = [*box, rng.random((int(rng.integers(2, 12)), int(rng.integers(2, 12)))) < 0.6]
                data[2].flat[0] = True
            if kind in kinds:
                shapes.append((name, kind, data))
        pixels = rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8)
        pictures.append(Picture(f"picture_{index}", pixels, shapes))
    return pictures


def draw_strokes(number: int = 3) -> list[Picture]:
    """Pictures of random lines that overlap and reach over the image's borders."""
    rng = np.random.default_rng(2)
    pictures = []
    for index in range(number):
        lines = [rng.uniform(-4, (65, 51), (int(rng.integers(2, 7)), 2)).tolist() for _ in range(4)]
        shapes = [(str(rng.choice(STROKES)), "line", line) for line in lines]
        pictures.append(Picture(f"picture_{index}", rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8), shapes))
    return pictures


def save_images(folder: Path, pictures: list[Picture]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        Image.fromarray(picture.pixels).save(folder / f"{picture.name}.png")


def whole(size: tuple[int, int], top: int, left: int, mask: np.ndarray) -> np.ndarray:
    """A mask in a box as one of the whole image."""
    result = np.zeros(size, bool)
    result[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    return result


def runs(values: np.ndarray) -> list[int]:
    """Lengths of runs of a flat mask, beginning with one of zeros, which may be empty."""
    flat = values.ravel().astype(int)
    return np.diff([0, *np.flatnonzero(np.diff(flat, prepend=0)), len(flat)]).tolist()


def write_labelme(folder: Path, pictures: list[Picture]) -> Path:
    """One JSON file beside each image."""
    save_images(folder, pictures)
    for picture in pictures:
        shapes = []
        for name, kind, data in picture.shapes:
            shape = {"label": name, "group_id": None, "shape_type": kind, "flags": {}, "mask": None}
            if kind in ("polygon", "line"):
                shape |= {"shape_type": "linestrip" if kind == "line" else kind, "points": data}
            elif kind == "box":
                shape |= {"shape_type": "rectangle", "points": [data[:2], data[2:]]}
            elif kind == "circle":
                shape["points"] = [data[:2], [data[0], data[1] + data[2]]]
            else:
                top, left, mask = data
                shape["points"] = [[left, top], [left + mask.shape[1] - 1, top + mask.shape[0] - 1]]
                shape["mask"] = base64.b64encode(cv2.imencode(".png", mask.astype(np.uint8) * 255)[1]).decode()
            shapes.append(shape)
        content = {"version": "5.4.1", "shapes": shapes, "imagePath": f"{picture.name}.png", "imageData": None}
        content["imageHeight"], content["imageWidth"] = picture.pixels.shape[:2]
        (folder / f"{picture.name}.json").write_text(json.dumps(content))
    return folder


def write_coco(folder: Path, pictures: list[Picture]) -> Path:
    """images/ and instances.json. Boxes are polygons."""
    save_images(folder / "images", pictures)
    content: dict = {"images": [], "annotations": [], "categories": []}
    content["categories"] = [{"id": 7 * number + 1, "name": name} for number, name in enumerate(CLASSES)]
    for number, picture in enumerate(pictures, 100):
        size = picture.pixels.shape[:2]
        image = {"id": number, "file_name": f"{picture.name}.png", "height": size[0], "width": size[1]}
        content["images"].append(image)
        for name, kind, data in picture.shapes:
            if kind == "mask":
                segmentation = {"size": list(size), "counts": runs(whole(size, *data).T)}
            elif kind == "box":
                x0, y0, x1, y1 = data
                segmentation = [[x0, y0, x1, y0, x1, y1, x0, y1]]
            else:
                segmentation = [[value for point in data for value in point]]
            annotation = {"image_id": number, "category_id": 7 * CLASSES.index(name) + 1, "iscrowd": 0}
            content["annotations"].append(
                annotation | {"id": len(content["annotations"]), "segmentation": segmentation}
            )
    (folder / "instances.json").write_text(json.dumps(content))
    return folder / "instances.json"


def write_cvat(folder: Path, pictures: list[Picture]) -> Path:
    """images/ and annotations.xml. Circles are ellipses."""
    save_images(folder / "images", pictures)
    labels = "".join(
        f"<label><name>{name}</name><color>#{bytes(COLOURS[name]).hex()}</color></label>" for name in CLASSES
    )
    lines = ["<?xml version='1.0' encoding='utf-8'?><annotations><version>1.1</version>"]
    lines.append(f"<meta><task><labels>{labels}</labels></task></meta>")
    for number, picture in enumerate(pictures):
        height, width = picture.pixels.shape[:2]
        lines.append(f'<image id="{number}" name="{picture.name}.png" width="{width}" height="{height}">')
        for name, kind, data in picture.shapes:
            if kind in ("polygon", "line"):
                attributes = {"points": ";".join(f"{x!r},{y!r}" for x, y in data)}
            elif kind == "box":
                attributes = dict(zip(("xtl", "ytl", "xbr", "ybr"), map(repr, map(float, data)), strict=True))
            elif kind == "circle":
                attributes = dict(zip(("cx", "cy", "rx", "ry"), map(repr, map(float, [*data, data[2]])), strict=True))
            else:
                top, left, mask = data
                attributes = {"rle": ", ".join(map(str, runs(mask))), "left": left, "top": top}
                attributes |= {"width": mask.shape[1], "height": mask.shape[0]}
            tag = {"circle": "ellipse", "line": "polyline"}.get(kind, kind)
            words = " ".join(f"{key}={quoteattr(str(value))}" for key, value in attributes.items())
            lines.append(f'<{tag} label="{name}" source="manual" occluded="0" z_order="0" {words}></{tag}>')
        lines.append("</image>")
    (folder / "annotations.xml").write_text("\n".join([*lines, "</annotations>"]))
    return folder


def write_labelstudio(folder: Path, pictures: list[Picture]) -> Path:
    """media/ and export.json, whose images are those of local storage."""
    save_images(folder / "media", pictures)
    tasks = []
    for number, picture in enumerate(pictures):
        height, width = picture.pixels.shape[:2]
        percent, result = np.array([100 / width, 100 / height]), []
        for name, kind, data in picture.shapes:
            if kind == "polygon":
                kind, value = "polygonlabels", {"points": (np.array(data) * percent).tolist(), "closed": True}
            elif kind in ("box", "circle"):
                extent = np.array(data[2:]) - data[:2] if kind == "box" else np.repeat(data[2], 2)
                sides = ("width", "height") if kind == "box" else ("radiusX", "radiusY")
                numbers = [*np.array(data[:2]) * percent, *extent * percent]
                value = dict(zip(("x", "y", *sides), numbers, strict=True)) | {"rotation": 0}
                kind = {"box": "rectanglelabels", "circle": "ellipselabels"}[kind]
            else:  # the RLE as such
                kind, value = "brushlabels", {"format": "rle", "rle": data}
            region = {"id": f"r{len(result)}", "type": kind, "from_name": "label", "image_rotation": 0}
            region |= {"original_width": width, "original_height": height, "value": value | {kind: [name]}}
            result.append(region)
        annotation = {"id": number, "was_cancelled": False, "ground_truth": False, "result": result}
        url = f"/data/local-files/?d=media/{picture.name}.png"
        tasks.append({"id": number, "data": {"image": url}, "annotations": [annotation], "predictions": []})
    (folder / "export.json").write_text(json.dumps(tasks))
    return folder


def write_yolo(folder: Path, pictures: list[Picture]) -> Path:
    """images, labels and data.yaml, as Ultralytics documents it: docs.ultralytics.com/datasets/segment."""
    save_images(folder / "images", pictures)
    (folder / "labels").mkdir()
    for picture in pictures:
        size = np.array(picture.pixels.shape[1::-1])
        lines = [
            f"{CLASSES.index(name)} {' '.join(map(repr, (np.array(data) / size).ravel().tolist()))}\n"
            for name, _, data in picture.shapes
        ]
        (folder / f"labels/{picture.name}.txt").write_text("".join(lines))
    names = "".join(f"  {number}: {name}\n" for number, name in enumerate(CLASSES))
    (folder / "data.yaml").write_text(f"path: ../datasets/mine\nnames:\n{names}")
    return folder


def write_scribblesup(folder: Path, pictures: list[Picture]) -> Path:
    """scribbles/NAME.xml and images/. Points are pixels, counted from 1: the centre of the first one is (0.5, 0.5)."""
    save_images(folder / "images", pictures)
    (folder / "scribbles").mkdir()
    for picture in pictures:
        height, width = picture.pixels.shape[:2]
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        text = f"<annotation><folder>VOC2012</folder><filename>{picture.name}.png</filename>{size}"
        for name, _, points in picture.shapes:
            places = "".join(f"<point><X>{x + 0.5:.0f}</X><Y>{y + 0.5:.0f}</Y></point>" for x, y in points)
            text += f"<polygon><tag>{ {'aeroplane': 'plane'}.get(name, name) }</tag>{places}</polygon>"
        (folder / f"scribbles/{picture.name}.xml").write_text(f"{text}</annotation>")
    return folder / "scribbles"


def write_colours(folder: Path, pictures: list[Picture], label_of) -> Path:
    """images/ and masks/, with the colours of COLOURS on black."""
    save_images(folder / "images", pictures)
    (folder / "masks").mkdir()
    colours = np.array([(0, 0, 0), *(COLOURS[name] for name in CLASSES)], np.uint8)
    for picture in pictures:
        Image.fromarray(colours[label_of(picture)]).save(folder / f"masks/{picture.name}.png")
    return folder
