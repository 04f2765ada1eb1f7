"""Models in files that export.py wrote, and what such a file says of itself."""

import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.export.passes import move_to_device_pass

from errors import UserError

FORMAT = 1  # of the metadata
# Each is a JSON text in the file.
KEYS = (
    "segtrain_format", "outputs", "class_names", "colours", "num_classes", "checkpoint", "weights", "step", "model_type", "layers",
)  # fmt: skip
MIN_TORCH_SIZE = 7  # pixels of a side that torch.export takes: where a feature map is 1x1 it would need another graph


class ExportedModel(ABC):
    """What is common to models in files; see evaluation.predictor.Predictor, which has the same methods.

    outputs: "labels" and those of "probs" and "logits" that it gives. class_names: one a class. colours: RGB by label value, (256, 3) uint8. min_size: pixels of an image's shorter side. images_at_once: to give in one call.
    """

    min_size = 1
    images_at_once = 4

    def __init__(self, path: Path, metadata: dict[str, str]):
        """metadata: of KEYS, as the file has it. Raises UserError where the file is not one of ours."""
        self.path = path
        try:
            self.metadata = {key: json.loads(metadata[key]) for key in KEYS}
        except (KeyError, ValueError):
            raise UserError(f"{path}: not a file that export.py wrote: it does not say which classes it has") from None
        if self.metadata["segtrain_format"] > FORMAT:
            raise UserError(f"{path}: of a later version of segtrain (format {self.metadata['segtrain_format']})")
        self.outputs: list[str] = self.metadata["outputs"]
        self.num_classes: int = self.metadata["num_classes"]
        self.class_names: list[str] = self.metadata["class_names"]
        self.colours = np.array([list(bytes.fromhex(colour[1:])) for colour in self.metadata["colours"]], np.uint8)

    @abstractmethod
    def run(self, images: Tensor) -> tuple[Tensor, ...]:
        """All outputs of the graph, on the images' device, in the order of `outputs`."""

    def labels(self, images: Tensor) -> Tensor:
        """Label maps (B, H, W) uint8; images (B, H, W, 3) uint8 RGB."""
        return self.run(images)[0]

    def probs(self, images: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """One band of all rows: (rows, probabilities (B, C, H, W) float32); images as in labels()."""
        if "probs" not in self.outputs:
            raise UserError(f"{self.path}: it gives no probabilities; export it again with --probs")
        yield slice(0, images.shape[1]), self.run(images)[self.outputs.index("probs")]


class TorchModel(ExportedModel):
    """A model that torch.export.save wrote."""

    min_size = MIN_TORCH_SIZE

    def __init__(self, path: Path, device: torch.device):
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        metadata = dict.fromkeys(KEYS, "")
        try:
            with warnings.catch_warnings():
                # torch 2.11 says of every file that it must not write to its weights.
                warnings.filterwarnings("ignore", "The given buffer is not writable")
                program = torch.export.load(path, extra_files=metadata)
        except Exception as error:  # of many classes: zip, JSON, pickle, and of torch
            raise UserError(f"{path}: not a whole file of torch.export ({type(error).__name__})") from None
        super().__init__(path, metadata)
        if device.type != "cpu":
            program = move_to_device_pass(program, device)
        self.module = program.module()

    @torch.inference_mode()
    def run(self, images: Tensor) -> tuple[Tensor, ...]:
        return self.module(images)
