"""Choose which bands of images are read, and which values become 0 and 255, from a sample of the images."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data.images.deep import any_header, read_values
from data.images.reader import HAVE_8_BITS, ImageReader, is_valid
from data.label_check import spread
from support.errors import UserError

READING = ("bands", "stretch", "value_range")  # the flags on it
STRETCH = (2.0, 98.0)  # percentiles, as geographic information systems have them by default
NUM_IMAGES, NUM_PIXELS = 200, 2**20  # to measure: the values of at most so many images, and pixels in all of them


def choose_reading(
    paths: Sequence[Path], given: dict[str, tuple], mapper: Callable[..., Iterable] = map
) -> tuple[dict[str, tuple[Any, str]], list[str]]:
    """Return ({flag of READING: (value, reason)} for images that are not 8-bit RGB, warnings about their values).

    paths: the training images, or some of them. given: {flag: value} of READING, () if it is not set; values that are
    set stay. mapper: works like map(). Raises UserError if a file cannot be read, or if a flag has no effect.
    """
    paths = spread(list(dict.fromkeys(paths)), NUM_IMAGES)
    headers = dict(zip(paths, mapper(any_header, paths), strict=True))
    deep = [path for path, header in headers.items() if header.dtype not in HAVE_8_BITS]
    if not deep and given["stretch"]:
        raise UserError("--stretch has no effect: the training images have 8 bits, which stay as they are: drop it")
    choices: dict[str, tuple[Any, str]] = {}
    bands, _ = Counter(headers[path].bands for path in deep or paths).most_common(1)[0]
    if not given["bands"] and bands not in (1, 3, 4):
        choices["bands"] = (1, 2, 2) if bands == 2 else (1, 2, 3), f"of {bands} in a file; name others with --bands"
    if not deep or given["value_range"]:
        return choices, []
    stretch = given["stretch"] or STRETCH
    if not given["stretch"]:
        choices["stretch"] = stretch, f"values are {headers[deep[0]].dtype}"
    reader = ImageReader(given["bands"] or choices.get("bands", ((), ""))[0], (0.0, 1.0))
    deep = [path for path in deep if headers[path].bands >= max(reader.bands, default=1)] or deep[:1]
    value_range, warnings = measure(deep, reader, stretch, mapper)
    choices["value_range"] = value_range, f"{stretch[0]:g} % and {stretch[1]:g} % of values in {len(deep)} image(s)"
    if plain := [path for path in paths if path not in set(deep)]:
        warnings.append(f"{len(plain)} of {len(paths)} images have 8 bits and are read as they are: {plain[0]} ...")
    return choices, warnings


def measure(
    paths: Sequence[Path], reader: ImageReader, percentiles: tuple[float, ...], mapper: Callable[..., Iterable] = map
) -> tuple[tuple[float, ...], list[str]]:
    """Return (a value_range, warnings): percentiles of each band that `reader` selects, one pair if all are equal.

    Values that are NaN, infinite or "no data" do not count. Raises UserError if a band has a single value.
    """
    samples = list(mapper(partial(sample, reader=reader, most=NUM_PIXELS // len(paths)), paths))
    values, warnings = np.concatenate(samples), []
    for what, test in (
        ("have NaN, infinite or nodata values, which become 0 (black)", lambda item: np.isnan(item).any()),
        ("have one value in all pixels", lambda item: not is_varied(item)),
    ):
        if found := [path for path, item in zip(paths, samples, strict=True) if test(item)]:
            warnings.append(f"{len(found)} of {len(paths)} images {what}: {found[0]} ...")
    limits: list[float] = []
    for channel, column in enumerate(values.T):
        column = column[~np.isnan(column)]
        low, high = np.percentile(column, percentiles).tolist() if len(column) else (math.nan, math.nan)
        if low == high:
            low, high = float(column.min()), float(column.max())
        if not low < high:
            single = f"the value {low:g}" if len(column) else "NaN, infinite or nodata values"
            problem = f"the band for {('red', 'green', 'blue')[channel]} has only {single} in {len(paths)} image(s)"
            raise UserError(f"{paths[0].parent}: {problem}: choose other --bands, or set --value_range")
        digits = 5 - math.floor(math.log10(high - low))  # a thousandth of what one of 255 steps is
        limits += [round(low, digits), round(high, digits)]
    return tuple(limits[:2] if limits == limits[:2] * 3 else limits), warnings


def sample(path: Path, reader: ImageReader, most: int = 2**62) -> np.ndarray:
    """Return the bands that `reader` selects in a grid of about `most` pixels: (pixels, 3) float64.

    Values that are NaN, infinite or "no data" are NaN. Raises InputError if the file cannot be read.
    """
    values, nodata = read_values(path)
    reader.check(values.shape[2], values.dtype, str(path))
    step = max(1, math.ceil(math.sqrt(values.shape[0] * values.shape[1] / most)))
    values = reader.select(values[::step, ::step]).reshape(-1, 3)
    return np.where(is_valid(values, nodata), values, np.nan).astype(np.float64)


def is_varied(values: np.ndarray) -> bool:
    """Return whether a sample() has two values in a band, NaN aside."""
    return any(len(column) and column.min() < column.max() for column in (c[~np.isnan(c)] for c in values.T))
