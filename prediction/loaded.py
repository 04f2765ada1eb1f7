"""The model that trained.load() returns: it predicts paths, arrays and PIL images."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias, overload

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

import program
from data.classes import Classes
from data.images import read_image
from data.loader import batched
from errors import UserError
from evaluation.predictor import Predictor
from image_stats import RGB, ImageType

AnImage: TypeAlias = str | Path | np.ndarray | Image.Image


@dataclass(frozen=True)
class LoadedModel:
    """A model that predicts images in Python. trained.load() makes it.

    device: where it computes. classes: `names`, one for each class, and `colours`, (256, 3) uint8 RGB by class number.
    kind: channels and type of the images that it was trained on. An image is a path, an array (height, width, channels)
    of that type or, for 8-bit RGB, a PIL image. Paths and PIL images are turned as their EXIF orientation says.
    """

    predictor: Predictor
    device: torch.device
    classes: Classes
    kind: ImageType = RGB

    @overload
    def predict(self, image: AnImage) -> np.ndarray: ...
    @overload
    def predict(self, image: list[AnImage]) -> list[np.ndarray]: ...
    def predict(self, image):
        """Return the label map of an image, (height, width) uint8 class numbers; of a list of images, a list.

        Raises UserError if an image cannot be used, or memory runs out.
        """
        return self._of_each(image, self.predictor.labels)

    @overload
    def probs(self, image: AnImage) -> np.ndarray: ...
    @overload
    def probs(self, image: list[AnImage]) -> list[np.ndarray]: ...
    def probs(self, image):
        """Return the probabilities of an image, (classes, height, width) float32; of a list of images, a list.

        Raises UserError as predict() does.
        """
        return self._of_each(
            image, lambda batch: torch.cat([band.cpu() for _, band in self.predictor.probs(batch)], dim=2)
        )

    def _of_each(self, image: AnImage | list[AnImage], predict: Callable[[Tensor], Tensor]) -> Any:
        """Return what predict() makes of an image, or of each of a list; neighbours of one size share a pass."""
        results: list[np.ndarray] = []
        images = image if isinstance(image, list) else [image]
        with program.advice(str(self.device), "use load(..., window=465), or amp='bf16'"):
            for _, equal in groupby((_pixels(item, self.kind) for item in images), key=np.shape):
                for batch in batched(equal, self.predictor.images_at_once):
                    results.extend(predict(torch.from_numpy(np.stack(batch)).to(self.device)).cpu().numpy())
        return results if isinstance(image, list) else results[0]


def _pixels(image: AnImage, kind: ImageType) -> np.ndarray:
    """Return the pixels of an image, (H, W, C) of this kind. Raises UserError if it is none."""
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
