"""Masks of one object in black and white: 0 is background, 255 (or 1) the object."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from data.images import IMAGE_SUFFIXES
from support.errors import InputError
from tools.convert.formats.pairs import decode_mask, read_pairs
from tools.convert.source import Entry, Options, Region, Source

SUFFIXES = (".png", ".bmp", ".tif", ".tiff", ".webp", ".gif")


def read(source: Path, options: Options) -> Source:
    """Return the pairs of images and masks. JPEG masks are read only with --threshold, as their values are inexact."""
    suffixes = SUFFIXES if options.threshold is None else tuple(dict.fromkeys((*SUFFIXES, *IMAGE_SUFFIXES)))
    result = read_pairs(source, options, suffixes)
    result.names = [_object(options)]
    return result


def _object(options: Options) -> str:
    return options.known.names[1] if options.known and len(options.known.names) > 1 else "object"


def draw(entry: Entry, size: tuple[int, int], options: Options, faults: list[str]) -> Iterator[Region]:
    """Yield the object's pixels. Raises InputError if the mask has colours, or values besides 0 and 255 or 1."""
    path = entry.record

    def grey(image: Image.Image) -> Image.Image:
        if image.mode in ("P", "1"):
            image = image.convert("RGB")
        channels = image.split()[:3]
        if len({channel.tobytes() for channel in channels}) > 1 and len(channels) == 3:
            raise InputError(f"{path}: it has colours: convert it with the kind 'colours'")
        return channels[0]

    values = decode_mask(path, grey, size)
    present = np.unique(values)
    if options.threshold is not None:
        mask = values >= options.threshold
    elif set(present.tolist()) <= {0, 255} or set(present.tolist()) <= {0, 1}:
        mask = values > 0
    else:
        raise InputError(
            f"{path}: {len(present)} values, from {present[0]} to {present[-1]}, where 0 and 255 were expected: add "
            "--threshold 128 to make values of at least 128 the object"
        )
    yield Region(_object(options), 0, 0, mask)
