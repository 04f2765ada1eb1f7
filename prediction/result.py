"""An image of your own Python code, and what LoadedModel.predict() returns for it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageOps

from data.classes import Classes
from data.images import label_png, read_image
from evaluation.legend import with_legend
from evaluation.pictures import overlay
from support.errors import UserError
from support.files import write_atomic
from support.image_stats import RGB, Display, ImageType

AnImage: TypeAlias = str | Path | np.ndarray | Image.Image


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The prediction of one image. numpy.asarray(result) is its mask.

    mask: (H, W) uint8 class numbers, of the image's own size. classes: a name for each class. colours: (256, 3) uint8
    RGB by class number. image: what predict() got, not a copy. display, background: how plot() shows the image, and the
    class that it leaves clear, or None. probabilities: (classes, H, W) float32, or None; `probs` returns them.
    """

    mask: np.ndarray
    classes: list[str]
    colours: np.ndarray
    image: AnImage
    display: Display
    background: int | None
    probabilities: np.ndarray | None = None

    @property
    def probs(self) -> np.ndarray:
        """Return the probabilities, (classes, H, W) float32. Raises UserError without predict(..., probs=True)."""
        if self.probabilities is None:
            raise UserError("probs: not kept, as they take 4 bytes x classes x pixels: use predict(image, probs=True)")
        return self.probabilities

    def plot(self, *, legend: bool = True) -> np.ndarray:
        """Return the image blended with the colours of its classes, above a legend of them: (H + more, W, 3) uint8 RGB.

        A path is read again. legend: False leaves it out; the picture then has the image's size.
        """
        image = self.display(pixels_of(self.image, self.display.kind))
        picture = overlay(image, self.mask, self.colours, self.background)
        classes = Classes(self.classes, self.colours)
        return with_legend(picture, self.mask, classes, self.background) if legend else picture

    def save(self, path: str | Path) -> None:
        """Write the mask as a palette PNG, whose pixels are class numbers. Raises UserError if that fails."""
        if Path(path).suffix.lower() != ".png":
            raise UserError(f"{path}: a mask is saved as PNG: name a .png file")
        write_atomic(Path(path), label_png(self.mask, self.colours))

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        mask = self.mask if dtype is None else self.mask.astype(dtype, copy=False)
        return mask.copy() if copy else mask

    def __repr__(self) -> str:
        height, width = self.mask.shape
        return f"<Result: {height}x{width}, {len(self.classes)} classes>"


def pixels_of(image: AnImage, kind: ImageType) -> np.ndarray:
    """Return an image as an array (H, W, C) of this kind. Raises UserError for anything else."""
    if isinstance(image, str | Path):
        return read_image(Path(image), kind)
    if isinstance(image, Image.Image) and kind == RGB:
        if image.mode.startswith(("I", "F")):
            raise UserError(f"a PIL image of mode {image.mode}: more than 8 bits a channel: convert it to 8 bits")
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    if not isinstance(image, np.ndarray):
        raise UserError(f"a {type(image).__name__} is no image: give a path, an array, a PIL image, or a list of them")
    if image.dtype != kind.dtype or image.ndim != 3 or image.shape[2] != kind.channels or not image.size:
        colours = ", RGB" if kind == RGB else ""
        raise UserError(
            f"an array of {image.dtype} {image.shape}: give (height, width, {kind.channels}) {kind.dtype}{colours}"
        )
    return image
