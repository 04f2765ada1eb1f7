"""Lines and brush strokes as annotation tools export them, written from the documentation of their formats.

The strokes of a picture are (class, kind, data). Kinds: "line" (points), "dot" (one point), "brush" (bool array of the
whole image) and "area" (points of a polygon). Points are (x, y) in pixels from the image's top left corner.
"""

import json
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np
from annotated import Picture, brush_rle, save_images

CLASSES = ("aeroplane", "background", "person")
TAGS = {"aeroplane": "plane"}  # ScribbleSup's


def draw_strokes(
    number: int = 3, size: tuple[int, int] = (47, 61), kinds: str = "line dot area brush"
) -> list[Picture]:
    """Pictures of random strokes that overlap and reach over the image's borders."""
    rng = np.random.default_rng(2)
    pictures = []
    for index in range(number):
        shapes = []
        for kind in ("line", "dot", "line", "brush", "area", "line"):
            if kind not in kinds.split():
                continue
            points = rng.uniform((-4, -4), (size[1] + 4, size[0] + 4), (int(rng.integers(2, 7)), 2)).tolist()
            if kind == "dot":
                points = [[float(rng.uniform(2, size[1] - 2)), float(rng.uniform(2, size[0] - 2))]]
            elif kind == "area":
                points = (np.array(points[0]) * 0.5 + 10 + rng.uniform(0, 15, (4, 2))).tolist()
            elif kind == "brush":
                brush = np.zeros(size, bool)
                brush[int(rng.integers(40)) :][:5, int(rng.integers(50)) :][:, :9] = True
                points = brush
            shapes.append((str(rng.choice(CLASSES)), kind, points))
        pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        pictures.append(Picture(f"picture_{index}", pixels, shapes))
    return pictures


def write_labelme(folder: Path, pictures: list[Picture]) -> Path:
    """A JSON file beside each image: line, linestrip, point and polygon."""
    save_images(folder, pictures)
    for picture in pictures:
        shapes = []
        for name, kind, points in picture.shapes:
            shape_type = {"dot": "point", "area": "polygon", "line": "line" if len(points) == 2 else "linestrip"}[kind]
            shapes.append({"label": name, "points": points, "group_id": None, "shape_type": shape_type, "flags": {}})
        content = {
            "version": "5.4.1",
            "flags": {},
            "shapes": shapes,
            "imagePath": f"{picture.name}.png",
            "imageData": None,
        }
        content["imageHeight"], content["imageWidth"] = picture.pixels.shape[:2]
        (folder / f"{picture.name}.json").write_text(json.dumps(content))
    return folder


def write_cvat(folder: Path, pictures: list[Picture]) -> Path:
    """images/ and annotations.xml: polyline, points and polygon."""
    save_images(folder / "images", pictures)
    lines = ["<?xml version='1.0' encoding='utf-8'?><annotations><version>1.1</version>"]
    for number, picture in enumerate(pictures):
        height, width = picture.pixels.shape[:2]
        lines.append(f'<image id="{number}" name="{picture.name}.png" width="{width}" height="{height}">')
        for name, kind, points in picture.shapes:
            tag = {"dot": "points", "area": "polygon", "line": "polyline"}[kind]
            places = ";".join(f"{x!r},{y!r}" for x, y in points)
            lines.append(
                f'<{tag} label={quoteattr(name)} source="manual" occluded="0" points="{places}" z_order="0"></{tag}>'
            )
        lines.append("</image>")
    (folder / "annotations.xml").write_text("\n".join([*lines, "</annotations>"]))
    return folder


def write_labelstudio(folder: Path, pictures: list[Picture]) -> Path:
    """media/ and export.json: VectorLabels, KeyPointLabels, PolygonLabels and BrushLabels."""
    save_images(folder / "media", pictures)
    tasks = []
    for number, picture in enumerate(pictures):
        height, width = picture.pixels.shape[:2]
        result = []
        for name, kind, points in picture.shapes:
            if kind == "brush":
                label, value = "brushlabels", {"format": "rle", "rle": brush_rle(points)}
            else:
                percent = (np.array(points) * [100 / width, 100 / height]).tolist()
                label, value = {
                    "line": ("vectorlabels", {"vertices": vertices(percent), "closed": False}),
                    "dot": ("keypointlabels", {"x": percent[0][0], "y": percent[0][1], "width": 0.5}),
                    "area": ("polygonlabels", {"points": percent, "closed": True}),
                }[kind]
            region = {
                "id": f"r{len(result)}",
                "type": label,
                "from_name": "label",
                "to_name": "image",
                "image_rotation": 0,
            }
            region |= {"original_width": width, "original_height": height, "value": value | {label: [name]}}
            result.append(region)
        annotation = {"id": number, "was_cancelled": False, "ground_truth": False, "result": result}
        url = f"/data/local-files/?d=media/{picture.name}.png"
        tasks.append({"id": number, "data": {"image": url}, "annotations": [annotation], "predictions": []})
    (folder / "export.json").write_text(json.dumps(tasks))
    return folder


def vertices(points: list) -> list[dict]:
    """The vertices of a vector, as https://labelstud.io/tags/vectorlabels shows them."""
    return [
        {"id": f"v{index}", "x": x, "y": y, "prevPointId": f"v{index - 1}" if index else None, "isBezier": False}
        for index, (x, y) in enumerate(points)
    ]


def write_scribblesup(folder: Path, pictures: list[Picture]) -> Path:
    """scribbles/NAME.xml and images/. Points are pixels, counted from 1: the centre of the first one is (0.5, 0.5)."""
    save_images(folder / "images", pictures)
    (folder / "scribbles").mkdir()
    for picture in pictures:
        height, width = picture.pixels.shape[:2]
        text = (
            f"<annotation><folder>VOC2012</folder><filename>{picture.name}.png</filename><size><width>{width}</width>"
        )
        text += f"<height>{height}</height><depth>3</depth></size><segmented>1</segmented>"
        for name, _, points in picture.shapes:
            places = "".join(f"<point><X>{x + 0.5:.0f}</X><Y>{y + 0.5:.0f}</Y></point>" for x, y in points)
            text += f"<polygon><tag>{TAGS.get(name, name)}</tag>{places}</polygon>"
        (folder / f"scribbles/{picture.name}.xml").write_text(f"{text}</annotation>")
    return folder / "scribbles"
