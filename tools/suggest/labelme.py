"""Write LabelMe files of images with their strokes and the suggested places, to draw in and to convert back."""

import base64
import json
import os
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from support.errors import UserError
from support.files import write_atomic
from support.labels import IGNORE
from tools.convert.formats.labelme import SUGGESTED
from tools.suggest.places import Place


def write(image: Path, scribble: np.ndarray, places: Sequence[tuple[int, Place]], names: list[str]) -> None:
    """Write a JSON file beside an image, with its strokes as masks and the places as points, unless it exists.

    scribble: (H, W) uint8, 255 = no stroke. places: with their ranks. names: of the classes.
    """
    target = image.with_suffix(".json")
    if os.path.lexists(target):  # the user may have drawn in it
        return
    shapes = [_mask(scribble == number, names[number]) for number in np.unique(scribble[scribble != IGNORE])]
    for rank, place in places:
        at = [[place.column + 0.5, place.row + 0.5]]
        shapes.append(_shape(f"{SUGGESTED}{names[place.label]}", at, "point", rank))
    content = {
        "version": "5.5.0",
        "flags": {},
        "shapes": shapes,
        "imagePath": image.name,
        "imageData": None,
        "imageHeight": scribble.shape[0],
        "imageWidth": scribble.shape[1],
    }
    write_atomic(target, json.dumps(content, indent=2))


def check_names(names: Sequence[str], place: str) -> None:
    """Raise UserError, naming `place`, if a class is named as suggested places are."""
    if wrong := next((name for name in names if name.startswith(SUGGESTED)), ""):
        mark = f"{SUGGESTED!r}, which marks suggested places in LabelMe"
        raise UserError(f"{place}: the class name {wrong!r} begins with {mark}: rename the class")


def _mask(is_drawn: np.ndarray, label: str) -> dict:
    """Return a shape of the pixels that are drawn, (H, W) bool; there is at least one."""
    left, top, width, height = cv2.boundingRect(is_drawn.view(np.uint8))
    png = cv2.imencode(".png", 255 * is_drawn[top : top + height, left : left + width].view(np.uint8))[1]
    points = [[left, top], [left + width - 1, top + height - 1]]
    return _shape(label, points, "mask") | {"mask": base64.b64encode(png.tobytes()).decode()}


def _shape(label: str, points: list, kind: str, number: int | None = None) -> dict:
    shape = {"label": label, "points": points, "group_id": number, "description": "", "shape_type": kind}
    return shape | {"flags": {}, "mask": None}
