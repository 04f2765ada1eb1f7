"""Exported models: what all formats have in common, and the metadata in their files."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch import Tensor

from errors import UserError

FORMAT = 1  # of the metadata
# Keys of the metadata, whose values are JSON.
KEYS = ["segtrain_format", "outputs", "class_names", "colours", "num_classes"]
KEYS += ["checkpoint", "weights", "step", "model_type", "layers"]


class ExportedModel(ABC):
    """A model in a file; an evaluation.predictor.ImagePredictor.

    outputs: "labels", and "probs" and "logits" if the file has them. class_names: one per class. colours: RGB by
    class, (256, 3) uint8. min_size: smallest side of an image, in pixels. images_at_once: number of images per call.
    """

    min_size = 1

    def __init__(self, path: Path, metadata: dict[str, str], images_at_once: int = 4):
        """metadata: as in the file. Raises UserError if export.py did not write the file."""
        self.path, self.images_at_once = path, images_at_once
        try:
            self.metadata = {key: json.loads(metadata[key]) for key in KEYS}
        except (KeyError, ValueError):
            raise UserError(f"{path}: not a file that export.py wrote: its metadata is missing") from None
        if self.metadata["segtrain_format"] > FORMAT:
            raise UserError(
                f"{path}: written by a later version of segtrain (format {self.metadata['segtrain_format']})"
            )
        self.outputs: list[str] = self.metadata["outputs"]
        self.num_classes: int = self.metadata["num_classes"]
        self.class_names: list[str] = self.metadata["class_names"]
        self.colours = np.array([list(bytes.fromhex(colour[1:])) for colour in self.metadata["colours"]], np.uint8)

    @abstractmethod
    def run(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return all outputs, in the order of `outputs`, on the images' device."""

    def labels(self, images: Tensor) -> Tensor:
        """Predict label maps (B, H, W) uint8 from images (B, H, W, 3) uint8 RGB."""
        return self.run(images)[0]

    def probs(self, images: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield one band with all rows: (rows, probabilities (B, C, H, W) float32). images: as in labels()."""
        if "probs" not in self.outputs:
            raise UserError(f"{self.path}: has no probabilities; export it again with --probs")
        yield slice(0, images.shape[1]), self.run(images)[self.outputs.index("probs")]
