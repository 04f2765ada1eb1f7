"""Score a checkpoint on a split of its data set.

python evaluate.py --checkpoint log/demo/best.pt                        # as in training: whole images, one scale
python evaluate.py --checkpoint log/demo/best.pt --scales 0.75 1 1.25 --flip --report report
torchrun --standalone --nproc_per_node 8 evaluate.py --checkpoint log/cdsp_release/last.pt \
    --long_side 512 --scales 0.5 0.75 1 1.25 1.5 1.75 2 --window 465    # as the CDSP paper
"""

import contextlib
import dataclasses
import json
import math
import sys
import time
from pathlib import Path

import program
from config.programs import EVALUATE, EvaluateFlags

if __name__ == "__main__":
    program.check_command_line(EVALUATE.command_line)  # --help and wrong flags answer here, before torch is imported

import numpy as np
import torch

from config.flags import per_rank
from data.classes import Classes, read_classes
from data.dataset import SegmentationDataset
from distributed import checks as doctor
from distributed.group import Group
from errors import STOPPED, UserError
from evaluation import metrics
from evaluation.predictions import Predictions, to_show
from evaluation.report import Example, write_report
from evaluation.scoring import Result, compare, score
from files import check_writable, write_atomic
from runs.terminal import Terminal
from trained import TOO_MUCH, Checkpoint, read_flags
from utils import get_eval_loader, join_group, prepare_demo_data


def main(argv: list[str] | None = None) -> int:
    """Evaluate as the flags say. Returns the exit status: 0, or errors.STOPPED when a signal ended it."""
    return run(*read_flags(EVALUATE, argv))


def run(flags: EvaluateFlags, changes: dict) -> int:
    """Evaluate. changes: flags that override the checkpoint's."""
    with join_group(flags) as group, program.advice(str(group.device), TOO_MUCH):
        return evaluate(flags, changes, group, Terminal(group, quiet=flags.log_level == "WARNING"))


def evaluate(flags: EvaluateFlags, changes: dict, group: Group, terminal: Terminal) -> int:
    doctor.check_flags(group, vars(flags), per_rank(flags))
    if not flags.split:
        raise UserError("--split is empty: name a list or a split folder, such as val")
    checkpoints = [Checkpoint(flags.checkpoint, changes, terminal.info)]
    if flags.compare:
        checkpoints.append(Checkpoint(flags.compare, changes, terminal.info))
    cfg, other = checkpoints[0].cfg, checkpoints[-1].cfg
    if other.numclasses != cfg.numclasses:
        raise UserError(
            f"--compare {flags.compare}: {other.numclasses} classes, not {cfg.numclasses} as --checkpoint has"
        )
    classes = read_classes(cfg.classes, cfg.numclasses)
    prepare_demo_data(cfg, group)
    one_image = dataclasses.replace(cfg, val_batchsize=1)  # its windows fill a forward pass
    loader = get_eval_loader(one_image if flags.window else cfg, flags.split, group)
    dataset = loader.dataset
    doctor.check_setup(group, {f"{flags.split} list": dataset})
    check_outputs(flags, dataset, group)

    predictions, results = [], []
    for checkpoint in checkpoints:
        save_dir = flags.save_dir if checkpoint is checkpoints[0] else ""
        keep = Predictions(dataset.names, classes.colours, save_dir=save_dir, keep=bool(flags.report))
        predictor = checkpoint.predictor(flags, group.device)
        doctor.check_weights(group, predictor.model, buffers_averaged=True)
        terminal.info(f"{checkpoint.path} on {len(dataset)} images of {flags.split}: {describe(checkpoint, flags)}")
        batches = terminal.bar(loader, total=len(loader), title=flags.split, unit="batch")
        result = score(predictor, batches, num_images=len(dataset), num_classes=cfg.numclasses, group=group, keep=keep)
        if result is None:
            terminal.info("stopped by a signal before all images were scored; only --save_dir has some of them")
            return STOPPED
        if not result.scores["pixels"]:
            raise UserError(f"--split {flags.split}: none of its masks has a labelled pixel: there is nothing to score")
        predictions.append(keep)
        results.append(result)
        say_scores(terminal, result, classes)
    comparison = compare(*results) if len(results) == 2 else None
    if comparison:
        say_comparison(terminal, flags, comparison)
    shown = [kept.gather(group, to_show(results)) for kept in predictions] if flags.report else []
    if flags.save_dir:
        terminal.info(f"masks: {flags.save_dir}")
    if group.is_main and flags.json:
        content = as_json(flags, checkpoints[0], results[0], classes, dataset.names) | {"comparison": comparison}
        write_atomic(Path(flags.json), json.dumps(content, indent=1).encode(), parents=True)
        terminal.info(f"scores: {flags.json}")
    if group.is_main and flags.report:
        page = report(flags, checkpoints, results, comparison, classes, dataset, shown)
        terminal.info(f"report: {page}")
    return 0


def check_outputs(flags: EvaluateFlags, dataset: SegmentationDataset, group: Group) -> None:
    """Raise UserError where something cannot be written, or would be written among the data."""
    json_folder = flags.json and str(Path(flags.json).parent)
    if flags.json and Path(flags.json).is_dir():
        raise UserError(f"--json {flags.json}: is a folder: name a file")
    for name, chosen in (("--save_dir", flags.save_dir), ("--report", flags.report), ("--json", json_folder)):
        if not chosen:
            continue
        for data in dataset.folders.values():
            if Path(chosen).resolve().is_relative_to(data.resolve()):
                raise UserError(
                    f"{name} {chosen}: lies in the data set ({data}), of which files would be lost: name another"
                )
        if group.is_main:
            check_writable(Path(chosen), name)


def say_scores(terminal: Terminal, result: Result, classes: Classes) -> None:
    terminal.info(metrics.table(result.scores, classes.names, result.scores["boundary_iou"]))
    miou, low, high = (100 * value for value in (result.scores["miou"], *result.scores["miou_ci"]))
    terminal.info(f"  mIoU {miou:.2f}, 95 % interval over images {low:.2f} to {high:.2f}")


def say_comparison(terminal: Terminal, flags: EvaluateFlags, comparison: dict) -> None:
    difference, low, high, higher = (
        100 * value for value in (comparison["difference"], *comparison["interval"], comparison["higher"])
    )
    terminal.info(
        f"{flags.compare} against {flags.checkpoint}: mIoU {difference:+.2f}, 95 % interval {low:+.2f} to {high:+.2f}, "
        f"higher in {higher:.1f} % of the samples (bootstrap over images, paired)"
    )


def describe(checkpoint: Checkpoint, flags: EvaluateFlags) -> str:
    """How it is scored, in a line."""
    size = f"long side {flags.long_side}" if flags.long_side else "own size"
    windows = f"windows of {flags.window}, step {flags.stride_rate:.3g}" if flags.window else "whole images"
    scales = ("scales " if len(flags.scales) > 1 else "scale ") + " ".join(f"{scale:g}" for scale in flags.scales)
    weights = checkpoint.state_dict(flags.weights)[0]
    return f"{weights} weights, {size}, {scales}, {windows}" + (", mirrored too" if flags.flip else "")


def as_json(flags: EvaluateFlags, checkpoint: Checkpoint, result: Result, classes: Classes, names: list[str]) -> dict:
    per_image = zip(names, result.image_miou.tolist(), result.image_iou.tolist(), strict=True)
    return {
        "checkpoint": str(checkpoint.path), "split": flags.split, "how": describe(checkpoint, flags),
        "classes": classes.names, **result.scores, "confusion": result.confusion.tolist(),
        "per_image": [{"name": name, "miou": or_none(miou), "iou": [or_none(value) for value in iou]}
                      for name, miou, iou in per_image],
    }  # fmt: skip


def or_none(value: float) -> float | None:
    """JSON has no nan."""
    return None if math.isnan(value) else value


def read_metrics(path: Path) -> list[dict]:
    """The lines of a run's metrics.jsonl; [] if there is none. A line that is being written, or damaged, is left out."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []:
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict) and line.get("kind") in ("train", "val")]


def report(
    flags: EvaluateFlags, checkpoints: list[Checkpoint], results: list[Result], comparison: dict | None, classes: Classes,
    dataset: SegmentationDataset, shown: list[dict[int, np.ndarray]],
) -> Path:  # fmt: skip
    """Write the web page. shown: {index: predicted label map} of each checkpoint."""
    checkpoint, result = checkpoints[0], results[0]
    examples = []
    for index in shown[0]:
        maps, second = dataset[index], len(results) == 2
        examples.append(
            Example(
                dataset.names[index], maps["image"], maps["label"], shown[0][index],
                miou=float(result.image_miou[index]),
                iou=[or_none(value) for value in result.image_iou[index].tolist()],
                other=shown[1][index] if second else None,
                other_miou=float(results[1].image_miou[index]) if second else None,
            )
        )  # fmt: skip
    facts = {
        "checkpoint": f"{checkpoint.path}, step {checkpoint.content.get('step', 'unknown')}",
        "data": f"{checkpoint.cfg.dataset_path}, {flags.split}, {len(dataset)} images",
        "how": describe(checkpoint, flags),
        "model": f"{checkpoint.cfg.model_type}, ResNet-{checkpoint.cfg.layers}, {checkpoint.cfg.numclasses} classes",
        "written": f"{time.strftime('%Y-%m-%d %H:%M')} by torch {torch.__version__}",
    }
    if comparison:
        facts["compared with"] = f"{checkpoints[1].path}, {describe(checkpoints[1], flags)}"
    return write_report(
        Path(flags.report),
        title=f"{checkpoint.path} on {flags.split}",
        facts=facts,
        scores=result.scores,
        class_names=classes.names,
        colours=classes.colours,
        background=checkpoint.cfg.background_class,
        confusion=result.confusion.numpy(),
        curves=read_metrics(checkpoint.path.parent / "metrics.jsonl"),
        examples=examples,
        comparison=comparison and comparison | {"names": [str(each.path) for each in checkpoints]},
    )


if __name__ == "__main__":
    sys.exit(program.run(main))
