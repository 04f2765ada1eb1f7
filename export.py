"""Write a checkpoint's model to files that run without this repository: ONNX and torch.export, checked against PyTorch.

python export.py --checkpoint log/demo/best.pt                          # best.onnx and best.pt2 beside it
python export.py --checkpoint log/demo/best.pt --format onnx --probs --images dataset/demo/JPEGImages --num_images 0
"""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from config.programs import EXPORT, ExportFlags
from support import program

if __name__ == "__main__":
    program.check_command_line(EXPORT.command_line)  # --help and wrong flags answer here, before torch is imported

import torch
from torch import Tensor

from data.images import IMAGE_SUFFIXES, read_image
from data.images.resize import shrink
from distributed.device import find_device
from distributed.group import Group
from evaluation.pictures import to_hex
from exporting.check import compare_files
from exporting.graph import MIN_SIZE, WholeImage, min_size, trace
from exporting.onnx import FORMAT, LONG_SIDE, OnnxModel, check_onnx, write_onnx
from exporting.torch_export import TorchModel, write_torch
from runs.log import progress_bar, start_logging
from support.errors import UserError
from support.files import check_writable, remove_scratch, writing
from trained import TrainedModel, read_overrides
from utils import get_eval_loader

log = logging.getLogger("segtrain")

RANDOM_SIZES = ((7, 13), (64, 48), (17, 130), (75, 53))  # odd sizes, multiples of 8, one long side
RANDOM_BATCHES = (1, 3)


def main(argv: list[str] | None = None) -> None:
    """Export with the flags of a command line (argv; None: sys.argv).

    Raises UserError, and keeps no file, if a file predicts other classes than PyTorch.
    """
    values, overrides = read_overrides(EXPORT, argv)
    if "amp" in values:
        raise UserError("--amp: exported models compute in float32: drop it, and set the precision in the runtime")
    flags = ExportFlags(**values)
    device = find_device(flags.device, local_rank=0, local_world_size=1)
    start_logging("INFO", is_main=True)
    with program.advice(str(device), "use smaller --images"):
        export(flags, overrides, device)


def export(flags: ExportFlags, overrides: dict, device: torch.device) -> None:
    """Write the files under temporary names, compare them with PyTorch, and rename them if they agree.

    overrides: {flag: value} that replaces the checkpoint's. Raises UserError, and keeps no file, if they differ.
    """
    formats = ("onnx", "torch") if flags.format == "both" else (flags.format,)
    if "onnx" in formats:
        check_onnx(flags.opset)
    trained = TrainedModel(flags.checkpoint, overrides)
    model = trained.model(flags.weights, device)
    outputs = ["labels"] + [name for name in ("probs", "logits") if getattr(flags, name)]
    least = max(MIN_SIZE, min_size(model))
    metadata = describe(trained, flags, outputs, min_size(model))
    folder = Path(flags.output) if flags.output else trained.path.parent
    check_writable(folder, "--output")
    remove_scratch(folder.glob(".*.part.*"))  # as large as the model
    images = find_images(flags, trained)

    log.info("tracing by torch.export")
    graph = trace(WholeImage(model, tuple(outputs[1:])))
    with contextlib.ExitStack() as stack:
        files: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {}
        lines: dict[str, str] = {}
        for name in formats:
            path = folder / f"{trained.path.stem}.{'onnx' if name == 'onnx' else 'pt2'}"
            scratch = stack.enter_context(writing(path))
            log.info(f"writing {path}")
            if name == "onnx":
                description = write_onnx(graph, scratch, metadata, flags.opset)
                files[name] = OnnxModel(scratch, device).run
            else:
                write_torch(graph, scratch, metadata)
                description = f"torch {torch.__version__}, images of at least {least}x{least} pixels"
                files[name] = TorchModel(scratch, device).run
            lines[str(path)] = f"{scratch.stat().st_size / 2**20:.1f} MiB, {description}"
        log.info(f"comparing with PyTorch on random images and {len(images)} real ones")
        batches = load_images(images, trained.cfg.long_side, device)
        large = (batch for batch in batches if min(batch.shape[1:3]) >= least)
        checked = compare_files(model, files, outputs, large)
    for name, line in [*checked.items(), *lines.items()]:
        log.info(f"{name}: {line}")
    if trained.cfg.long_side:
        log.info(
            f"images must have a longer side of {trained.cfg.long_side} pixels, as in training (--long_side): resize "
            "them first; predict.py --model does"
        )


def describe(trained: TrainedModel, flags: ExportFlags, outputs: list[str], min_size: int) -> dict[str, str]:
    """Return the metadata to store in an exported file, {key: JSON text}. min_size: smallest side of an image."""
    cfg = trained.cfg
    classes = trained.classes
    values = {
        "segtrain_format": FORMAT,
        "outputs": outputs,
        "class_names": classes.names,
        "colours": to_hex(classes.colours),
        "num_classes": cfg.numclasses,
        "checkpoint": str(trained.path),
        "weights": trained.resolve_weights(flags.weights),
        "step": trained.content.get("step"),
        "model_type": cfg.model_type,
        "layers": cfg.layers,
        LONG_SIDE: cfg.long_side,
        "min_size": min_size,
    }
    return {key: json.dumps(value) for key, value in values.items()}


def find_images(flags: ExportFlags, trained: TrainedModel) -> list[Path]:
    """Return the image files of --images, or of the checkpoint's val list; [] if the val list's data set is not there.

    At most --num_images files are returned; 0 returns all. Raises UserError if --images is missing or has no images.
    """
    if flags.images:
        path = Path(flags.images)
        if not path.exists():
            raise UserError(f"--images {path}: no such file or folder")
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
        if not files:
            raise UserError(f"--images {path}: no images there")
    else:
        try:
            dataset = get_eval_loader(trained.cfg, trained.cfg.val_split, Group(torch.device("cpu"))).dataset
        except UserError as error:
            log.info(f"checking with random images only (set --images to add real ones): {error}")
            return []
        files = [item["image"] for item in dataset.files]
    return files[: flags.num_images or None]


def load_images(files: list[Path], long_side: int, device: torch.device) -> Iterator[Tensor]:
    """Yield batches (B, H, W, 3) uint8 on `device`: random images, then each image file as a batch of one.

    A file's image is shrunk to `long_side`, as the model gets it; 0: it is not.
    """
    generator = torch.Generator().manual_seed(0)
    for size in RANDOM_SIZES:
        for batch in RANDOM_BATCHES:
            yield torch.randint(0, 256, (batch, *size, 3), dtype=torch.uint8, generator=generator).to(device)
    for file in progress_bar(files, total=len(files), title="real images", unit="image", enabled=bool(files)):
        image = read_image(file)
        yield torch.from_numpy(shrink({"image": image}, long_side)["image"])[None].to(device)


if __name__ == "__main__":
    program.run_and_exit(main)
