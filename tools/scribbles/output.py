"""The folder of simulated scribbles, and pictures of them."""

import json
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from support.errors import UserError
from support.files import write_atomic, writing
from support.labels import IGNORE
from tools.claims import ANOTHER_COMMAND, read_mark

MARK = ".scribbles.json"  # what OUT was made from; a hidden file, which readers of data sets skip


def claim(out: Path, settings: dict) -> None:
    """Create the folder OUT, or check that it is the result of the same command.

    settings: what decides the content of a scribble; JSON. Raises UserError if OUT has other content, before anything
    is written.
    """
    done = read_mark(out / MARK)
    if done is None:
        write_atomic(out / MARK, json.dumps(settings, indent=1), parents=True)
    elif done != settings:
        raise UserError(f"{out}: {ANOTHER_COMMAND}")


def write_overlay(target: Path, image: np.ndarray, scribble: np.ndarray, colours: np.ndarray) -> None:
    """Write a JPEG of an image, paler, with the strokes in the colours of their classes.

    image: (H, W, 3) uint8 RGB. scribble: (h, w) uint8, scaled to the image's size if it has another one.
    """
    strokes = cv2.resize(scribble, image.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    pale = cv2.addWeighted(image, 0.6, np.full_like(image, 255), 0.4, 0)
    painted = np.where((strokes != IGNORE)[..., None], colours[strokes], pale)
    with writing(target, parents=True) as scratch:
        Image.fromarray(painted).save(scratch, quality=90)
