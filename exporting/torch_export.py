"""Write and run the files of torch.export."""

import io
import warnings
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass


def write_torch(program: ExportedProgram, path: Path, metadata: dict[str, str]) -> None:
    """Write an exported program as a .pt2 file. metadata: {key: JSON text} to store in the file."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files=metadata)
    path.write_bytes(buffer.getvalue())


class TorchModel:
    """A model in a .pt2 file of torch.export, on a device."""

    def __init__(self, path: Path, device: torch.device):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")  # torch 2.11, for every file
            program = torch.export.load(path)
        self.module = (program if device.type == "cpu" else move_to_device_pass(program, device)).module()

    @torch.inference_mode()
    def run(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return all outputs of images (B, H, W, 3) uint8 RGB."""
        return self.module(images)
