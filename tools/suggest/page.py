"""The page of tools.suggest: each image with its strokes and places, and the model's prediction, in one file."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

import cv2
import numpy as np

from data.classes import Classes
from data.overlays import JPEG_QUALITY, overlay, to_hex
from support.labels import IGNORE
from tools.suggest.places import Place

TEMPLATE = Path(__file__).with_name("page.html")
LARGEST = 900  # pixels, longer side of a picture
COLOURS = (255, 255, 255), (200, 0, 60)  # RGB; of a mark and of what is around it


class Picture(NamedTuple):
    """An image to draw in. image: (H, W, 3) uint8 RGB. scribble, predicted: (H, W) uint8. places: with their ranks."""

    name: str
    image: np.ndarray
    scribble: np.ndarray
    predicted: np.ndarray
    places: Sequence[tuple[int, Place]]


def page(figures: Sequence[str], classes: Classes) -> str:
    """Return the HTML page, ASCII only. figures: results of figure()."""
    legend = "".join(
        f'<li><i style="background:{colour}"></i>{html.escape(name)}</li>'
        for name, colour in zip(classes.names, to_hex(classes.colours), strict=False)
    )
    text = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(legend=legend, figures="\n".join(figures))
    return text.encode("ascii", "xmlcharrefreplace").decode()


def figure(picture: Picture, classes: Classes, background: int | None) -> str:
    """Return the HTML of an image: its places as a list, the image with its strokes, and the prediction over it."""
    drawn = np.where((picture.scribble != IGNORE)[..., None], classes.colours[picture.scribble], picture.image)
    painted = overlay(picture.image, picture.predicted, classes.colours, background)
    names = [html.escape(name) for name in classes.names]
    items = "".join(
        f"<li><b>{rank}</b> {names[place.label]}, or {names[place.other]}</li>" for rank, place in picture.places
    )
    shown = "".join(f'<img alt="" src="{_jpeg(_marked(part, picture.places))}">' for part in (drawn, painted))
    return f"<figure><figcaption>{html.escape(picture.name)}<ul>{items}</ul></figcaption>{shown}</figure>"


def _marked(image: np.ndarray, places: Sequence[tuple[int, Place]]) -> np.ndarray:
    """Return the image, at most LARGEST pixels long, with a ring and its rank at each place."""
    scale = min(1.0, LARGEST / max(image.shape[:2]))
    result = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    for rank, place in places:
        at = round(scale * (place.column + 0.5)), round(scale * (place.row + 0.5))
        for colour, width in zip(COLOURS[::-1], (5, 2), strict=True):
            cv2.circle(result, at, 11, colour, width, cv2.LINE_AA)
            cv2.putText(result, str(rank), (at[0] + 14, at[1] + 5), cv2.FONT_HERSHEY_SIMPLEX, 0.55, colour, width)
    return result


def _jpeg(image: np.ndarray) -> str:
    data = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1]
    return f"data:image/jpeg;base64,{base64.b64encode(data.tobytes()).decode()}"
