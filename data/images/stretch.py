"""Choose which bands of images are read, and which values become 0 and 255, from a sample of the images."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data.images import Header
from data.images.deep import any_header, read_values
from data.images.reader import ImageReader
from data.images.to_8_bits import HAVE_8_BITS, is_valid
from data.label_check import spread
from support.errors import UserError

READING = ("bands", "stretch", "value_range")  # the flags on it
STRETCH = (2.0, 98.0)  # percentiles, as geographic information systems have them by default
NUM_IMAGES, NUM_PIXELS = 200, 2**20  # to measure: the values of at most so many images, and pixels in all of them
COLOURS = ("red", "green", "blue")


def choose_reading(
    train: Sequence[Path], val: Sequence[Path], given: dict[str, tuple], mapper: Callable[..., Iterable] = map
) -> tuple[dict[str, tuple[Any, str]], list[str]]:
    """Return ({flag of READING: (value, reason)} for images that are not 8-bit RGB, warnings about files and values).

    train, val: the images. given: {flag: value} of READING, () if it is not set; values that are set stay. mapper:
    works like map(). Raises UserError if a file cannot be read, or if a flag has no effect.
    """
    paths = spread(list(dict.fromkeys(train)), NUM_IMAGES)
    every = [*paths, *spread(list(dict.fromkeys(val)), NUM_IMAGES)]
    headers = dict(zip(every, mapper(any_header, every), strict=True))
    deep = [path for path in paths if headers[path].dtype not in HAVE_8_BITS]
    if given["stretch"] and not deep:
        raise UserError("--stretch has no effect: the training images have 8 bits, which stay as they are: drop it")
    warnings = _differences(headers)
    if given["value_range"] and all(header.dtype in HAVE_8_BITS for header in headers.values()):
        warnings.append("--value_range has no effect: the images have 8 bits, which stay as they are")
    choices: dict[str, tuple[Any, str]] = {}
    kinds = Counter((headers[path].bands, headers[path].is_rgb) for path in deep or paths)
    (bands, is_rgb), _ = kinds.most_common(1)[0]
    # Without --bands, 8-bit files are read as RGB only, and of deep ones the bands 1 2 3, or 1 alone.
    if not given["bands"] and not (is_rgb or (deep and bands in (1, 3))):
        wanted = {1: (1,), 2: (1, 2, 2)}.get(bands, (1, 2, 3))
        choices["bands"] = wanted, f"of {bands} in a file; name others with --bands"
    if not deep:
        return choices, warnings
    reader = ImageReader(given["bands"] or choices.get("bands", ((), ""))[0], (0.0, 1.0))
    deep = [path for path in deep if headers[path].bands >= max(reader.bands, default=1)] or deep[:1]
    samples = dict(zip(deep, mapper(partial(sample, reader=reader, most=NUM_PIXELS // len(deep)), deep), strict=True))
    warnings += _bad_values(samples)
    if given["value_range"]:
        return choices, warnings
    stretch = given["stretch"] or STRETCH
    if not given["stretch"]:
        choices["stretch"] = stretch, f"values are {headers[deep[0]].dtype}"
    value_range, problems = measure(samples, stretch)
    choices["value_range"] = value_range, f"{stretch[0]:g} % and {stretch[1]:g} % of values in {len(deep)} image(s)"
    return choices, warnings + problems


def _differences(headers: dict[Path, Header]) -> list[str]:
    """Return a warning for each kind of values or number of bands that most images do not have."""
    kinds = {path: f"{header.dtype} values in {header.bands} band(s)" for path, header in headers.items()}
    (usual, most), *others = Counter(kinds.values()).most_common()
    examples = {kind: path for path, kind in kinds.items()}
    end = "values of 8 bits stay as they are, all others are reduced alike"
    return [
        f"{number} of {len(kinds)} images have {kind}, {most} have {usual}: {examples[kind]} ...: {end}"
        for kind, number in others
    ]


def _bad_values(samples: dict[Path, np.ndarray]) -> list[str]:
    """Return warnings about images with NaN or the like, and with one value in all pixels of a band."""
    missing = [path for path, values in samples.items() if np.isnan(values).any()]
    # fmin and fmax leave out NaN.
    flat = [path for path, values in samples.items() if not np.all(np.fmin.reduce(values) < np.fmax.reduce(values))]
    found = {
        "have NaN, infinite or nodata values, which become 0 (black)": missing,
        "have one value in all pixels of a band": flat,
    }
    return [f"{len(paths)} of {len(samples)} images {what}: {paths[0]} ..." for what, paths in found.items() if paths]


def measure(samples: dict[Path, np.ndarray], percentiles: tuple[float, ...]) -> tuple[tuple[float, ...], list[str]]:
    """Return (a value_range, warnings): percentiles of each band, one pair if all bands have the same.

    samples: sample() of each image; NaN does not count. Raises UserError if a band has a single value.
    """
    limits: list[float] = []
    warnings = []
    folder = next(iter(samples)).parent
    for colour, column in zip(COLOURS, np.concatenate(list(samples.values())).T, strict=True):
        column = column[~np.isnan(column)]
        low, high = np.percentile(column, percentiles).tolist() if len(column) else (math.nan, math.nan)
        if low == high:
            single, low, high = low, float(column.min()), float(column.max())
            if low < high:
                what = f"--stretch: both percentiles of the band for {colour} are {single:g}"
                warnings.append(f"{what}: its least and largest value are used, {low:g} and {high:g}")
        if not low < high:
            single_value = f"the value {low:g}" if len(column) else "NaN, infinite or nodata values"
            problem = f"the band for {colour} has only {single_value} in {len(samples)} image(s)"
            raise UserError(f"{folder}: {problem}: choose other --bands, or set --value_range")
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
