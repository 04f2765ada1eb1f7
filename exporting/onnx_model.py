"""Models in ONNX files that export.py wrote, run by ONNX Runtime."""

import importlib
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

import shell
from errors import UserError
from exporting.exported import ExportedModel


def import_extra(name: str) -> ModuleType:
    """A package that only ONNX needs. Raises UserError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"ONNX needs packages that are missing ({error}): {shell.install_command('export')}") from None


class OnnxModel(ExportedModel):
    """A model in an ONNX file, on the CPU, or where onnxruntime-gpu is installed on a CUDA device."""

    def __init__(self, path: Path, device: torch.device):
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
        except Exception as error:  # its classes have no base of their own
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{path}: ONNX Runtime {onnxruntime.__version__} cannot load it ({reason})") from None
        super().__init__(path, self.session.get_modelmeta().custom_metadata_map)

    def run(self, images: Tensor) -> tuple[Tensor, ...]:
        outputs = self.session.run(None, {"images": images.cpu().numpy()})
        return tuple(torch.from_numpy(output).to(images.device) for output in outputs)
