"""The lines that train.py prints at the start and end of a run and of an epoch."""

import glob
import logging
import os
from pathlib import Path

from data.classes import Classes
from data.dataset import SegmentationDataset
from data.folders import left_out
from data.images.resize import suggest_long_side
from data.loader import Loader
from data.sampler import TrainSampler
from distributed.group import Group, Stopped
from flags import Config, as_words, changes, own_code, without_defaults
from flags.auto_recipe import FEW_STEPS
from flags.loss_weights import loss_weights
from models import RESNET
from support.best_score import class_label, deciding_score
from support.files import json_lines
from support.labels import single_object
from support.log import log
from support.progress import counted
from support.shell import document, python_command, quoted
from support.terminal import say
from support.user_code import is_own_network
from training.checkpoint import step_of
from training.plan import Plan
from training.record.folder import REPORT
from training.record.try_or_warn import TryOrWarn
from training.schedule import Schedule
from training.scores import Scores, missed_classes, table
from training.state import TrainState

OUT_OF_MEMORY_ADVICE = (
    "lower --batchsize (and raise --accum_steps to keep the global batch) or --crop_size, or use --amp bf16, "
    "--fused_blocks on or --grad_checkpointing; in validation, use --window such as 465, or lower --val_batchsize"
)


def log_launch(cfg: Config, group: Group) -> None:
    """Log the rank, device and batch of each process, and the notes from parsing the flags."""
    place = f"rank {group.rank}, local rank {group.local_rank}, world size {group.world_size}, device {group.device}, "
    place += "one process " if group.backend and group.world_size == 1 else ""
    place += f"in a group ({group.backend})" if group.backend else "no process group"
    log.log(logging.INFO if group.backend else logging.DEBUG, place)
    if not group.is_main and cfg.log_level != "WARNING":  # the loggers of these ranks are silent
        say(place)
    if group.backend and cfg.distributed is None:
        log.debug(f"joining the process group of {group.launcher}; with --no_distributed this process trains alone")
    for note in cfg.notes:
        log.info(note)


def log_start(
    plan: Plan,
    folder: Path | None,
    state: TrainState,
    schedule: Schedule,
    train_set: SegmentationDataset,
    val_loader: Loader,
    class_weights: list[float] | None,
) -> None:
    """Log everything that a run starts with. folder: the run's, or None on ranks other than 0, which log nothing."""
    if folder is None:
        return
    cfg = plan.cfg
    if plan.checkpoint:
        saved = plan.checkpoint.config.copy()
        saved.pop("pretrained", None)  # it has no effect in a resumed run
        log.info(f"flags changed since the checkpoint: {changes(saved, cfg) or 'none'}")
    log_data(cfg, train_set, val_loader)
    log_losses(cfg, class_weights)
    size = sum(parameter.numel() for parameter in state.raw_model.parameters())
    network = f"ResNet-{cfg.layers}" if cfg.backbone == RESNET else cfg.backbone
    network = "" if is_own_network(cfg.model_type) else f" on {network}"  # res50_ASPP may be on a ResNet-18
    millions = f"{size / 1e6:{'.1f' if size > 1e6 else '.2g'}}"
    log.info(f"model: {cfg.model_type}{network}, {millions} M parameters, --amp {cfg.amp}")
    factors = [part["lr_factor"] for part in state.optimizer.param_groups]
    rates = f"{len(factors)} parameter group(s), lr x {min(factors):.3g} to x {max(factors):.3g}"
    log.log(logging.INFO if len(factors) > 1 else logging.DEBUG, f"optimizer: {cfg.optimizer}, {rates}")
    log_schedule(schedule)
    if not schedule.is_over(state):
        log_left_out(schedule.sampler, state)
    named = Path(cfg.logdir, cfg.name)
    place = f"{folder}, as {named} has an earlier run" if plan.folder is None and folder != named else str(folder)
    log.info(f"writing to {place}" + ("; there is nothing left to do" if schedule.is_over(state) else ""))


def log_data(cfg: Config, train_set: SegmentationDataset, val_loader: Loader) -> None:
    """Log the data set's path, its numbers of images and classes, and what is left out. Warn of large images."""
    images = f"{len(train_set)} training and {len(val_loader.dataset)} validation images"
    is_named = cfg.classes not in ("", "binary")
    unnamed = "" if is_named else "; to name them, list the names in a text file, one a line: --classes FILE"
    log.info(f"data: {cfg.dataset_path}, {images}, {cfg.numclasses} classes{unnamed}")
    for path, note in {} if train_set.has_list else left_out(train_set.folders["image"]).items():
        log.warning(f"{path}: {note}")
    _, advice = suggest_long_side(val_loader.batch_sampler.sizes, cfg.crop_size)
    if advice and not (cfg.long_side or cfg.window):
        log.warning(advice)


def log_losses(cfg: Config, class_weights: list[float] | None) -> None:
    """Log the weights of losses and classes. class_weights: None if no loss uses them."""
    weights = loss_weights(cfg)
    rises = "; the weight of crf rises from 0 in the first half of the run" if "crf" in weights else ""
    log.info(f"losses: {' + '.join(f'{weight:g} {term}' for term, weight in weights.items())}{rises}")
    if class_weights:
        values = ", ".join(f"{number}: {weight:.4g}" for number, weight in enumerate(class_weights))
        log.info(f"class weights (--class_weights {cfg.class_weights}): {values}")
    elif cfg.class_weights != "none":
        log.warning(f"--class_weights {cfg.class_weights} is not used: no loss is ce")


def log_schedule(schedule: Schedule) -> None:
    """Log the global batch, the number of steps and the peak learning rate, and how they are computed."""
    cfg, sampler = schedule.cfg, schedule.sampler
    product = f" = {cfg.batchsize}" if sampler.global_batch > cfg.batchsize else ""
    product += f" x {cfg.accum_steps} (--accum_steps)" if cfg.accum_steps > 1 else ""
    product += f" x {sampler.num_replicas} processes" if sampler.num_replicas > 1 else ""
    lengths = ("epochs", "max_steps", "warmup_epochs")
    set_by_user = [f"--{name}" for name in lengths if name in cfg.given]
    is_short = schedule.total_steps < FEW_STEPS and bool(set_by_user) and not schedule.is_resumed
    log.log(
        logging.WARNING if is_short else logging.INFO,
        f"global batch {sampler.global_batch}{product}, {counted(sampler.steps_per_epoch, 'step')} an epoch, "
        f"{counted(schedule.total_steps, 'step')} in all, lr {schedule.peak_lr:g}"
        + (f"; too few to train well: drop {' and '.join(set_by_user)}, and the recipe chooses more" * is_short),
    )
    if schedule.lr_scale != 1:
        product = f"--lr {cfg.lr:g} x {schedule.lr_scale:g} (--lr_scaling {cfg.lr_scaling})"
        remedy = "" if schedule.is_resumed else "; if --lr is already scaled for this batch, set --lr_scaling none"
        log.info(f"lr {schedule.peak_lr:g} = {product}{remedy}")
    if sampler.global_batch != schedule.origin["global_batch"]:
        began = f"the run began with a global batch of {schedule.origin['global_batch']}"
        log.info(f"{began}: --lr_scaling {cfg.lr_scaling} multiplies the lr by {schedule.batch_scale:g}")


def log_left_out(sampler: TrainSampler, state: TrainState) -> None:
    """Log how many samples of its epoch a resumed run leaves out, if its global batch makes them more than usual."""
    left_out = (sampler.epoch_length - state.samples) % sampler.global_batch
    if left_out > sampler.epoch_length % sampler.global_batch:  # each epoch leaves out as many as that
        rest = f"{counted(left_out, 'sample')}, fewer than the global batch of {sampler.global_batch}"
        log.info(f"epoch {state.epoch + 1} leaves out its last {rest}")


def epoch_title(cfg: Config, state: TrainState) -> str:
    return f"epoch {state.epoch + 1}" + ("" if cfg.max_steps else f"/{cfg.epochs}")


def score_text(name: str, score: float, scores: Scores, is_best: bool, state: TrainState) -> str:
    """Return a validation's scores as one line, which starts with the score that decides best.pt."""
    title = name if name == "mIoU" else f"{name}:"  # the name may end with a class number
    text = f"{title} {100 * score:.2f} ({'best' if is_best else f'best {100 * state.best_score:.2f}'}), "
    text += "" if name == "mIoU" else f"mIoU {100 * scores['miou']:.2f}, "
    return f"{text}pixel accuracy {100 * scores['pixel_acc']:.2f}"


def log_unpredicted_classes(cfg: Config, scores: Scores, classes: Classes) -> None:
    """Log the classes that a validation never predicted, or warn of a single object that no validation mask has."""
    number = single_object(len(classes.names), cfg.background_class)
    if number is not None and not scores["share"][number]:
        name = class_label(number, classes.names)
        log.warning(
            f"no validation mask has {name}, so the mIoU decides best.pt: put images with it into {cfg.val_split}"
        )
    elif missed := missed_classes(scores, classes.names):
        log.info(missed)


def log_stop(cfg: Config, folder: Path | None, state: TrainState, group: Group, stop: Stopped) -> None:
    """Log where a run was stopped, and the command that resumes it. folder: see log_end()."""
    log_report(folder)
    hint = resume_hint(cfg, group, folder)
    log.info(f"stopped by {stop} after step {state.step}, in epoch {state.epoch + 1}; {hint}")


def log_end(
    cfg: Config,
    folder: Path | None,
    state: TrainState,
    val_set: SegmentationDataset,
    classes: Classes,
    try_or_warn: TryOrWarn,
) -> None:
    """Log the scores of a finished run's best.pt, and the commands that use it, or last.pt if the run has no best.pt.

    folder: None on ranks other than 0.
    """
    if folder is None:
        return
    best = folder / "best.pt"
    file = best if best.is_file() else folder / "last.pt"
    name = try_or_warn("the table of scores", lambda: _log_scores(best, cfg, classes)) or "score"
    score = f"best {name} {100 * state.best_score:.2f}" if file == best else "no validation"
    skipped = int(state.scaler.counts[1])
    steps = counted(state.step, "step") + (f" ({skipped} of them skipped by --amp fp16)" if skipped else "")
    epochs = "" if cfg.max_steps else f"{counted(state.epoch, 'epoch')}, "
    log.info(f"done: {epochs}{steps}, {score}; saved in {folder}")
    if state.stops_early(cfg.patience):
        log.info(
            f"stopped early: {counted(state.validations_since_best, 'validation')} in a row did not improve the best "
            f"score (--patience {cfg.patience}); to continue, resume with a greater --patience, or with 0"
        )
    log_report(folder)
    folders = {kind: {files[kind].parent for files in val_set.files} for kind in ("image", "label")}
    endings = {kind: {files[kind].suffix for files in val_set.files} for kind in ("image", "label")}
    images = os.path.commonpath(folders["image"])
    ending, *others = endings["image"]
    if folders["image"] == folders["label"] == {Path(images)} and not others and ending not in endings["label"]:
        images = os.path.join(glob.escape(images), f"*{ending}")  # not the masks beside the images
    checkpoint = ["--checkpoint", file, *own_code.words({"model_type": cfg.model_type})]
    predict = [*checkpoint, "--input", images, "--output", folder / "predictions", "--overlay"]
    boards = cfg.logdir if folder.is_relative_to(cfg.logdir) else folder  # a resumed run stays where it was
    log.info(f"curves:  {python_command('-m', 'tensorboard.main', '--logdir', boards)}")
    log.info(f"scores:  {python_command('evaluate.py', *checkpoint)}")
    log.info(f"predict: {python_command('predict.py', *predict)}")
    log.info(f"export:  {python_command('export.py', *checkpoint)}")


def _log_scores(best: Path, cfg: Config, classes: Classes) -> str:
    """Log the table of best.pt's scores. Return the name of the score that decided, "" without scores."""
    name = ""
    lines = [line for line in json_lines(best.with_name("metrics.jsonl")) if line is not None]
    validations = [line for line in lines if line["kind"] == "val"]
    for scores in [line for line in validations if line["step"] == step_of(best)][-1:]:
        log.info(f"{best}, step {scores['step']}:\n{table(scores, classes.names)}")
        name, _ = deciding_score(scores, classes.names, cfg.background_class)
        is_object = single_object(len(classes.names), cfg.background_class) is not None
        if is_object and missed_classes(scores, classes.names):
            page = document("docs/one_object.md#if-the-object-is-not-found")
            log.info(f"{name} is too low to be of use: {page} says what to try")
        # Few validations, or a few steps, say nothing about --lr.
        first, *others = (deciding_score(line, classes.names, cfg.background_class)[1] for line in validations)
        is_first = scores["step"] == validations[0]["step"]
        if len(others) > 1 and is_first and others[-1] < first and validations[-1]["step"] >= FEW_STEPS:
            fell = f"from {100 * first:.2f} in the first of {len(validations)} validations, the best one, to "
            log.info(f"the score fell {fell}{100 * others[-1]:.2f} in the last: a smaller --lr may help")
    return name


def log_report(folder: Path | None) -> None:
    """Log where the report is, if there is one. folder: see log_end()."""
    if folder and (folder / REPORT).is_file():
        log.info(f"report:  {folder / REPORT}")


def resume_hint(cfg: Config, group: Group, folder: Path | None) -> str:
    """Return a command that resumes the run, or else the words to add to the first start's command.

    A resumed run reads its other flags from config.yaml beside the checkpoint.
    """
    words = ["--resume", os.path.join(str(folder), "last.pt"), *own_code.words(vars(cfg))]
    if group.world_size == 1:
        return f"to resume: {python_command('train.py', *words)}"
    return f"to resume, start all processes as before and add: {quoted(words)}"


def data_check_command(cfg: Config) -> str:
    """Return the command line that checks this run's data set, without --numclasses, which may be wrong."""
    names = "classes list_path image_path train_path val_path pseudo_path image_suffix label_suffix label_map"
    names += " train_split val_split bands stretch value_range"
    values = {name: getattr(cfg, name) for name in names.split()}
    words = [cfg.dataset_path, "--dataset", cfg.dataset, *as_words(without_defaults(values))]
    return python_command("-m", "tools.check", *words)
