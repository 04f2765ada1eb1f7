"""Write a checkpoint's model to an ONNX file, which runs without this repository, and check it against PyTorch.

python export.py --checkpoint log/demo/best.pt            # best.onnx beside it
python export.py --checkpoint log/demo/best.pt --probs    # with probabilities
"""

import sys
from pathlib import Path

if not __package__:  # started as a file: PYTHONSAFEPATH keeps its folder out of sys.path
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from flags.programs import EXPORT, ExportFlags
from support import program
from support.log import log

if __name__ == "__main__":
    program.check_command_line(EXPORT.command_line)  # --help and wrong flags answer here, before torch is imported

import torch

from data.images.reader import ImageReader
from distributed.device import find_device
from inference.export_check import compare_file, find_images, load_images
from inference.export_graph import MIN_SIZE, WholeImage, trace
from inference.export_onnx import check_onnx, metadata_of, write_onnx
from inference.onnx_model import OnnxModel
from inference.trained import TrainedModel, read_overrides
from support.errors import UserError
from support.files import NO_FOLDER, check_file, remove_scratch, writing
from training.data import data_folders
from training.record.log import start_logging


def main(argv: list[str] | None = None) -> None:
    """Export with the flags of a command line (argv; None: sys.argv).

    Raises UserError, and keeps no file, if the file predicts other classes than PyTorch.
    """
    values, overrides, notes = read_overrides(EXPORT, argv)
    if "amp" in values:
        raise UserError("--amp: exported models compute in float32: drop it, and set the precision in the runtime")
    flags = ExportFlags(**values)
    device = find_device(flags.device, local_rank=0, local_world_size=1)
    start_logging("INFO", is_main=True)
    for note in notes:
        log.info(note)
    with program.explain_errors(str(device), "use --device cpu"):
        export(flags, overrides, device)


def export(flags: ExportFlags, overrides: dict, device: torch.device) -> None:
    """Write the file under a temporary name, compare it with PyTorch, and rename it if they agree.

    overrides: {flag: value} that replaces the checkpoint's. Raises UserError, and keeps no file, if they differ.
    """
    check_onnx(flags.opset)
    trained = TrainedModel(flags.checkpoint, overrides)
    model = trained.model(flags.weights, device)
    outputs = ["labels"] + [name for name in ("probs", "logits") if getattr(flags, name)]
    path = Path(flags.output) if flags.output else trained.path.parent
    if path.suffix.lower() != ".onnx" or path.is_dir():  # --output names a folder
        if path.suffix.lower() in NO_FOLDER and not path.is_dir():
            raise UserError(f"--output {path}: name an .onnx file, such as {path.with_suffix('.onnx')}, or a folder")
        path /= f"{trained.path.stem}.onnx"
    folder = path.parent
    check_file(path, "--output", mark="segtrain_format", inputs=data_folders(trained.cfg))
    remove_scratch(folder.glob(".*.part*"))  # as large as the model
    images = find_images(trained)

    log.info("tracing by torch.export")
    graph = WholeImage(model, tuple(outputs[1:]))
    traced, metadata = trace(graph), metadata_of(trained, flags.weights, outputs, graph.min_size)
    with writing(path) as scratch:
        log.info(f"writing {path}")
        version, size = write_onnx(traced, scratch, metadata, flags.opset), scratch.stat().st_size / 2**20
        log.info(f"comparing with PyTorch on random images and {len(images)} real ones")
        batches = load_images(images, ImageReader(**trained.cfg.reading), trained.cfg.long_side, device)
        large = (batch for batch in batches if min(batch.shape[1:3]) >= max(MIN_SIZE, graph.min_size))
        checked = compare_file(model, OnnxModel(scratch, device), large)
    log.info(checked)
    log.info(f"{path}: {size:.1f} MiB, {version}")
    if trained.cfg.long_side:
        borders = "" if outputs[1:] else ", and masks get smoother borders if the file is exported with --probs"
        log.info(
            f"images must have a longer side of {trained.cfg.long_side} pixels, as in training (--long_side): resize "
            f"them first; predict.py --model does{borders}"
        )


if __name__ == "__main__":
    program.run_and_exit(main)
