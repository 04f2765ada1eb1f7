"""Read images of any bits and bands as 8-bit RGB, the only kind that the code behind this module knows."""

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from data.images import Header, read_header, read_image
from data.images.deep import any_header, deep_header, read_values
from data.images.to_8_bits import HAVE_8_BITS, map_to_8_bits
from support.errors import InputError, NotRGBError


@dataclass(frozen=True)
class ImageReader:
    """Reads images as 8-bit RGB.

    bands: the bands for red, green and blue, counted from 1; one number stands for all three; (): 1 2 3, or 1 if there
    are fewer than three. value_range: LOW and HIGH, the values that become 0 and 255, or three such pairs, one a band;
    (): all images have 8 bits. A value v becomes round((v - LOW) / (HIGH - LOW) * 255), limited to 0..255, and
    NaN, infinite values and the file's value for "no data" become 0. Values of 8 bits stay as they are. Without both,
    only 8-bit RGB or grey images are read.
    """

    bands: tuple[int, ...] = ()
    value_range: tuple[float, ...] = ()

    @property
    def is_plain(self) -> bool:
        return not (self.bands or self.value_range)

    def read(self, path: Path, long_side: int = 0) -> np.ndarray:
        """Return an image (H, W, 3) uint8 RGB, upright. long_side, errors: as in data.images.read_image()."""
        if not self.bands:
            try:
                return read_image(path, long_side)
            except NotRGBError:
                if not self.value_range:
                    raise
        values, nodata = read_values(path)
        return self.reduce(values, str(path), nodata)

    def header(self, path: Path) -> Header:
        """Return a file's Header. Raises InputError if read() cannot read the file."""
        if self.is_plain:
            return read_header(path)
        header = deep_header(path) if self.bands else any_header(path)
        if not header.is_rgb:
            self.check(header.bands, np.dtype(header.dtype), str(path))
        return header

    def reduce(self, values: np.ndarray, source: str, nodata: float | None = None) -> np.ndarray:
        """Return an image (H, W, bands) of numbers as (H, W, 3) uint8.

        source: what the image is from, for messages. nodata: a value that becomes 0. Raises InputError if the image
        has too few bands, or more than 8 bits without a value_range.
        """
        self.check(values.shape[2], values.dtype, source)
        limits = self.value_range * (3 if len(self.value_range) == 2 else 1)
        limits_of_bands = limits[:2], limits[2:4], limits[4:]
        wanted = list(zip(self._numbers(values.shape[2]), limits_of_bands, strict=True))
        mapped = {one: map_to_8_bits(values[..., one[0] - 1], one[1], nodata) for one in dict.fromkeys(wanted)}
        return cv2.merge([mapped[one] for one in wanted])  # one band three times was mapped once

    def select(self, values: np.ndarray) -> np.ndarray:
        """Return the three bands of an image (H, W, bands) that become red, green and blue."""
        return values[..., [number - 1 for number in self._numbers(values.shape[2])]]

    def _numbers(self, available: int) -> tuple[int, ...]:
        numbers = self.bands or ((1, 2, 3) if available >= 3 else (1,))
        return numbers * 3 if len(numbers) == 1 else numbers

    def check(self, available: int, dtype: np.dtype, source: str) -> None:
        if (most := max(self._numbers(available))) > available:
            problem = f"has {available} band(s), but band {most} is read"
            raise InputError(f"{source}: {problem}: use images as in training, or name other --bands")
        if dtype.kind not in "biuf":
            raise InputError(f"{source}: has {dtype} values: save real numbers, such as their magnitude")
        if not self.value_range and dtype.name not in HAVE_8_BITS:
            remedy = "name those that become 0 and 255 with --value_range LOW HIGH"
            raise InputError(f"{source}: has {dtype} values: {remedy}")
