"""Label maps of images and videos by a trained model.

python predict.py --checkpoint log/demo/best.pt --input dataset/demo/JPEGImages --output predictions --overlay
python predict.py --checkpoint log/voc/best.pt --input 'photos/**/*.JPG' --scales 0.75 1 1.25 --flip
python predict.py --model model.onnx --input video.mp4 photos/*.jpg --overlay
torchrun --standalone --nproc_per_node 8 predict.py --checkpoint log/voc/best.pt --input photos
"""

import dataclasses
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from config.programs import PREDICT, PredictFlags
from support import program

if __name__ == "__main__":
    program.check_command_line(PREDICT.command_line)  # --help and wrong flags answer here, before torch is imported

import numpy as np
import torch
from torch.utils.data import DataLoader

from config.flags import per_rank
from data.classes import Classes, read_classes
from data.images import read_label
from data.loader import batched
from data.sampler import EvalBatches
from distributed import checks
from distributed.group import Group, Stopped
from evaluation.predictor import ImagePredictor, predict_batch
from exporting.onnx import OnnxModel
from prediction.films import how_to_convert
from prediction.inputs import Images, Input, find_inputs, frame_rate, probe, read_frames
from prediction.outputs import Outputs
from runs.log import progress_bar, start_logging
from support.errors import STOPPED, InputError, UserError
from support.files import sha256
from trained import OUT_OF_MEMORY_ADVICE, TrainedModel, inference_settings, read_flags
from utils import join_group, make_loader, resolve_amp

log = logging.getLogger("segtrain")

# Flags that also apply to --model; a checkpoint saves them, an exported model does not.
WITH_MODEL = ("classes", "background", "val_batchsize", "workers")


def main(argv: list[str] | None = None) -> int:
    """Predict with the flags of a command line. Returns 0, 1 if an input failed, or errors.STOPPED."""
    return run(*read_flags(PREDICT, argv))


def run(flags: PredictFlags, overrides: dict) -> int:
    """Predict all inputs on all ranks. Returns 0, 1 if an input failed, or errors.STOPPED after a signal.

    overrides: {flag: value} that replaces the checkpoint's. Raises UserError for wrong flags.
    """
    if not flags.input:
        raise UserError("--input is not set: name an image, a video, a folder or a 'pattern'")
    with join_group(flags) as group, program.advice(str(group.device), OUT_OF_MEMORY_ADVICE):
        start_logging(flags.log_level, is_main=group.is_main)
        checks.check_flags(group, vars(flags), per_rank(flags))
        model, classes, background, settings = load_model(flags, overrides, group)
        wanted = {"overlays": flags.overlay, "probs": flags.probs}
        with Outputs(Path(flags.output), classes, background, **wanted) as outputs:
            inputs, pending = group.broadcast(plan(flags, outputs, settings) if group.is_main else None)
            try:
                return Prediction(model, outputs, group, pending).run(inputs, flags.workers)
            except Stopped:
                log.info("stopped by a signal; run the same command again, without --overwrite, to finish")
                return STOPPED


def load_model(flags: PredictFlags, overrides: dict, group: Group) -> tuple[ImagePredictor, Classes, int | None, dict]:
    """Return the model, its classes, background class or None, all that predictions depend on.

    overrides: see run(). Raises UserError if a flag does not apply to --model.
    """
    settings = inference_settings(flags) | {"weights": flags.weights}
    if flags.model:
        changed = any(value != PREDICT.flags[name].default for name, value in settings.items())
        if flags.checkpoint or changed or any(name not in WITH_MODEL for name in overrides):
            raise UserError(
                f"--model {flags.model}: predicts whole images at one scale, with its own weights: drop --checkpoint "
                "and every flag of model, --scales, --flip, --long_side, --window and --stride_rate"
            )
        model = OnnxModel(Path(flags.model), group.device, images_at_once=flags.val_batchsize)
        classes = read_classes(flags.classes, model.num_classes) if flags.classes else model.classes
        settings = {"model": sha256(model.path), "colours": classes.colours[: model.num_classes].tolist()}
        return model, classes, flags.background_class, settings
    trained = TrainedModel(flags.checkpoint, overrides)
    trained.cfg = dataclasses.replace(trained.cfg, amp=resolve_amp(trained.cfg.amp, group))
    cfg, predictor = trained.cfg, trained.predictor(flags.weights, group.device, **inference_settings(flags))
    checks.check_weights(group, predictor.model, buffers_averaged=True)
    classes = trained.classes
    settings |= cfg.sizes | {"model_type": cfg.model_type, "stride_in_1x1": cfg.stride_in_1x1, "amp": cfg.amp}
    settings = {"checkpoint": sha256(trained.path), **settings, "colours": classes.colours[: cfg.numclasses].tolist()}
    return predictor, classes, cfg.background_class, settings


def plan(flags: PredictFlags, outputs: Outputs, settings: dict) -> tuple[list[Input], set[Input]]:
    """Claim the output folder and return (all Inputs, the pending ones), or ([], set()) if all are done.

    Only rank 0 calls this function. settings: all that predictions depend on; written to predictions.json. Raises
    UserError if the folder has predictions with other settings.
    """
    base, inputs, num_others = find_inputs(flags.input, outputs.folder)
    outputs.claim({"input": str(base.resolve()), **settings}, overwrite=flags.overwrite)
    pending = {file for file in inputs if not outputs.is_done(file.name)}
    counts = [f"{len(pending)} to predict"]
    if len(pending) < len(inputs):
        counts.append(f"{len(inputs) - len(pending)} done before (--overwrite predicts them again)")
    if num_others:
        counts.append(f"{num_others} file(s) of other kinds skipped")
    what = flags.input[0] if len(flags.input) == 1 else f"{len(flags.input)} inputs in {base}"
    log.info(f"{what}: {', '.join(counts)}")
    return inputs if pending else [], pending


@dataclass
class Prediction:
    """A prediction of images and videos with one model, shared by all ranks of `group`, written to `outputs`."""

    model: ImagePredictor
    outputs: Outputs
    group: Group
    pending: set[Input]  # those that are not done

    def run(self, inputs: list[Input], workers: int) -> int:
        """Predict what is pending. Returns 1 if an input failed, else 0. Collective; raises Stopped after a signal.

        inputs: all, done or pending. workers: processes that load images.
        """
        group, outputs = self.group, self.outputs
        own = len(inputs[group.rank :: group.world_size])
        headers = group.map(probe, inputs, partial(self._bar, total=own, title="headers", unit="file"))
        sizes = dict(zip(inputs, headers, strict=True))
        images = {file: size for file, size in sizes.items() if isinstance(size, tuple)}
        failures = self.predict_images(images, workers)
        videos = [file for file, size in sizes.items() if size is None and file in self.pending]
        for video in videos[group.rank :: group.world_size]:
            try:
                self.predict_video(video)
            except InputError as error:
                failures.append(error)
            except Stopped:
                break
        outputs.wait()
        group.raise_if_stopped()
        errors = [sizes[file] for file in self.pending if isinstance(sizes[file], UserError)]
        errors += [error for share in group.gather(failures + outputs.failures) for error in share]
        films = [path for share in group.gather(outputs.films) for path in share]
        log.info(f"{len(self.pending) - len(errors)} predicted; masks: {outputs.mask('NAME')}")
        if films and films[0].suffix == ".mp4":
            log.warning(how_to_convert(films[0]))
        if errors:
            log.warning("\n  ".join([f"{len(errors)} could not be predicted:", *sorted(map(str, errors))]))
        return 1 if errors else 0

    def predict_images(self, sizes: dict[Input, tuple[int, int]], workers: int) -> list[UserError]:
        """Predict this rank's share of the pending batches; return errors. A signal ends it early.

        sizes: {input: (height, width)} of the images of all ranks. workers: processes that load images.
        """
        group, files = self.group, list(sizes)
        ranks = {"rank": group.rank, "world_size": group.world_size}
        batches = EvalBatches(list(sizes.values()), batch_size=self.model.images_at_once, **ranks).batches
        # After a kill, repeat whole batches of all images: a model's result may depend on the batch's size.
        batches = [batch for batch in batches if any(files[index] in self.pending for index in batch)]
        loader = make_loader(DataLoader, Images(files), workers, group, batch_sampler=batches, collate_fn=list)
        failures: list[UserError] = []
        with self._bar(None, total=sum(map(len, batches)), title="images", unit="image") as bar:
            for batch in loader:
                if group.stop:
                    break
                failures += [image for _, image in batch if isinstance(image, UserError)]
                self._predict({files[index].name: image for index, image in batch if isinstance(image, np.ndarray)})
                bar.update(len(batch))
        return failures

    def predict_video(self, video: Input) -> None:
        """Predict the frames of a video that are not done, and write all its outputs.

        Raises Stopped, on this rank alone, after a signal, and InputError if the video is damaged.
        """
        self.outputs.write_video(video.name, self._label_frames(video), frame_rate(video.path))

    def _label_frames(self, video: Input) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (frame (H, W, 3) uint8 RGB, label map (H, W) uint8); a finished frame's label map is read back."""
        frames = self._bar(read_frames(video.path), total=None, title=video.path.name, unit="frame")
        numbered = ((f"{video.name}/{number:06d}", frame) for number, frame in enumerate(frames, start=1))
        for batch in batched(numbered, self.model.images_at_once):
            if self.group.stop:
                raise Stopped
            if all(self.outputs.is_done(name, frame=True) for name, _ in batch):
                labels = {name: read_label(self.outputs.mask(name), 255) for name, _ in batch}
            else:
                labels = self._predict(dict(batch), frames=True)
            yield from ((frame, labels[name]) for name, frame in batch)

    def _predict(self, images: dict[str, np.ndarray], *, frames: bool = False) -> dict[str, np.ndarray]:
        """Predict {name: image (H, W, 3) uint8 RGB} of one size, write outputs, return {name: label map (H, W) uint8}.

        frames: whether the images are frames of a video.
        """
        if not images:
            return {}
        batch = torch.from_numpy(np.stack(list(images.values()))).to(self.group.device)
        labels, probs = predict_batch(self.model, batch, torch.float16 if self.outputs.probs else None)
        for (name, image), label, prob in zip(images.items(), labels, probs, strict=True):
            self.outputs.write(name, image, label, prob, frame=frames)
        return dict(zip(images, labels, strict=True))

    def _bar(self, items, *, total: int | None, title: str, unit: str):
        return progress_bar(items, total=total, title=title, unit=unit, enabled=self.group.is_main)


if __name__ == "__main__":
    program.run_and_exit(main)
