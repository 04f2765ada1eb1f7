"""Run the ONNX files that export.py writes, with ONNX Runtime."""

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.classes import Classes
from data.images.reader import ImageReader
from data.images.resize import check_pixels, resize, scaled_size
from inference.predictor import Step, no_step
from support import shell
from support.errors import UserError

FORMAT = 1  # of the metadata
# Keys of the metadata, whose values are JSON.
KEYS = ["segtrain_format", "outputs", "class_names", "colours", "num_classes"]
KEYS += ["checkpoint", "weights", "step", "model_type", "layers"]
ADDED: dict[str, Any] = {"long_side": 0, "reading": {}, "background": "0"}  # what files of earlier versions do not have

import_extra = partial(shell.import_extra, extra="export", feature="ONNX")


class OnnxModel:
    """A model in an ONNX file that export.py wrote; has the methods of inference.predictor.ImagePredictor.

    It runs on the CPU, or on a CUDA device if onnxruntime-gpu is installed. outputs: names of the outputs: "labels",
    and "probs" and "logits" if the file has them. classes: names and colours.
    background: the --background of the training, "0" or "none".
    long_side: the --long_side of the training: labels() and probs() resize images to it; 0: they do not.
    images_at_once: number of images per call. reader: reads image files as in training.

    Creating an instance raises UserError if onnxruntime is missing or cannot load the file, or if export.py, or a later
    version of it, did not write the file.
    """

    def __init__(self, path: Path, device: torch.device, images_at_once: int = 4):
        onnxruntime = import_extra("onnxruntime")
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        providers: list = ["CPUExecutionProvider"]
        if device.type == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
            providers.insert(0, ("CUDAExecutionProvider", {"device_id": device.index or 0}))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            self.session = onnxruntime.InferenceSession(path, options, providers=providers)
        except Exception as error:  # its exceptions have no common class
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{path}: ONNX Runtime {onnxruntime.__version__} cannot load it ({reason}): if it is "
                "incomplete, export it again"
            ) from None
        self.path, self.images_at_once = path, images_at_once
        texts = self.session.get_modelmeta().custom_metadata_map
        added = ADDED.keys() & texts
        try:
            self.metadata = ADDED | {key: json.loads(texts[key]) for key in (*KEYS, *added)}
        except (KeyError, ValueError):
            raise UserError(
                f"{path}: not a file that export.py wrote: its metadata is missing: export the checkpoint"
            ) from None
        if self.metadata["segtrain_format"] > FORMAT:
            raise UserError(
                f"{path}: written by a later version of segtrain (format {self.metadata['segtrain_format']}): "
                "update segtrain, or export the checkpoint again"
            )
        self.long_side: int = self.metadata["long_side"]
        self.background: str = self.metadata["background"]
        self.reader = ImageReader(**{name: tuple(values) for name, values in self.metadata["reading"].items()})
        self.outputs: list[str] = self.metadata["outputs"]
        self.num_classes: int = self.metadata["num_classes"]
        colours = np.array([list(bytes.fromhex(colour[1:])) for colour in self.metadata["colours"]], np.uint8)
        self.classes = Classes(self.metadata["class_names"], colours)

    def run(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return all outputs of images (B, H, W, 3) uint8 RGB, in the order of `outputs`, on the images' device."""
        outputs = self.session.run(None, {"images": images.cpu().numpy()})
        return tuple(torch.from_numpy(output).to(images.device) for output in outputs)

    def num_windows(self, size: tuple[int, int]) -> int:
        return 1

    def labels(self, images: Tensor, step: Step = no_step) -> Tensor:
        """Return label maps (B, H, W) uint8 of images (B, H, W, 3) uint8 RGB. step: see inference.predictor.

        If the model gets images of another size, its scores are resized to theirs, or its labels in a file of labels
        alone, which makes coarser borders.
        """
        outputs = dict(zip(self.outputs, self.run(self._resized(images)), strict=True))
        step(len(images))
        labels, size = outputs["labels"], images.shape[1:3]
        scores = outputs.get("probs", outputs.get("logits"))  # as with probs(), if the file has probabilities
        if labels.shape[1:] == size:
            return labels
        if scores is None:
            return F.interpolate(labels.unsqueeze(1), size=size, mode="nearest-exact").squeeze(1)
        return F.interpolate(scores, size=size, mode="bilinear", align_corners=False).argmax(1).to(torch.uint8)

    def probs(self, images: Tensor, step: Step = no_step) -> Iterator[tuple[slice, Tensor]]:
        """Yield one band with all rows: (slice of rows, probabilities (B, C, H, W) float32).

        images: (B, H, W, 3) uint8 RGB. Raises UserError if the file has no probabilities.
        """
        if "probs" not in self.outputs:
            raise UserError(f"{self.path}: has no probabilities; export it again with --probs")
        probs = self.run(self._resized(images))[self.outputs.index("probs")]
        step(len(images))
        if probs.shape[2:] != images.shape[1:3]:
            probs = F.interpolate(probs, size=images.shape[1:3], mode="bilinear", align_corners=False)
        yield slice(0, images.shape[1]), probs

    def _resized(self, images: Tensor) -> Tensor:
        """Return images (B, H, W, 3) at the size that the model was trained on, uint8."""
        own = images.shape[1], images.shape[2]
        size = scaled_size(own, self.long_side or max(own))
        if size == own:
            return images
        check_pixels(math.prod(size), own, f"{self.path} with --long_side {self.long_side}")
        return resize(images, size).round().to(torch.uint8)
