"""The type of a data set's images: number of channels, type of a value, mean and standard deviation by channel."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from support.errors import UserError

if TYPE_CHECKING:
    import numpy as np

MAX_CHANNELS = 16
DTYPES = ("uint8", "uint16", "int16", "float32")
FILE_NAME = "image_stats.json"  # in the data set's folder


class ImageType(NamedTuple):
    """Number of channels, and NumPy's name for the type of a value, one of DTYPES."""

    channels: int = 3
    dtype: str = "uint8"

    def __str__(self) -> str:
        return f"{self.channels} channel{'s' if self.channels > 1 else ''} of {self.dtype}"


RGB = ImageType()
MEAN_COLOUR = (124, 116, 104)  # ImageNet's mean, RGB, 0..255


@dataclass(frozen=True)
class ImageStats:
    """The type of a data set's images, and mean and standard deviation of each channel in the images' own units."""

    dtype: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def kind(self) -> ImageType:
        return ImageType(len(self.mean), self.dtype)

    @property
    def text(self) -> str:
        """Return the statistics as JSON, exactly: read_stats(stats.text) == stats."""
        return json.dumps(asdict(self))

    @property
    def outside(self) -> tuple[float, ...]:
        """Return the pixel to pad images with: the mean of each channel."""
        return self.mean if self.dtype == "float32" else tuple(round(value) for value in self.mean)


@dataclass(frozen=True)
class Display:
    """How an image is shown: three of its channels as RGB, 8 bits.

    Values of more than 8 bits are stretched linearly, by channel over the whole data set: mean - 2 std becomes black
    and mean + 2 std white. channels: three numbers, from 0. stats: None for 8-bit RGB.
    """

    channels: tuple[int, ...] = (0, 1, 2)
    stats: ImageStats | None = None

    @property
    def kind(self) -> ImageType:
        """Return the channels and type of the images that are shown."""
        return self.stats.kind if self.stats else RGB

    @classmethod
    def of(cls, chosen: tuple[int, ...], stats: ImageStats | None) -> "Display":
        """Return the Display of --show_channels: three numbers, one (grey), or none: the first three or one.

        Raises UserError if an image lacks one of these channels.
        """
        num_channels = len(stats.mean) if stats else RGB.channels
        channels = chosen or ((0, 1, 2) if num_channels >= 3 else (0,))
        if len(channels) not in (1, 3) or not all(0 <= number < num_channels for number in channels):
            raise UserError(
                f"--show_channels {' '.join(map(str, channels))}: give one or three numbers of 0 to {num_channels - 1}"
            )
        return cls(channels * (3 // len(channels)), stats)

    def __call__(self, image: "np.ndarray") -> "np.ndarray":
        """Return the image (H, W, C) as (H, W, 3) uint8 RGB. Values that are not finite become black."""
        import numpy as np  # imported here because the command line is read without it

        if self.channels == (0, 1, 2) and image.shape[2] == 3 and image.dtype == np.uint8:
            return image
        shown = image[..., list(self.channels)]
        if image.dtype == np.uint8:
            return shown
        assert self.stats is not None
        mean, std = (np.array(values, np.float32)[list(self.channels)] for values in (self.stats.mean, self.stats.std))
        levels = (shown - (mean - 2 * std)) * (255 / (4 * std))
        return np.nan_to_num(levels.clip(0, 255).round(), nan=0).astype(np.uint8)


def read_stats(value: str) -> ImageStats | None:
    """Return the statistics of --image_stats: a FILE of tools.statistics, or its content as text; None for "".

    Raises UserError if the file cannot be read or does not hold statistics.
    """
    if not value:
        return None
    is_text = value.lstrip().startswith("{")
    where = "--image_stats" if is_text else f"--image_stats {value}"
    try:
        content = json.loads(value if is_text else Path(value).read_text(encoding="utf-8"))
        stats = ImageStats(content["dtype"], *(tuple(map(float, content[name])) for name in ("mean", "std")))
    except OSError as error:
        raise UserError(f"{where}: {error.strerror}: write it with python -m tools.statistics") from None
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{where}: not a file that python -m tools.statistics wrote") from None
    if stats.dtype not in DTYPES:
        raise UserError(f"{where}: dtype {stats.dtype!r} is not one of {', '.join(DTYPES)}")
    if not 1 <= len(stats.mean) == len(stats.std) <= MAX_CHANNELS:
        raise UserError(f"{where}: mean and std need one number for each of 1 to {MAX_CHANNELS} channels")
    if not all(map(math.isfinite, stats.mean + stats.std)) or min(stats.std) <= 0:
        raise UserError(f"{where}: mean and std must be finite numbers, and std above 0")
    return stats


def as_text(value: str) -> str:
    """Return --image_stats as text that no longer depends on a file, to keep in a checkpoint; "" for ""."""
    stats = read_stats(value)
    return stats.text if stats else ""
