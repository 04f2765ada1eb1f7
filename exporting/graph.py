"""The module to export, from images to label maps, and the base class of exported models."""

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.classes import Classes
from data.images.resize import resize, scaled_size
from models.backbone import ResNetBackbone
from models.segmenter import Segmenter
from support.errors import UserError
from support.image_stats import read_stats

FORMAT = 1  # of the metadata
# Keys of the metadata, whose values are JSON.
KEYS = ["segtrain_format", "outputs", "class_names", "colours", "num_classes"]
KEYS += ["checkpoint", "weights", "step", "model_type", "layers"]
STATS = "image_stats"  # a key that files of 8-bit RGB models lack: ImageStats.text
MIN_SIZE, LONG_SIDE = "min_size", "long_side"  # keys that files of earlier versions do not have


class WholeImage(nn.Module):
    """Module that predicts label maps at the images' size; a float32 CPU copy of a Segmenter without LoRM.

    The module computes the Segmenter's function for any image size. Its max pool is replaced by one that torch.export
    can trace. extras: any of "probs" and "logits", to be returned too. min_size: what min_size() returns.
    """

    def __init__(self, model: Segmenter, extras: tuple[str, ...] = ()):
        super().__init__()
        self.model = copy.deepcopy(model).cpu().float().to(memory_format=torch.contiguous_format).eval()
        self.model.lorm = None
        self.min_size = min_size(self.model)
        if _has_ceil_pool(self.model):
            self.model.backbone.maxpool = _CeilMaxPool()
        self.extras = extras

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return (labels (B, H, W) uint8, each of `extras` (B, C, H, W) float32) of images (B, H, W, 3) uint8 RGB."""
        logits = whole_image_logits(self.model, images)
        labels = logits.argmax(1).to(torch.uint8)
        return (labels, *(logits.softmax(1) if extra == "probs" else logits for extra in self.extras))


def min_size(model: Segmenter) -> int:
    """Return the smallest side, in pixels, of images for an exported model: twice the stride, or 1 with _CeilMaxPool.

    Smaller images have 1x1 features, which torch.export and ONNX would treat as a special case.
    """
    return 1 if _has_ceil_pool(model) else 2 * model.backbone.strides[-1]


def _has_ceil_pool(model: Segmenter) -> bool:
    return isinstance(model.backbone, ResNetBackbone) and model.backbone.maxpool.ceil_mode


def whole_image_logits(model: nn.Module, images: Tensor) -> Tensor:
    """Return logits (B, C, H, W), upsampled to the size of the images (B, H, W, C)."""
    return F.interpolate(model(images)["logits"], size=images.shape[1:3], mode="bilinear", align_corners=True)


class _CeilMaxPool(nn.MaxPool2d):
    """nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True) for values >= 0, in a form that torch.export can trace.

    With ceil_mode, torch.export wants to know which sizes are even (torch 2.11) or cannot prove that no window is
    entirely outside (2.15). Zero padding to an even size changes no maximum and treats all sizes alike.
    """

    def __init__(self) -> None:
        super().__init__(kernel_size=3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        below, right = (2 * (size // 2 + 1) - size for size in x.shape[2:])
        return super().forward(F.pad(x, (0, right, 0, below)))


class ExportedModel(ABC):
    """A model in a file that export.py wrote; has the methods of evaluation.predictor.ImagePredictor.

    outputs: names of the outputs: "labels", and "probs" and "logits" if the file has them. classes: names and
    colours. stats: of the images; None: 8-bit RGB. long_side: the --long_side of the
    training: labels() and probs() resize images to it; 0: they do not. min_size: smallest side of an image, in pixels.
    images_at_once: number of images per call.
    """

    min_size = 1

    def __init__(self, path: Path, metadata: dict[str, str], images_at_once: int = 4):
        """Read the metadata of the file at `path`. Raises UserError if export.py, or a later version, did not write it.

        metadata: {key: JSON text}, as stored in the file. images_at_once: number of images per call.
        """
        self.path, self.images_at_once = path, images_at_once
        try:
            self.metadata = {key: json.loads(metadata[key]) for key in KEYS}
            self.long_side: int = json.loads(metadata.get(LONG_SIDE) or "0")
        except (KeyError, ValueError):
            raise UserError(f"{path}: not a file that export.py wrote: its metadata is missing") from None
        self.stats = read_stats(metadata.get(STATS, ""))
        self.min_size = max(self.min_size, json.loads(metadata.get(MIN_SIZE) or "1"))
        if self.metadata["segtrain_format"] > FORMAT:
            raise UserError(
                f"{path}: written by a later version of segtrain (format {self.metadata['segtrain_format']})"
            )
        self.outputs: list[str] = self.metadata["outputs"]
        self.num_classes: int = self.metadata["num_classes"]
        colours = np.array([list(bytes.fromhex(colour[1:])) for colour in self.metadata["colours"]], np.uint8)
        self.classes = Classes(self.metadata["class_names"], colours)

    @abstractmethod
    def run(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return all outputs of images (B, H, W, C), in the order of `outputs`, on the images' device."""

    def labels(self, images: Tensor) -> Tensor:
        """Return label maps (B, H, W) uint8 of images (B, H, W, C), as the model takes."""
        labels = self.run(self._resized(images))[0]
        if labels.shape[1:] == images.shape[1:3]:
            return labels
        return F.interpolate(labels.unsqueeze(1), size=images.shape[1:3], mode="nearest-exact").squeeze(1)

    def probs(self, images: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield one band with all rows: (slice of rows, probabilities (B, C, H, W) float32).

        images: (B, H, W, C), as the model takes. Raises UserError if the file has no probabilities.
        """
        if "probs" not in self.outputs:
            raise UserError(f"{self.path}: has no probabilities; export it again with --probs")
        probs = self.run(self._resized(images))[self.outputs.index("probs")]
        if probs.shape[2:] != images.shape[1:3]:
            probs = F.interpolate(probs, size=images.shape[1:3], mode="bilinear", align_corners=False)
        yield slice(0, images.shape[1]), probs

    def _resized(self, images: Tensor) -> Tensor:
        """Return images (B, H, W, C) at the size that the model was trained on, in their own type."""
        own = images.shape[1], images.shape[2]
        size = scaled_size(own, self.long_side or max(own))
        if size == own:
            return images
        resized = resize(images, size)
        return resized if images.dtype.is_floating_point else resized.round().to(images.dtype)
