"""Trace models with torch.export, and write and load its files."""

import io
import json
import warnings
from pathlib import Path

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.export.passes import move_to_device_pass

from exporting.graph import KEYS, LONG_SIDE, STATS, ExportedModel, WholeImage
from exporting.graph import MIN_SIZE as MIN_SIZE_KEY
from support.errors import UserError

MIN_SIZE = 7  # pixels; a smaller side gives a 1x1 feature map, which torch.export specialises on


def trace(graph: WholeImage) -> ExportedProgram:
    """Return the module traced by torch.export, for any number of images with sides of MIN_SIZE pixels or more.

    For some models, graph.min_size is a larger limit.
    """
    # Sizes above 1 that are not multiples of each other: torch.export takes none for a constant or for another.
    example = torch.zeros(2, 65, 97, len(graph.model.mean), dtype=graph.model.image_dtype)
    least = max(MIN_SIZE, graph.min_size)
    sizes = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC(min=least), 2: Dim.DYNAMIC(min=least)}
    with torch.no_grad():
        # What torch.export cannot prove about sizes, such as which features are larger, is checked when the file runs.
        return torch.export.export(
            graph, (example,), dynamic_shapes={"images": sizes}, prefer_deferred_runtime_asserts_over_guards=True
        )


def write_torch(program: ExportedProgram, path: Path, metadata: dict[str, str]) -> str:
    """Write an exported program as a .pt2 file. Returns torch's version and the smallest image size as text.

    metadata: {key: JSON text} to store in the file.
    """
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files=metadata)
    path.write_bytes(buffer.getvalue())
    least = max(MIN_SIZE, json.loads(metadata[MIN_SIZE_KEY]))
    return f"torch {torch.__version__}, images of at least {least}x{least} pixels"


class TorchModel(ExportedModel):
    """A model in a .pt2 file of torch.export. Creating an instance raises UserError if the file cannot be loaded."""

    min_size = MIN_SIZE

    def __init__(self, path: Path, device: torch.device):
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        metadata = dict.fromkeys((*KEYS, LONG_SIDE, MIN_SIZE_KEY, STATS), "")
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The given buffer is not writable")  # torch 2.11, for every file
                program = torch.export.load(path, extra_files=metadata)
        except Exception as error:  # from zip, JSON, pickle or torch
            raise UserError(f"{path}: not a complete file of torch.export ({type(error).__name__})") from None
        super().__init__(path, metadata)
        if device.type != "cpu":
            program = move_to_device_pass(program, device)
        self.module = program.module()

    @torch.inference_mode()
    def run(self, images: Tensor) -> tuple[Tensor, ...]:
        return self.module(images)
