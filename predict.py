"""Label maps of images and videos by a trained model.

python predict.py --checkpoint log/demo/best.pt --input dataset/demo/JPEGImages --output predictions --overlay
python predict.py --checkpoint log/voc/best.pt --input 'photos/**/*.JPG' --scales 0.75 1 1.25 --flip
python predict.py --model model.onnx --input video.mp4 photos/*.jpg --overlay
torchrun --standalone --nproc_per_node 8 predict.py --checkpoint log/voc/best.pt --input photos
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

import program
from config.flags import FlagReader, flag
from config.shared import LOCAL, InferenceFlags, ModelFlags
from data.classes import read_classes
from data.images import read_label
from data.loader import batched
from data.sampler import EvalBatches
from distributed import checks as doctor
from distributed.group import Group
from errors import STOPPED, InputError, UserError
from evaluation.predictor import Predictor
from exporting.onnx_model import OnnxModel
from files import sha256
from prediction.films import how_to_convert
from prediction.inputs import Images, Input, find_inputs, frame_rate, probe, read_frames
from prediction.outputs import Outputs
from runs.terminal import Terminal
from trained import TOO_MUCH, Checkpoint, read_flags
from utils import join_group, make_loader

# Flags that a checkpoint has, but an exported model takes from the command line.
NOT_OF_MODEL = ("classes", "background", "val_batchsize", "workers", "val_workers")


@dataclass
class PredictFlags(InferenceFlags, ModelFlags):
    """Those of ModelFlags are the checkpoint's own where they are not given."""

    model: str = flag("", "FILE that export.py wrote as ONNX, instead of --checkpoint")
    input: tuple[str, ...] = flag((), "images, videos, folders (with subfolders) or 'patterns' to predict, one or more")
    output: str = flag("predictions", "folder to write masks/NAME.png to, and what else is asked for")
    overlay: bool = flag(
        False, "also write overlays/NAME.jpg, or a video: the classes over the image, --background left clear"
    )
    probs: bool = flag(False, "also write probs/NAME.npy: probabilities (classes, height, width), float16")
    overwrite: bool = flag(False, "predict again what --output has already")


READER = FlagReader(
    PredictFlags, {}, "python predict.py", "Predict label maps. Flags of the model are the checkpoint's own."
)


def main(argv: list[str] | None = None) -> int:
    """Predict as the flags say. Returns the exit status: 0; 1 where a file could not be read; or errors.STOPPED."""
    flags, changes = read_flags(READER, argv)
    assert isinstance(flags, PredictFlags)
    if not flags.input:
        raise UserError("--input is not set: name an image, a video, a folder or a 'pattern'")
    with join_group(flags) as group, program.advice(str(group.device), TOO_MUCH):
        return predict(flags, changes, group, Terminal(group, quiet=flags.log_level == "WARNING"))


def predict(flags: PredictFlags, changes: dict, group: Group, terminal: Terminal) -> int:
    doctor.check_flags(group, vars(flags), LOCAL)
    model, colours, background, settings = load_model(flags, changes, group, terminal)
    with Outputs(Path(flags.output), colours, background, overlays=flags.overlay, probs=flags.probs) as outputs:
        inputs: list[Input] = group.broadcast(plan(flags, outputs, settings, terminal) if group.is_main else None)
        return predict_inputs(flags.workers, group, terminal, model, outputs, inputs)


def predict_inputs(
    workers: int, group: Group, terminal: Terminal, model: Predictor | OnnxModel, outputs: Outputs,
    inputs: list[Input],
) -> int:  # fmt: skip
    """Predict what can be read, on all ranks, and say what cannot."""
    found = probe_all(inputs, group, terminal)
    images = {file: size for file, size in found.items() if isinstance(size, tuple)}
    videos = [file for file, size in found.items() if size is None]
    mine = predict_images(workers, group, terminal, model, outputs, images)
    for video in videos[group.rank :: group.world_size]:
        try:
            predict_video(group, terminal, model, outputs, video)
        except InputError as error:
            mine.append(error)
        except Stopped:
            break
    outputs.wait()
    mine += outputs.failures

    failures: list[UserError] = [result for result in found.values() if isinstance(result, UserError)]
    failures += [error for share in group.gather(mine) for error in share]
    not_in_browsers = [path for share in group.gather(outputs.not_in_browsers) for path in share]
    if any(group.gather(bool(group.stop))):
        terminal.info("stopped by a signal; the same command goes on, without --overwrite")
        return STOPPED
    terminal.info(f"{len(inputs) - len(failures)} predicted; masks: {outputs.mask('NAME')}")
    if not_in_browsers:
        terminal.warn(how_to_convert(not_in_browsers))
    if failures:
        terminal.warn(f"{len(failures)} could not be:")
        for line in sorted(map(str, failures)):
            terminal.warn(f"  {line}")
    return 1 if failures else 0


def load_model(
    flags: PredictFlags, changes: dict, group: Group, terminal: Terminal
) -> tuple[Predictor | OnnxModel, np.ndarray, int | None, dict]:
    """The model, the colours of its classes, its background class, and what its predictions depend on."""
    how = {name: getattr(flags, name) for name in ("scales", "flip", "long_side", "window", "stride_rate", "weights")}
    if flags.model:
        of_checkpoint = [name for name in changes if name not in NOT_OF_MODEL]
        if flags.checkpoint or of_checkpoint or any(how[name] != READER.fields[name].default for name in how):
            raise UserError(
                f"--model {flags.model}: predicts whole images at one scale, with its own weights: drop --checkpoint and "
                "every flag of model, --scales, --flip, --long_side, --window and --stride_rate"
            )
        model = OnnxModel(Path(flags.model), group.device)
        model.images_at_once = flags.val_batchsize
        colours = read_classes(flags.classes, model.num_classes).colours if flags.classes else model.colours
        settings = {"model": sha256(Path(flags.model)), "colours": colours[: model.num_classes].tolist()}
        return model, colours, flags.background_class, settings
    checkpoint = Checkpoint(flags.checkpoint, changes, terminal.info)
    cfg = checkpoint.cfg
    predictor = checkpoint.predictor(flags, group.device)
    doctor.check_weights(group, predictor.model, buffers_averaged=True)
    colours = read_classes(cfg.classes, cfg.numclasses).colours
    how |= {name: getattr(cfg, name) for name in ("model_type", "stride_in_1x1", "amp")}
    return (
        predictor,
        colours,
        cfg.background_class,
        {"checkpoint": sha256(checkpoint.path), **how, "colours": colours[: cfg.numclasses].tolist()},
    )


def plan(flags: PredictFlags, outputs: Outputs, settings: dict, terminal: Terminal) -> list[Input]:
    """What is to be predicted: the inputs that have no mask yet. Rank 0 calls it."""
    base, inputs, num_others = find_inputs(flags.input, outputs.folder)
    outputs.claim({"input": str(base.resolve()), **settings}, overwrite=flags.overwrite)
    pending = [file for file in inputs if not outputs.is_done(file.name)]
    said = [f"{len(pending)} to predict"]
    if len(pending) < len(inputs):
        said.append(f"{len(inputs) - len(pending)} done before (--overwrite would do them again)")
    if num_others:
        said.append(f"{num_others} file(s) of other kinds passed over")
    what = flags.input[0] if len(flags.input) == 1 else f"{len(flags.input)} inputs in {base}"
    terminal.info(f"{what}: " + ", ".join(said))
    return pending


def probe_all(inputs: list[Input], group: Group, terminal: Terminal) -> dict[Input, tuple[int, int] | UserError | None]:
    """prediction.inputs.probe() of every input, or the error; each process reads the headers of its share."""

    def size(file: Input) -> tuple[int, int] | UserError | None:
        try:
            return probe(file.path)
        except UserError as error:
            return error

    own = len(inputs[group.rank :: group.world_size])
    sizes = group.map(size, inputs, partial(terminal.bar, total=own, title="headers", unit="file"))
    return {file: sizes[index] for index, file in enumerate(inputs)}


def predict_images(
    workers: int, group: Group, terminal: Terminal, model: Predictor | OnnxModel, outputs: Outputs,
    images: dict[Input, tuple[int, int]],
) -> list[UserError]:  # fmt: skip
    """Predict this process's share of the images {input: (height, width)}. Returns what could not be read."""
    files = list(images)
    batches = EvalBatches(
        list(images.values()), batch_size=model.images_at_once, rank=group.rank, world_size=group.world_size
    )
    loader = make_loader(
        DataLoader, Images([file.path for file in files]), workers, group, batch_sampler=batches, collate_fn=list
    )
    failures: list[UserError] = []
    with terminal.bar(None, total=sum(map(len, batches)), title="images", unit="image") as bar:
        for batch in loader:
            if group.stop:
                break
            failures += [image for _, image in batch if isinstance(image, UserError)]
            pairs = [(files[index].name, image) for index, image in batch if isinstance(image, np.ndarray)]
            predict_batch(model, outputs, pairs, group.device, frames=False)
            bar.update(len(batch))
    return failures


def predict_video(
    group: Group, terminal: Terminal, model: Predictor | OnnxModel, outputs: Outputs, video: Input
) -> None:
    """Predict every frame of a video that has no mask yet."""
    rate, num_frames = frame_rate(video.path), 0

    def labelled() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        nonlocal num_frames
        frames = terminal.bar(read_frames(video.path), total=None, title=video.path.name, unit="frame")
        numbered = ((f"{video.name}/{number:06d}", frame) for number, frame in enumerate(frames, start=1))
        for batch in batched(numbered, model.images_at_once):
            if group.stop:
                raise Stopped
            pending = [(name, frame) for name, frame in batch if not outputs.is_new(outputs.mask(name))]
            labels = predict_batch(model, outputs, pending, group.device, frames=True)
            for name, frame in batch:
                num_frames += 1
                yield frame, labels[name] if name in labels else read_label(outputs.mask(name), 255)

    if outputs.overlays:
        outputs.write_film(video.name, labelled(), rate)
    else:
        for _ in labelled():
            pass
    outputs.finish_video(video.name, num_frames, rate)


def predict_batch(
    model: Predictor | OnnxModel, outputs: Outputs, named: list[tuple[str, np.ndarray]], device: torch.device, *, frames: bool
) -> dict[str, np.ndarray]:  # fmt: skip
    """Predict images (H, W, 3) of one size, have the results written, and return label maps {name: (H, W) uint8}."""
    if not named:
        return {}
    images = torch.from_numpy(np.stack([image for _, image in named])).to(device)
    if outputs.probs:
        bands = [(band.argmax(1).to(torch.uint8).cpu(), band.half().cpu()) for _, band in model.probs(images)]
        labels, probs = (torch.cat(parts, dim=-2).numpy() for parts in zip(*bands, strict=True))
    else:
        labels = model.labels(images).cpu().numpy()
    for number, (name, image) in enumerate(named):
        outputs.write(name, image, labels[number], probs[number] if outputs.probs else None, frame=frames)
    return {name: labels[number] for number, (name, _) in enumerate(named)}


class Stopped(Exception):
    """A signal ended a video half-way."""


if __name__ == "__main__":
    sys.exit(program.run(main))
