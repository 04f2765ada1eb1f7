"""Predict label maps of images with a trained model.

python predict.py --checkpoint log/demo/best.pt --input dataset/demo/JPEGImages --output predictions --overlay
python predict.py --checkpoint log/voc/best.pt --input 'photos/**/*.JPG' --scales 0.75 1 1.25 --flip
python predict.py --model model.onnx --input photos/*.jpg --overlay
torchrun --standalone --nproc_per_node 8 predict.py --checkpoint log/voc/best.pt --input photos
"""

import sys
from functools import partial
from pathlib import Path

if not __package__:  # started as a file: PYTHONSAFEPATH keeps its folder out of sys.path
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from flags.programs import PREDICT, PredictFlags
from support import program
from support.log import log

if __name__ == "__main__":
    program.check_command_line(PREDICT.command_line)  # --help and wrong flags answer here, before torch is imported

import numpy as np
import torch

from data.classes import Classes, read_classes
from data.images import Header, several_frames
from data.images.to_8_bits import HAVE_8_BITS
from data.sampler import EvalBatches
from distributed.group import Group
from inference.inputs import attempt, film_hint, find_inputs, read_inputs
from inference.onnx_model import OnnxModel
from inference.outputs import PROBS_DTYPE, Outputs
from inference.predictor import ImagePredictor, Step, each_batch, predict_batch
from inference.trained import LOADER_FLAGS, inference_settings, load_on_ranks, run_program
from support.errors import UserError
from support.files import check_place, sha256
from training.checkpoint_content import naming_flag
from training.data import data_folders, make_loader

# Flags that also apply to --model; a checkpoint saves them, an exported model does not.
WITH_MODEL = ("classes", "background", "val_batchsize", "val_workers", *LOADER_FLAGS)


def main(argv: list[str] | None = None) -> int:
    """Predict with the flags of a command line. Returns 0, 1 if an input failed, or errors.STOPPED."""
    return run_program(PREDICT, argv, predict_all)


def predict_all(flags: PredictFlags, overrides: dict, group: Group) -> int:
    """Predict all inputs and return the exit status. Collective; raises Stopped after a signal.

    overrides: {flag: value} that replaces the checkpoint's.
    """
    if not flags.input:
        raise UserError("--input is not set: name an image, a folder or a 'pattern'")
    model, classes, background, settings = load_model(flags, overrides, group)
    wanted = {"masks": True, "overlays": flags.overlay, "probs": flags.probs}
    kinds = [kind for kind, is_wanted in wanted.items() if is_wanted]
    with Outputs(Path(flags.output), classes, background, kinds) as outputs:
        inputs, pending = group.broadcast(plan(flags, outputs, settings) if group.is_main else None)
        errors = predict(model, inputs, pending, outputs, group, flags)
    files = ", ".join(str(outputs.path(kind, "NAME")) for kind in kinds)
    log.info(f"{len(pending) - len(errors)} predicted: {files}")
    if errors:
        log.warning("\n  ".join([f"{len(errors)} could not be predicted:", *sorted(map(str, errors))]))
    return 1 if errors else 0


def load_model(flags: PredictFlags, overrides: dict, group: Group) -> tuple[ImagePredictor, Classes, int | None, dict]:
    """Return the model, its classes, its background class or None, and the settings that predictions depend on.

    overrides: see predict_all(). Raises UserError if a flag does not apply to --model.
    """
    settings = inference_settings(flags) | {"weights": flags.weights}
    if flags.model:
        changed = any(value != PREDICT.flags[name].default for name, value in settings.items())
        if flags.checkpoint or changed or any(name not in WITH_MODEL for name in overrides):
            raise UserError(
                f"--model {flags.model}: predicts whole images at one scale, with its own weights: drop --checkpoint "
                "and every flag of model and images, --scales and --flip"
            )
        with naming_flag("--model", Path(flags.model), "name an ONNX FILE that export.py wrote"):
            model = OnnxModel(Path(flags.model), group.device, images_at_once=flags.val_batchsize)
        classes = read_classes(flags.classes, model.num_classes) if flags.classes else model.classes
        settings = {"model": sha256(model.path), "colours": classes.colours[: model.num_classes].tolist()}
        background = overrides.get("background", model.background)
        return model, classes, None if background == "none" else int(background), settings
    trained, predictor = load_on_ranks(flags, overrides, group)
    cfg, classes = trained.cfg, trained.classes
    check_place(Path(flags.output), "--output", data_folders(cfg))
    return predictor, classes, cfg.background_class, trained.settings(flags)


def plan(flags: PredictFlags, outputs: Outputs, settings: dict) -> tuple[dict[str, Path], set[str]]:
    """Claim the output folder and return ({name: image} of all inputs, the pending names); ({}, set()) if all are done.

    Only rank 0 calls this function. settings: all that predictions depend on; written to predictions.json. Raises
    UserError if the folder has predictions with other settings.
    """
    base, inputs, others = find_inputs(flags.input, outputs.folder)
    old = outputs.claim({"input": str(base.resolve()), **settings}, inputs, overwrite=flags.overwrite)
    pending = {name for name in inputs if not outputs.is_done(name)}
    counts = [f"{len(pending)} to predict"]
    if len(pending) < len(inputs):
        counts.append(f"{len(inputs) - len(pending)} done before (--overwrite predicts them again)")
    if old:
        counts.append(f"{len(old)} mask(s) of other inputs stay, such as {old[0]}")
    if others:
        counts.append(f"{len(others)} file(s) of other kinds skipped{film_hint(others)}")
    what = flags.input[0] if len(flags.input) == 1 else f"{len(flags.input)} inputs in {base}"
    log.info(f"{what}: {', '.join(counts)}")
    return inputs if pending else {}, pending


def predict(
    model: ImagePredictor,
    inputs: dict[str, Path],
    pending: set[str],
    outputs: Outputs,
    group: Group,
    flags: PredictFlags,
) -> list[UserError]:
    """Predict this rank's share of the pending batches, write the files, and return the errors of all ranks.

    Collective; raises Stopped after a signal. inputs: {name: image}, done or pending. flags: the loader's.
    """
    found = group.share_work(partial(attempt, model.reader.header), list(inputs.values()), "headers", "file")
    headers = dict(zip(inputs, found, strict=True))
    good = {name: header for name, header in headers.items() if isinstance(header, Header)}
    if line := several_frames({inputs[name]: header.frames for name, header in good.items()}):
        log.warning(line)
    plain = [inputs[name] for name, header in good.items() if header.dtype in HAVE_8_BITS]
    if model.reader.value_range and plain:
        log.warning(f"{len(plain)} of {len(good)} images have 8 bits and are read as they are: {plain[0]} ...")
    names, sizes = list(good), [header.size for header in good.values()]
    batches = EvalBatches(sizes, batch_size=model.images_at_once, rank=group.rank, world_size=group.world_size)
    # After a kill, repeat whole batches of all images: a model's result may depend on the batch's size.
    batches.keep(lambda index: names[index] in pending)
    files = [(name, inputs[name]) for name in names]
    read_batch = partial(read_inputs, reader=model.reader)
    loader = make_loader(files, flags, group, batch_sampler=batches, collate_fn=read_batch)
    failures: list[UserError] = []
    flat: list[Path] = []
    damaged: list[str] = []

    def write(batch: list[tuple[str, np.ndarray | UserError, str]], step: Step) -> None:
        failures.extend(image for _, image, _ in batch if isinstance(image, UserError))
        damaged.extend(f"{inputs[name]} ({damage})" for name, _, damage in batch if damage)
        whole = {name: image for name, image, _ in batch if isinstance(image, np.ndarray)}
        if whole:
            pixels = torch.from_numpy(np.stack(list(whole.values()))).to(group.device)
            labels, probs = predict_batch(model, pixels, PROBS_DTYPE if flags.probs else None, step)
            if not model.reader.is_plain:
                flat.extend(inputs[name] for name, image in whole.items() if (image == image[:1, :1]).all())
            for (name, image), label, prob in zip(whole.items(), labels, probs, strict=True):
                outputs.write(name, image, label, prob)

    each_batch(model, loader, group, write)
    outputs.wait()
    if same := [path for share in group.gather(flat) for path in share]:
        log.warning(f"{len(same)} image(s) have one value in all pixels, as they are read: {same[0]} ...")
    if parts := [text for share in group.gather(damaged) for text in share]:
        log.warning(f"{len(parts)} JPEG image(s) have damaged data, so parts of their masks are wrong: {parts[0]} ...")
    errors = [header for name in pending if isinstance(header := headers[name], UserError)]
    return errors + [error for share in group.gather(failures + outputs.failures) for error in share]


if __name__ == "__main__":
    program.run_and_exit(main)
