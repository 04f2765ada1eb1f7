"""The report of an evaluation: one HTML page that holds its own data and pictures and loads nothing."""

import base64
import html
import io
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from evaluation.pictures import contours, to_hex
from files import write_atomic
from labels import IGNORE

TEMPLATE = Path(__file__).with_name("report.html")
PICTURE_SIZE = 640  # pixels, the longer side of a picture at most: 60 examples are then some 10 MB
MAX_POINTS = 2000  # of a curve: more than a screen shows

# Of the error map's values: right (left transparent), wrong, and the dark and light stripes where nothing is labelled.
_ERROR_COLOURS = np.array([(0, 0, 0), (255, 59, 48), (40, 44, 52), (108, 114, 124)], np.uint8)


@dataclass
class Example:
    """An image of the gallery with its scores.

    image (H, W, 3) uint8 RGB; label and predicted (H, W) uint8 class numbers, 255 in label = ignored.
    miou: of this image, 0..1. iou: a value a class, None for one that is neither in label nor in predicted. other and
    other_miou: label map and mIoU of the checkpoint that this one is compared with.
    """

    name: str
    image: np.ndarray
    label: np.ndarray
    predicted: np.ndarray
    miou: float
    iou: list[float | None]
    other: np.ndarray | None = None
    other_miou: float | None = None


def write_report(
    folder: Path, *, title: str, facts: dict[str, str], scores: dict, class_names: list[str], colours: np.ndarray,
    confusion: np.ndarray, curves: list[dict], examples: list[Example], background: int | None = 0,
    comparison: dict | None = None,
) -> Path:  # fmt: skip
    """Write folder/index.html, whole or not at all, and return its path. The folder is made where there is none.

    facts: what was scored and how, label -> text, which may have several lines.
    scores: "images" and "pixels" (int); "miou", "pixel_acc", "mean_acc", "fwiou", "boundary_miou" (0..1); a value
        a class in "iou", "acc" (recall), "precision", "boundary_iou" (0..1, None where undefined) and "share" (of the
        labelled pixels, 0..1); where it is known "miou_ci", [low, high].
    colours: RGB by label value, (256, 3) uint8. confusion: pixels (C, C) int64, row = label, column = prediction.
    curves: the lines of the run's metrics.jsonl; [] where there is none. background: as of evaluation.pictures.overlay().
    comparison: with another checkpoint, as of evaluation.scoring.compare(), and the "names" of both.
    Raises UserError where the folder or the page cannot be written.
    """
    num_classes = len(class_names)
    assert confusion.shape == (num_classes, num_classes), confusion.shape
    assert all(len(scores[name]) == num_classes for name in ("iou", "acc", "precision", "boundary_iou", "share"))
    content = {
        "title": title,
        "facts": list(facts.items()),  # JavaScript would move keys that are numbers to the front
        "scores": scores,
        "classes": [
            {"name": name, "colour": colour} for name, colour in zip(class_names, to_hex(colours), strict=False)
        ],
        "ignored": to_hex(colours)[IGNORE],
        "confusion": confusion.tolist(),
        "curves": _curves(curves),
        "examples": [_example(example, colours, background) for example in examples],
        "comparison": comparison,
    }
    path = folder / "index.html"
    write_atomic(path, _page(title, content), parents=True)
    return path


def _page(title: str, content: dict) -> str:
    """The template with the title and the data in it, ASCII."""
    # "<" would let a file name end the script element that holds the data; in JSON it may be written as \u003c.
    blob = json.dumps(_finite(content), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    values = {"title": html.escape(title), "data": blob}
    # In one pass: a "{{data}}" in a title stays what it is.
    page = re.sub(r"\{\{(title|data)\}\}", lambda match: values[match[1]], TEMPLATE.read_text(encoding="ascii"))
    # File names that are not UTF-8 reach Python as lone surrogates, which no encoding but this one takes.
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _finite(value):
    """The same nested value with None for NaN and infinity, which JSON cannot say."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _curves(lines: list[dict]) -> dict:
    """Lines of metrics.jsonl by kind, with what the page draws; of very many training lines every n-th and the last."""
    kinds: dict[str, list[dict]] = {"train": [], "val": []}
    for line in lines:
        kinds.get(line["kind"], []).append(line)
    every = math.ceil(len(kinds["train"]) / MAX_POINTS) or 1
    kinds["train"] = kinds["train"][::-1][::every][::-1]
    drawn = {"train": ("step", "epoch", "loss", "losses", "lr"), "val": ("step", "epoch", "miou", "pixel_acc")}
    points = {kind: [{name: line.get(name) for name in drawn[kind]} for line in kinds[kind]] for kind in kinds}
    return {**points, "every": every}


def _example(example: Example, colours: np.ndarray, background: int | None) -> dict:
    """An example as the page has it: its pictures as data: URLs, of PICTURE_SIZE at most."""
    height, width = example.label.shape
    scale = min(1.0, PICTURE_SIZE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    image = Image.fromarray(example.image).resize(size, Image.Resampling.LANCZOS)
    maps = {"label": example.label, "predicted": example.predicted, "other": example.other}
    small = {
        name: np.asarray(Image.fromarray(values).resize(size, Image.Resampling.NEAREST))
        for name, values in maps.items() if values is not None
    }  # fmt: skip
    return {
        "name": example.name,
        "miou": example.miou,
        "iou": [None if value is None else round(value, 4) for value in example.iou],
        "size": size,
        "input": _data_url(image, "jpeg", quality=80),
        "other_miou": example.other_miou,
        "errors": _error_map(small["label"], small["predicted"]),
        **{name: _layers(values, colours, background) for name, values in small.items()},
    }


def _layers(label: np.ndarray, colours: np.ndarray, background: int | None) -> list[str]:
    """Two PNGs of a label map (H, W) to lay over the input: the colours of the classes, and their contours.

    Both are clear at `background`. Their palettes have only the colours that occur.
    """
    values, indices = np.unique(label, return_inverse=True)
    indices = indices.reshape(label.shape).astype(np.uint8)
    clear = {"transparency": int(np.flatnonzero(values == background)[0])} if background in values else {}
    lines = np.where(contours(label, background), indices + 1, 0).astype(np.uint8)
    line_colours = np.concatenate([np.zeros((1, 3), np.uint8), colours[values]])[:256]
    return [_palette_png(indices, colours[values], **clear), _palette_png(lines, line_colours, transparency=0)]


def _error_map(label: np.ndarray, predicted: np.ndarray) -> str:
    """A PNG to lay over the input: red where the prediction is wrong, striped where nothing is labelled."""
    rows, columns = np.indices(label.shape)
    stripes = np.where((rows + columns) % 8 < 3, 3, 2)
    errors = np.where(label == IGNORE, stripes, label != predicted).astype(np.uint8)
    return _palette_png(errors, _ERROR_COLOURS, transparency=0)


def _palette_png(indices: np.ndarray, palette: np.ndarray, **options) -> str:
    """Indices (H, W) uint8 into a palette (N, 3) uint8, as the data: URL of a PNG."""
    picture = Image.fromarray(indices)
    picture.putpalette(palette.tobytes())
    return _data_url(picture, "png", optimize=True, **options)


def _data_url(picture: Image.Image, kind: str, **options) -> str:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
