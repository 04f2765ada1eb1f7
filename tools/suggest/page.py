"""Write the page of tools.suggest: each image with its strokes and places, and the prediction, in one file."""

import html
from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image

from data.classes import Classes
from data.overlays import JPEG_QUALITY, overlay, to_hex
from inference.pseudo_labels import Stroked
from inference.report import data_url
from support.labels import IGNORE
from tools.html_page import html_page
from tools.suggest.places import Place

STYLE = """ul { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 4px 0 8px; padding: 0; font-weight: 400; }
li { list-style: none; }
li i { display: inline-block; width: 14px; height: 14px; margin-right: 6px; border: 1px solid gray; }
img { width: calc(50% - 6px); height: auto; }
img + img { margin-left: 12px; }"""
STROKES = (
    "Left: the image and its strokes. Right: what the model sees. Draw a stroke through each object that a ring marks. "
    "The list names the class that the model sees there, and the next likely one."
)
MASKS = "Left: the image. Right: what the model sees. Draw whole masks; the first images teach the model most."
LONG_SIDE = 900  # pixels, of a picture; a small image grows to twice its size at most
FONT, FONT_SCALE = cv2.FONT_HERSHEY_SIMPLEX, 0.55
COLOURS = (255, 255, 255), (110, 0, 40)  # RGB; of a mark and of its outline
DARK, GREY = 40, 208  # a class whose channels are all below DARK has this grey: dark photos would hide its strokes


def page(figures: Sequence[str], classes: Classes, *, masks: bool) -> str:
    """Return the HTML page, ASCII only. figures: results of figure(). masks: whether to draw masks, not strokes."""
    legend = "".join(
        f'<li><i style="background:{colour}"></i>{html.escape(name)}</li>'
        for name, colour in zip(classes.names, to_hex(_visible(classes.colours)), strict=False)
    )
    task = MASKS if masks else STROKES
    return html_page("Where to draw next", STYLE, f"<p>{task}</p>\n<ul>{legend}</ul>\n" + "\n".join(figures))


def figure(
    name: str,
    item: Stroked,
    predicted: np.ndarray,
    places: Sequence[tuple[int, Place]],
    classes: Classes,
    background: int | None,
) -> str:
    """Return the HTML of an image: its places as a list, the image with its strokes, and the prediction over it.

    predicted: (H, W) uint8. places: with their ranks.
    """
    colours = _visible(classes.colours)
    drawn = np.where((item.scribble != IGNORE)[..., None], colours[item.scribble], item.image)
    painted = overlay(item.image, predicted, colours, background)
    names = [html.escape(name) for name in classes.names]
    items = "".join(f"<li><b>{rank}</b> {names[place.label]}, or {names[place.other]}</li>" for rank, place in places)
    marked = [Image.fromarray(_marked(part, places)) for part in (drawn, painted)]
    shown = "".join(f'<img alt="" src="{data_url(part, "jpeg", quality=JPEG_QUALITY)}">' for part in marked)
    listed = f"<ul>{items}</ul>" if places else ""
    return f"<figure><figcaption>{html.escape(name)}{listed}</figcaption>{shown}</figure>"


def _visible(colours: np.ndarray) -> np.ndarray:
    """Return colours (256, 3) uint8 with GREY in place of those as dark as class 0's in VOC's palette, black."""
    return np.where(colours.max(axis=1, keepdims=True) < DARK, np.uint8(GREY), colours)


def _marked(image: np.ndarray, places: Sequence[tuple[int, Place]]) -> np.ndarray:
    """Return the image at a size to look at, with a ring and its rank at each place."""
    scale = min(2.0, LONG_SIDE / max(image.shape[:2]))
    result = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
    for rank, place in places:
        at = round(scale * (place.column + 0.5)), round(scale * (place.row + 0.5))
        width = cv2.getTextSize(str(rank), FONT, FONT_SCALE, 2)[0][0]
        x = at[0] + 14 if at[0] + 14 + width < result.shape[1] else at[0] - 14 - width  # left of the ring
        y = min(max(at[1] + 5, 14), result.shape[0] - 4)
        for colour, thickness in zip(COLOURS[::-1], (5, 2), strict=True):
            cv2.circle(result, at, 11, colour, thickness, cv2.LINE_AA)
            cv2.putText(result, str(rank), (x, y), FONT, FONT_SCALE, colour, thickness, cv2.LINE_AA)
    return result
