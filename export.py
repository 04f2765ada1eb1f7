"""Write a checkpoint's model to files that run without this repository: ONNX and torch.export, checked against PyTorch.

python export.py --checkpoint log/demo/best.pt                          # best.onnx and best.pt2 beside it
python export.py --checkpoint log/demo/best.pt --format onnx --probs --images dataset/demo/JPEGImages --num_images 0
"""

import contextlib
import io
import json
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.export import Dim, ExportedProgram

import program
from config.flags import FlagReader, flag
from config.shared import CheckpointFlags, DataFlags, ModelFlags
from data.classes import read_classes
from data.images import IMAGE_SUFFIXES, read_image
from distributed.device import find_device
from distributed.group import Group
from errors import UserError
from evaluation.pictures import to_hex
from exporting import exported
from exporting.exportable import WholeImage, whole_image_logits
from exporting.exported import MIN_TORCH_SIZE, ExportedModel, TorchModel
from exporting.onnx_model import OnnxModel, import_extra
from exporting.parity import Comparison, Tally, median_ms
from files import check_writable, writing
from runs.terminal import Terminal
from trained import Checkpoint, read_given
from utils import get_eval_loader

# Of random images, to check with: a feature map of 1x1, odd, multiples of 8, one side long.
RANDOM_SIZES = ((1, 1), (7, 5), (7, 13), (64, 48), (17, 130), (75, 53))
RANDOM_BATCHES = (1, 3)


@dataclass
class ExportFlags(CheckpointFlags, ModelFlags, DataFlags):
    """Those of ModelFlags and DataFlags are the checkpoint's own where they are not given."""

    format: str = flag("both", "onnx, torch: torch.export's .pt2, or both", choices=("onnx", "torch", "both"))
    output: str = flag("", "folder to write to [the checkpoint's]")
    probs: bool = flag(False, "give probabilities (B, C, H, W) float32, too, besides label maps")
    logits: bool = flag(False, "give logits (B, C, H, W) float32, too, as they are before the softmax")
    opset: int = flag(20, "version of ONNX's operators", at_least=18)
    images: str = flag("", "FILE, or folder of images, to check with besides random ones [the val list's]")
    num_images: int = flag(4, "how many of these images to check with; 0: all", at_least=0)
    device: str = flag("cpu", "where the files are checked: cpu, cuda or cuda:N; they are written for any")


READER = FlagReader(ExportFlags, {}, "python export.py", "Export a checkpoint. Flags of the model are its own.")


def main(argv: list[str] | None = None) -> None:
    """Export as the flags say. Raises UserError, and leaves no file, where a file does not predict what PyTorch does."""
    given, changes = read_given(READER, argv)
    if "amp" in given:
        raise UserError("--amp: exported models compute in float32; what runs them may use less")
    flags = ExportFlags(**given)
    device = find_device(flags.device, local_rank=0, local_world_size=1)
    with program.advice(str(device), "use smaller --images"):
        export(flags, changes, device, Terminal(Group(device)))


def export(flags: ExportFlags, changes: dict, device: torch.device, terminal: Terminal) -> None:
    formats = ("onnx", "torch") if flags.format == "both" else (flags.format,)
    if "onnx" in formats:
        check_onnx(flags.opset)
    checkpoint = Checkpoint(flags.checkpoint, changes, terminal.info)
    extras = tuple(name for name, given in (("probs", flags.probs), ("logits", flags.logits)) if given)
    metadata = describe(checkpoint, flags.weights, extras)
    model = checkpoint.model(flags.weights, device)
    folder = Path(flags.output) if flags.output else checkpoint.path.parent
    check_writable(folder, "--output")
    images = real_images(flags, checkpoint, terminal)

    program = trace(WholeImage(model, extras), terminal)
    with contextlib.ExitStack() as stack:
        files: dict[str, ExportedModel] = {}
        for name in formats:
            path = folder / f"{checkpoint.path.stem}.{'onnx' if name == 'onnx' else 'pt2'}"
            # Under its own name only once it has been checked.
            scratch = stack.enter_context(writing(path))
            if name == "onnx":
                said = write_onnx(program, scratch, metadata, flags.opset, terminal)
                file: ExportedModel = OnnxModel(scratch, device)
            else:
                said = write_torch(program, scratch, metadata, terminal)
                file = TorchModel(scratch, device)
            files[f"{path}: {scratch.stat().st_size / 2**20:.1f} MiB, {said}"] = file
        check(model, list(files.values()), images, flags, device, terminal)
    for line in files:
        terminal.info(line)


def check_onnx(opset: int) -> None:
    """Raise UserError where ONNX cannot be written: before the work, not after it."""
    onnx, _, _ = (import_extra(name) for name in ("onnx", "onnxscript", "onnxruntime"))
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise UserError(f"--opset {opset}: onnx {onnx.__version__} knows 18 to {newest}")


def describe(checkpoint: Checkpoint, weights: str, extras: tuple[str, ...]) -> dict[str, str]:
    """What a file says of itself: a JSON text for each of exporting.exported.KEYS."""
    cfg = checkpoint.cfg
    classes = read_classes(cfg.classes, cfg.numclasses)
    values = (
        exported.FORMAT, ["labels", *extras], classes.names, to_hex(classes.colours), cfg.numclasses, str(checkpoint.path),
        checkpoint.state_dict(weights)[0], checkpoint.content.get("step"), cfg.model_type, cfg.layers,
    )  # fmt: skip
    return {key: json.dumps(value) for key, value in zip(exported.KEYS, values, strict=True)}


@contextlib.contextmanager
def stage(title: str, terminal: Terminal) -> Iterator[None]:
    """Say what was done, and how long it took."""
    start = time.perf_counter()
    yield
    terminal.info(f"{title}: {time.perf_counter() - start:.1f} s")


def trace(graph: WholeImage, terminal: Terminal) -> ExportedProgram:
    """The program of the model for any number of images of any size."""
    # Sizes above 1 that are not multiples of each other, so that none is taken for a constant, or for another.
    example = torch.zeros(2, 65, 97, 3, dtype=torch.uint8)
    sizes = {0: Dim("batch"), 1: Dim("height", min=MIN_TORCH_SIZE), 2: Dim("width", min=MIN_TORCH_SIZE)}
    with stage("traced by torch.export", terminal), torch.no_grad():
        return torch.export.export(graph, (example,), dynamic_shapes={"images": sizes})


def write_torch(program: ExportedProgram, path: Path, metadata: dict[str, str], terminal: Terminal) -> str:
    """Write the program as torch.export does. Returns what it is."""
    with stage("written by torch.export", terminal):
        buffer = io.BytesIO()
        torch.export.save(program, buffer, extra_files=metadata)
        path.write_bytes(buffer.getvalue())
    return f"torch {torch.__version__}, images of at least {MIN_TORCH_SIZE}x{MIN_TORCH_SIZE} pixels"


def write_onnx(
    program: ExportedProgram, path: Path, metadata: dict[str, str], opset: int, terminal: Terminal
) -> str:  # fmt: skip
    """Write the program as ONNX, weights included. Returns what it is."""
    onnx = import_extra("onnx")
    outputs = json.loads(metadata["outputs"])
    with stage("translated to ONNX", terminal), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg|torch")  # torch 2.11, of itself
        proto = torch.onnx.export(
            program, input_names=["images"], output_names=outputs, opset_version=opset, dynamo=True, verbose=False
        ).model_proto  # type: ignore[union-attr]
    tidy(proto)
    onnx.helper.set_model_props(proto, metadata)
    path.write_bytes(proto.SerializeToString())
    onnx.checker.check_model(path, full_check=True)
    written = {item.domain: item.version for item in proto.opset_import}[""]
    if written != opset:
        raise UserError(f"--opset {opset}: the model could only be written in opset {written}")
    return f"opset {written}, IR version {proto.ir_version}"


def tidy(proto) -> None:
    """Give the sizes of an onnx.ModelProto names, and take out what tells of this machine: the source of each node."""
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
    del proto.graph.value_info[:]  # sizes between nodes, by the old names; ONNX Runtime finds them itself


def real_images(flags: ExportFlags, checkpoint: Checkpoint, terminal: Terminal) -> list[Path]:
    """The files of --images, or of the checkpoint's val list where that is here."""
    if flags.images:
        given = Path(flags.images)
        files = (
            sorted(path for path in given.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
            if given.is_dir()
            else [given]
        )
        if not files or not given.exists():
            raise UserError(f"--images {given}: " + ("no images there" if given.exists() else "no such file or folder"))
    else:
        try:
            dataset = get_eval_loader(checkpoint.cfg, "val", Group(torch.device("cpu"))).dataset
        except UserError as error:
            terminal.info(f"checked with random images only, since --images is not given: {error}")
            return []
        files = [item["image"] for item in dataset.files]
    return files[: flags.num_images or None]


def check(
    model: torch.nn.Module, files: list[ExportedModel], images: list[Path], flags: ExportFlags, device: torch.device,
    terminal: Terminal,
) -> None:  # fmt: skip
    """Compare files with the model, and say how they compare. Raises UserError where they differ by more than rounding."""
    comparison = Comparison(model, files, whole_image_logits)
    tallies = {"random": {file: Tally() for file in files}, "real": {file: Tally() for file in files}}
    generator = torch.Generator().manual_seed(0)
    with stage(f"checked with random images and {len(images)} real ones", terminal):
        for size in RANDOM_SIZES:
            for batch in RANDOM_BATCHES:
                noise = torch.randint(0, 256, (batch, *size, 3), dtype=torch.uint8, generator=generator)
                comparison.add(noise.to(device), tallies["random"])
        for path in terminal.bar(images, total=len(images), title="real images", unit="image") if images else []:
            comparison.add(torch.from_numpy(read_image(path))[None].to(device), tallies["real"])
    logits, probs = (f"{comparison.error[name]:.1e}" for name in ("logits", "probs"))
    terminal.info(f"PyTorch in float32 differs from float64 by {logits} in a logit, {probs} in a probability")
    terminal.info("file  images      pixels  other class  logits apart     logits by   probs by  ms, PyTorch ms")
    for file in files:
        kind = "torch" if isinstance(file, TorchModel) else "onnx"
        for title, tally in ((title, by_file[file]) for title, by_file in tallies.items()):
            if tally.num_pixels:
                terminal.info(f"{kind:6}{title:8}{as_row(tally)}")
        for by_file in tallies.values():
            if fault := comparison.fault(by_file[file]):
                raise UserError(f"--format {kind}: {fault}; no file was written")


def as_row(tally: Tally) -> str:
    """Pixels, those with another class and how far PyTorch's two largest logits are apart there, differences, times."""
    gap = f"({tally.largest_gap:.1e})" if tally.num_different else ""
    logits, probs = (f"{tally.apart[name]:.1e}" if name in tally.apart else "-" for name in ("logits", "probs"))
    return (
        f"{tally.num_pixels:10}{tally.num_different:13}{gap:>16}{logits:>11}{probs:>11}  "
        f"{median_ms(tally.seconds):.0f}, {median_ms(tally.torch_seconds):.0f}"
    )


if __name__ == "__main__":
    sys.exit(program.run(main))
