"""Write a model as an ONNX file."""

import json
import warnings
from pathlib import Path

import torch
from torch.export import ExportedProgram

import models
from data.overlays import to_hex
from inference.onnx_model import FORMAT, import_extra
from inference.trained import TrainedModel
from support.errors import UserError


def check_onnx(opset: int) -> None:
    """Raise UserError if ONNX packages are missing, or if `opset` is newer than the installed onnx knows."""
    onnx, _, _ = (import_extra(name) for name in ("onnx", "onnxscript", "onnxruntime"))
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise UserError(f"--opset {opset}: onnx {onnx.__version__} knows 18 to {newest}")


def metadata_of(trained: TrainedModel, weights: str, outputs: list[str], min_size: int) -> dict[str, str]:
    """Return the metadata of a new file, {key: JSON text}. weights: --weights; min_size: smallest side of an image."""
    cfg = trained.cfg
    classes = trained.classes
    backbone = None if cfg.network == "own" else cfg.backbone  # --backbone does not describe the user's own network
    values = {
        "segtrain_format": FORMAT,
        "outputs": outputs,
        "class_names": classes.names,
        "colours": to_hex(classes.colours),
        "num_classes": cfg.numclasses,
        "checkpoint": str(trained.path),
        "weights": trained.resolve_weights(weights),
        "step": trained.file.step,
        "model_type": cfg.model_type,
        "backbone": backbone,
        "layers": cfg.layers if backbone == models.RESNET else None,
        "background": cfg.background,
        "long_side": cfg.long_side,
        "reading": cfg.reading,
        "min_size": min_size,
    }
    return {key: json.dumps(value) for key, value in values.items()}


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
