"""The model that trained.load() returns: it predicts paths, arrays and PIL images."""

from dataclasses import dataclass
from itertools import groupby
from typing import overload

import numpy as np
import torch

from data.loader import batched
from evaluation.predictor import Predictor, predict_batch
from prediction.result import AnImage, Result, pixels_of
from support import program
from support.image_stats import Display


@dataclass(frozen=True, eq=False, repr=False)
class LoadedModel:
    """A model that predicts images in Python. trained.load() makes it.

    device: where it computes. classes: a name for each class. colours: (256, 3) uint8 RGB by class number. display: of
    images; it also has the channels and type of the images that the model was trained on. background: class that
    overlays leave clear, or None. An image is a path, an array (height, width, channels) of that type or, for 8-bit
    RGB, a PIL image. Paths and PIL images are turned as their EXIF orientation says.
    """

    predictor: Predictor
    device: torch.device
    classes: list[str]
    colours: np.ndarray
    display: Display
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
        pairs = ((item, pixels_of(item, self.display.kind)) for item in images)
        results: list[Result] = []
        with program.advice(str(self.device), "use load(..., window=465), or amp='bf16'"):
            for _, equal in groupby(pairs, key=lambda pair: pair[1].shape):
                for batch in batched(equal, self.predictor.images_at_once):
                    pixels = torch.from_numpy(np.stack([values for _, values in batch])).to(self.device)
                    predicted = predict_batch(self.predictor, pixels, torch.float32 if probs else None)
                    results += [
                        Result(mask, self.classes, self.colours, item, self.display, self.background, values)
                        for (item, _), mask, values in zip(batch, *predicted, strict=True)
                    ]
        return results if isinstance(image, list) else results[0]

    def __repr__(self) -> str:
        names = ", ".join(self.classes[:5]) + ", ..." * (len(self.classes) > 5)
        return f"<LoadedModel: {len(self.classes)} classes ({names}), images of {self.display.kind}, on {self.device}>"
