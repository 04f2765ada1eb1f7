"""Score a checkpoint on a split of its data set.

python evaluate.py --checkpoint log/demo/best.pt                        # as in training: whole images, one scale
python evaluate.py --checkpoint log/demo/best.pt --scales 0.75 1 1.25 --flip --report report
torchrun --standalone --nproc_per_node 8 evaluate.py --checkpoint log/cdsp_release/last.pt \
    --long_side 512 --scales 0.5 0.75 1 1.25 1.5 1.75 2 --window 465    # as the CDSP paper
"""

import dataclasses
import json
import logging
from pathlib import Path

from config.programs import EVALUATE, EvaluateFlags
from support import program

if __name__ == "__main__":
    program.check_command_line(EVALUATE.command_line)  # --help and wrong flags answer here, before torch is imported

import numpy as np

from config.flags import per_rank
from data.classes import Classes
from data.dataset import SegmentationDataset
from data.images import label_png
from data.loader import EvalLoader
from distributed import checks
from distributed.group import Group, Stopped
from evaluation import metrics
from evaluation.report import describe_protocol, page
from evaluation.scoring import Result, compare, gather_predictions, read_examples, score
from runs.log import progress_bar, start_logging
from support.errors import STOPPED, UserError
from support.files import check_not_folder, check_writable, write_atomic
from trained import OUT_OF_MEMORY_ADVICE, TrainedModel, inference_settings, read_flags
from utils import get_eval_loader, join_group, prepare_demo_data, resolve_amp

log = logging.getLogger("segtrain")


def main(argv: list[str] | None = None) -> int:
    """Evaluate with the flags of a command line (argv; None: sys.argv). Returns 0, or errors.STOPPED after a signal."""
    return run(*read_flags(EVALUATE, argv))


def run(flags: EvaluateFlags, overrides: dict) -> int:
    """Evaluate the checkpoints on all ranks. Returns 0, or errors.STOPPED if a signal stopped the evaluation.

    overrides: {flag: value} that replaces the checkpoint's. Raises UserError for wrong flags or data.
    """
    with join_group(flags) as group, program.advice(str(group.device), OUT_OF_MEMORY_ADVICE):
        start_logging(flags.log_level, is_main=group.is_main)
        try:
            evaluate(flags, overrides, group)
        except Stopped:
            masks = f"; {flags.save_dir} has the masks of the images scored so far" if flags.save_dir else ""
            log.info(f"stopped by a signal before scoring all images{masks}")
            return STOPPED
    return 0


def evaluate(flags: EvaluateFlags, overrides: dict, group: Group) -> None:
    """Score --checkpoint and --compare, and write the files that the flags ask for. Raises Stopped after a signal.

    overrides: {flag: value} that replaces the checkpoint's. Collective.
    """
    checks.check_flags(group, vars(flags), per_rank(flags))
    models = load_models(flags, overrides, group)
    cfg = models[0].cfg
    flags = dataclasses.replace(flags, split=flags.split or cfg.val_split)
    classes = models[0].classes
    prepare_demo_data(cfg, group)
    loader = get_eval_loader(cfg, flags.split, group)
    dataset = loader.dataset
    checks.check_setup(group, {f"{flags.split} list": dataset})
    check_outputs(flags, dataset, group)

    results = []
    for model in models:
        save_dir = flags.save_dir if model is models[0] else ""
        results.append(score_checkpoint(model, flags, loader, group, classes, save_dir))
        log.info(metrics.table(results[-1].scores_with_interval, classes.names))
    comparison = compare(*results) if flags.compare else None
    if comparison:
        values = (comparison["difference"], *comparison["interval"], comparison["higher"])
        difference, low, high, higher = (100 * value for value in values)
        log.info(
            f"mIoU gain of {flags.checkpoint} over {flags.compare}: {difference:+.2f} points, 95 % interval {low:+.2f} "
            f"to {high:+.2f}, above zero in {higher:.1f} % of the bootstrap samples (paired, over images)"
        )
    predictions = gather_predictions(results, group) if flags.report else {}
    if flags.save_dir:
        log.info(f"masks: {flags.save_dir}")
    if group.is_main and flags.json:
        content = as_json(flags, models[0], results[0], classes) | {"comparison": comparison}
        write_atomic(Path(flags.json), json.dumps(content, indent=1), parents=True)
        log.info(f"scores: {flags.json}")
    if group.is_main and flags.report:
        if comparison:
            comparison |= {"names": [str(model.path) for model in models], "how": how(models[1], flags)}
        examples, step = read_examples(predictions, dataset), models[0].content.get("step", "unknown")
        text = page(models[0].path, step, cfg, flags.split, how(models[0], flags), results[0], examples, comparison)
        path = Path(flags.report) / "index.html"
        write_atomic(path, text, parents=True)
        log.info(f"report: {path}")


def load_models(flags: EvaluateFlags, overrides: dict, group: Group) -> list[TrainedModel]:
    """Return the models of --checkpoint and, if set, --compare, with one precision on all ranks. Collective.

    Raises UserError if the two models differ in the number of classes.
    """
    models = [TrainedModel(path, overrides) for path in (flags.checkpoint, flags.compare)[: 1 + bool(flags.compare)]]
    for model in models:
        model.cfg = dataclasses.replace(model.cfg, amp=resolve_amp(model.cfg.amp, group))
    first, last = models[0].cfg, models[-1].cfg
    if first.numclasses != last.numclasses:
        raise UserError(
            f"--compare {flags.compare}: has {last.numclasses} classes, but --checkpoint has {first.numclasses}"
        )
    return models


def check_outputs(flags: EvaluateFlags, dataset: SegmentationDataset, group: Group) -> None:
    """Raise UserError if --save_dir, --report or --json cannot be written, or is inside the data set."""
    check_not_folder(flags.json, "--json")
    outputs = {"--save_dir": flags.save_dir, "--report": flags.report, "--json": flags.json and Path(flags.json).parent}
    for name, folder in outputs.items():
        for data in dataset.folders.values() if folder else ():
            if Path(folder).resolve().is_relative_to(data.resolve()):
                raise UserError(f"{name} {folder}: is in the data set ({data}), whose files it would overwrite")
        if folder and group.is_main:
            check_writable(Path(folder), name)


def score_checkpoint(
    model: TrainedModel, flags: EvaluateFlags, loader: EvalLoader, group: Group, classes: Classes, save_dir: str
) -> Result:
    """Return the Result of one checkpoint, and write its predictions as save_dir/NAME.png unless save_dir is "".

    Collective. Raises UserError if no pixel of the split is labelled.
    """
    names = loader.dataset.names
    predictor = model.predictor(flags.weights, group.device, **inference_settings(flags))
    checks.check_weights(group, predictor.model, buffers_averaged=True)
    log.info(f"{model.path} on {len(names)} images of {flags.split}: {how(model, flags)}")

    def save(name: str, predicted: np.ndarray) -> None:
        write_atomic(Path(save_dir) / f"{name}.png", label_png(predicted, classes.colours), parents=True)

    result = score(
        predictor,
        progress_bar(loader, total=len(loader), title=flags.split, unit="batch", enabled=group.is_main),
        names,
        model.cfg.numclasses,
        group,
        keep="none" if not flags.report else "all" if flags.compare else "shown",
        save=save if save_dir else None,
    )
    if not result.scores["pixels"]:
        raise UserError(f"--split {flags.split}: none of its masks has a labelled pixel: there is nothing to score")
    return result


def how(model: TrainedModel, flags: EvaluateFlags) -> str:
    """Return one line of text on how a checkpoint is scored."""
    return describe_protocol(model.cfg, model.resolve_weights(flags.weights), flags.scales, flip=flags.flip)


def as_json(flags: EvaluateFlags, model: TrainedModel, result: Result, classes: Classes) -> dict:
    """Return the content of --json as a dict: every score, the confusion matrix, and the scores of each image."""
    per_image = zip(result.names, metrics.image_scores(result.counts), strict=True)
    return {
        "checkpoint": str(model.path),
        "split": flags.split,
        "how": how(model, flags),
        "classes": classes.names,
        **result.scores_with_interval,
        "confusion": result.confusion.tolist(),
        "per_image": [{"name": name, **scores} for name, scores in per_image],
    }


if __name__ == "__main__":
    program.run_and_exit(main)
