"""The model that trained.load() returns, which predicts paths, arrays and PIL images, and its results."""

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TypeAlias, overload

import numpy as np
import torch
from PIL import Image, ImageOps

from data.classes import Classes
from data.images import label_png, several_frames
from data.images.deep import MODES
from data.images.reader import ImageReader
from data.loader import batched
from data.overlays import overlay, with_legend
from inference.predictor import Predictor, predict_batch
from support import program
from support.errors import UserError, in_one_line
from support.files import write_atomic
from support.log import log

AnImage: TypeAlias = str | Path | np.ndarray | Image.Image


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The prediction of one image.

    mask: (H, W) uint8 class numbers, of the image's own size. classes: a name for each class. colours: (256, 3) uint8
    RGB by class number. image: what predict() got, not a copy. background: class that plot() leaves clear, or None.
    probs: (classes, H, W) float32; None without predict(..., probs=True). reader: read the image.
    """

    mask: np.ndarray
    classes: list[str]
    colours: np.ndarray
    image: AnImage
    background: int | None
    probs: np.ndarray | None = None
    reader: ImageReader = ImageReader()  # noqa: RUF009

    def plot(self, *, legend: bool = True) -> np.ndarray:
        """Return the image blended with the colours of its classes, above a legend of them: (H + more, W, 3) uint8 RGB.

        A path is read again. legend: False leaves it out; the picture then has the image's size.
        """
        pixels = pixels_of(self.image, self.reader)
        if pixels.shape[:2] != self.mask.shape:
            size = "x".join(map(str, pixels.shape[1::-1]))
            raise UserError(f"the image has changed since it was predicted: it is now {size}: predict it again")
        picture = overlay(pixels, self.mask, self.colours, self.background)
        classes = Classes(self.classes, self.colours)
        return with_legend(picture, self.mask, classes, self.background) if legend else picture

    def save(self, path: str | Path) -> None:
        """Write the mask as a palette PNG, whose pixels are class numbers. Raises UserError if that fails."""
        if not isinstance(path, str | Path) or Path(path).suffix.lower() != ".png" or "\0" in str(path):
            raise UserError(f"{path}: a mask is saved as PNG: name the path of a .png file")
        write_atomic(Path(path), label_png(self.mask, self.colours))


def pixels_of(image: AnImage, reader: ImageReader) -> np.ndarray:
    """Return an image as an array (H, W, 3) uint8 RGB. Raises UserError for anything else."""
    if isinstance(image, str | Path):
        if line := several_frames({Path(image): reader.header(Path(image)).frames}):
            log.warning(line)
        return reader.read(Path(image))
    if isinstance(image, Image.Image):
        mode = image.mode
        is_deep = mode.startswith(("I", "F"))
        if is_deep and reader.is_plain:
            raise UserError(f"a PIL image of mode {mode}: more than 8 bits a channel: convert it to 8 bits")
        keeps_mode = not reader.is_plain and (is_deep or mode in MODES)
        try:
            turned = ImageOps.exif_transpose(image)
            image = np.asarray(turned if keeps_mode else turned.convert("RGB"))
        except (ValueError, OSError, AttributeError) as error:  # a closed image, a mode without RGB, a damaged file
            raise UserError(f"a PIL image of mode {mode}: cannot be read as RGB ({in_one_line(error)})") from None
    if not isinstance(image, np.ndarray):
        raise UserError(f"a {type(image).__name__} is no image: give a path, an array, a PIL image, or a list of them")
    if not reader.is_plain and image.ndim in (2, 3) and image.size:
        values = image.reshape(*image.shape[:2], -1)
        return reader.reduce(values, f"an array of {image.dtype} {image.shape}")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise UserError(f"an array of {image.dtype} {image.shape}: give (height, width, 3) uint8, RGB")
    return image


@dataclass(frozen=True, eq=False, repr=False)
class LoadedModel:
    """A model that predicts images in Python. trained.load() makes it.

    device: where it computes. classes: a name for each class. colours: (256, 3) uint8 RGB by class number.
    background: class that overlays leave clear, or None. An image is a path, an array (height, width, 3) uint8 RGB, or
    a PIL image. Paths and PIL images are turned as their EXIF orientation says. If the model was trained with --bands
    or --value_range, an array has the bands and values of a file: (height, width) or (height, width, bands).
    """

    predictor: Predictor
    device: torch.device
    classes: list[str]
    colours: np.ndarray
    background: int | None

    @overload
    def predict(self, image: AnImage, *, probs: bool = False) -> Result: ...
    @overload
    def predict(self, image: list[AnImage], *, probs: bool = False) -> list[Result]: ...
    def predict(self, image: AnImage | list[AnImage], *, probs: bool = False) -> Result | list[Result]:
        """Return the Result of an image; of a list of images, a list. Neighbours of one size share a forward pass.

        probs: whether results have probabilities, 4 bytes x classes x pixels each. Raises UserError if an image cannot
        be used, or memory runs out.
        """
        images = image if isinstance(image, list) else [image]
        reader = self.predictor.reader
        pairs = ((item, pixels_of(item, reader)) for item in images)
        results: list[Result] = []
        with program.explain_errors(str(self.device), "use load(..., window=465), or amp='bf16'"):
            for _, equal in groupby(pairs, key=lambda pair: pair[1].shape):
                for batch in batched(equal, self.predictor.images_at_once):
                    pixels = torch.from_numpy(np.stack([values for _, values in batch])).to(self.device)
                    predicted = predict_batch(self.predictor, pixels, torch.float32 if probs else None)
                    results += [
                        Result(mask, self.classes, self.colours, item, self.background, values, reader)
                        for (item, _), mask, values in zip(batch, *predicted, strict=True)
                    ]
        return results if isinstance(image, list) else results[0]
