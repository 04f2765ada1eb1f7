"""Write ONNX files and run them with ONNX Runtime."""

import importlib
import json
import warnings
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor
from torch.export import ExportedProgram

from exporting.graph import ExportedModel
from support import shell
from support.errors import UserError


def import_extra(name: str) -> ModuleType:
    """Import and return a package that only ONNX needs. Raises UserError if the package is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"ONNX needs packages that are missing ({error}): {shell.install_command('export')}") from None


def check_onnx(opset: int) -> None:
    """Raise UserError if ONNX packages are missing, or if `opset` is newer than the installed onnx knows."""
    onnx, _, _ = (import_extra(name) for name in ("onnx", "onnxscript", "onnxruntime"))
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise UserError(f"--opset {opset}: onnx {onnx.__version__} knows 18 to {newest}")


def write_onnx(program: ExportedProgram, path: Path, metadata: dict[str, str], opset: int) -> str:
    """Write an exported program as an ONNX file, weights included. Returns opset and IR version as text.

    metadata: {key: JSON text} to store in the file. Raises UserError if torch cannot write this opset.
    """
    onnx = import_extra("onnx")
    outputs = json.loads(metadata["outputs"])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg|torch")  # from torch 2.11 itself
        proto = torch.onnx.export(
            program, input_names=["images"], output_names=outputs, opset_version=opset, dynamo=True, verbose=False
        ).model_proto  # type: ignore[union-attr]
    _clean(proto)
    onnx.helper.set_model_props(proto, metadata)
    path.write_bytes(proto.SerializeToString())
    onnx.checker.check_model(path, full_check=True)
    written = {item.domain: item.version for item in proto.opset_import}[""]
    if written != opset:
        raise UserError(f"--opset {opset}: the model could only be written in opset {written}")
    return f"opset {written}, IR version {proto.ir_version}"


def _clean(proto) -> None:
    """Name the dynamic sizes of an onnx.ModelProto, and remove this machine's source paths from it, in place."""
    names = {}
    for dim, name in zip(proto.graph.input[0].type.tensor_type.shape.dim, ("batch", "height", "width"), strict=False):
        names[dim.dim_param] = name
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = names[dim.dim_param]
        del value.metadata_props[:]
    for node in proto.graph.node:
        del node.metadata_props[:]
    del proto.graph.value_info[:]  # sizes between nodes, under their old names; ONNX Runtime infers them


class OnnxModel(ExportedModel):
    """A model in an ONNX file. It runs on the CPU, or on a CUDA device if onnxruntime-gpu is installed.

    Creating an instance raises UserError if onnxruntime is missing or cannot load the file.
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
            raise UserError(f"{path}: ONNX Runtime {onnxruntime.__version__} cannot load it ({reason})") from None
        super().__init__(path, self.session.get_modelmeta().custom_metadata_map, images_at_once)

    def run(self, images: Tensor) -> tuple[Tensor, ...]:
        outputs = self.session.run(None, {"images": images.cpu().numpy()})
        return tuple(torch.from_numpy(output).to(images.device) for output in outputs)
