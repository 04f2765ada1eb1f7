"""Train a semantic-segmentation model from scribbles or dense masks.

python train.py                                  # one device; without data, on the drawn demo
python train.py --dataset_path VOC2012           # your data
bash train_torchrun.sh --dataset_path VOC2012    # the same run on every GPU of this machine
torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint HOST:PORT train.py --dataset_path VOC2012
"""

import sys
from collections.abc import Callable
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch.utils.data import DataLoader

import config
import program
import schedule
from config import Config
from config.shared import LOCAL
from criterion import get_class_weights, get_criterion
from data.classes import Classes, read_classes
from data.sampler import TrainSampler
from distributed import checks as doctor
from distributed.group import Group, gradient_sync
from errors import STOPPED
from evaluation.metrics import confusion_matrix, scores, table
from evaluation.pictures import panel
from evaluation.predictor import Predictor
from loaders import batched
from losses.criterion import Criterion
from models.amp import autocast
from runs.hints import ResumeHint, next_steps
from runs.label_check import check_sample, check_validation
from runs.run import Run
from runs.state import TrainState
from tasks import hand_over
from utils import (
    get_loader,
    get_start,
    get_state,
    get_summary,
    join_group,
    prepare_demo_data,
    set_deterministic,
    share_batch,
)

TOO_MUCH = "lower --batchsize (and raise --accum_steps to keep the global batch) or --crop_size, or use --amp bf16 or --grad_checkpointing"
KEEP_STEPS = 3  # files of --save_step_frequency, if --keep does not say
NUM_PANELS = 4  # pictures for TensorBoard of each validation


def main(argv: list[str] | None = None) -> int:
    """Train as the flags say. Returns the exit status: 0, or errors.STOPPED when a signal ended the run early."""
    status = hand_over(argv)  # --task test or predict
    if status is not None:
        return status
    cfg = config.parse(argv)
    with (
        join_group(cfg) as group,
        ResumeHint(cfg, group) as resume_hint,
        program.advice(str(group.device), TOO_MUCH),
        Run(group, cfg.log_interval, wandb=cfg.wandb, quiet=cfg.log_level == "WARNING") as run,
    ):
        return train(share_batch(cfg, group), group, run, resume_hint)


def train(cfg: Config, group: Group, run: Run, resume_hint: ResumeHint) -> int:
    introduce(cfg, group, run)
    set_deterministic(cfg.deterministic)
    prepare_demo_data(cfg, group)
    train_loader, val_loader = get_loader(cfg, "train", group), get_loader(cfg, "val", group)
    assert isinstance(train_loader.sampler, TrainSampler)
    lists = {"training list": train_loader.dataset, "validation list": val_loader.dataset}
    doctor.check_setup(group, lists, train_loader.sampler.order(epoch=0))
    check_sample(cfg, group, run, train_loader.dataset, val_loader.dataset)  # type: ignore[arg-type]
    classes = read_classes(cfg.classes, cfg.numclasses)
    saved = run.find_checkpoint(cfg.logdir, cfg.name, cfg.resume, new_folder=cfg.reset_data_offset)
    class_weights = get_class_weights(cfg, group, train_loader, run, saved)
    criterion = get_criterion(cfg, run.info, class_weights)
    cfg, start = get_start(cfg, group, saved, run.info)
    if group.is_main:
        for line in get_summary(cfg, group, criterion).lines():
            run.info(line)
    state = get_state(cfg, group, train_loader, saved, run.info, start)
    state.class_weights = class_weights
    del start  # as large as the model
    has_best = run.open(
        cfg.logdir, cfg.name, config.dump(cfg), state.step, saved["run"] if saved and state.step else None
    )
    if not has_best:
        state.best_miou = -1.0  # also where the file was set aside, as it is past the step resumed from
    resume_hint.folder = run.folder
    run.info(f"writing to {run.folder}" + ("; there is nothing left to do" if schedule.end_of_run(cfg, state) else ""))
    doctor.check_weights(group, state.raw_model, buffers_averaged=state.samples == 0)

    stopped = False
    validation = partial(validate, cfg, group, run, state, val_loader, classes)
    while not schedule.end_of_run(cfg, state) and not stopped:
        finished = train_one_epoch(cfg, group, run, state, train_loader, criterion, validation)
        stopped = not finished or not finish_epoch(cfg, group, run, state, train_loader, validation)
    if stopped:
        save(cfg, group, run, state)
    run.wait_for_checkpoint()
    if stopped:
        signals = ", ".join(dict.fromkeys(reason for reason in group.gather(group.stop.reason) if reason))
        run.info(f"stopped by {signals} after step {state.step}, in epoch {state.epoch + 1}; {resume_hint}")
        return STOPPED
    if run.folder:  # on rank 0
        best = f"best mIoU {100 * state.best_miou:.2f}"
        skipped = int(state.scaler.counts[1])
        steps = f"{state.step} steps" + (f" ({skipped} of them skipped by --amp fp16)" if skipped else "")
        run.info(f"done: {state.epoch} epochs, {steps}, {best}; saved in {run.folder}")
        if 0 < skipped == state.step:  # fewer than the number that stops a run
            run.info(
                "warning: every step was skipped, so no weight changed: use --amp bf16 or none, or train for longer"
            )
        for line in next_steps(cfg.logdir, run.folder, val_loader.dataset.files):  # type: ignore[attr-defined]
            run.info(line)
    return 0


def train_one_epoch(
    cfg: Config, group: Group, run: Run, state: TrainState, loader: DataLoader, criterion: Criterion,
    validation: Callable[[], bool | None],
) -> bool:  # fmt: skip
    """The epoch from state.samples on; each step is one global batch. False when a signal broke it off."""
    sampler = loader.sampler
    assert isinstance(sampler, TrainSampler)
    sampler.set_position(state.epoch, state.samples)
    state.model.train()
    num_steps = min(sampler.steps, max(0, cfg.max_steps - state.step)) if cfg.max_steps else sampler.steps
    steps = islice(batched(loader, cfg.accum_steps), num_steps)
    title = f"epoch {state.epoch + 1}" + ("" if cfg.max_steps else f"/{cfg.epochs}")
    for micro_batches in run.steps(steps, total=num_steps, title=title):
        # Of the step before: here a run that was stopped meanwhile comes by again.
        if schedule.step_validation(cfg, state):
            settle(group, state)
            is_best = validation()
            if is_best is None:
                return False
            if is_best:
                save(cfg, group, run, state, "best.pt")
            state.model.train()
        # Every loss is divided by a count over the global batch, known before the first backward pass. Along with
        # the counts, all ranks learn whether one of them was told to stop.
        counts = torch.stack([criterion.counts(batch, state.raw_model.lorm_terms) for batch in micro_batches]).sum(0)
        *global_counts, num_told_to_stop = group.sum(
            torch.cat([counts, counts.new_tensor([bool(group.stop)])])
        ).tolist()
        if num_told_to_stop:
            return False
        parts = torch.zeros(len(criterion.weights), device=group.device)
        for number, batch in enumerate(micro_batches, start=1):
            classes = criterion.classes(batch)
            batch = {name: values.to(group.device, non_blocking=True) for name, values in batch.items()}
            with gradient_sync(state.model, enabled=number == cfg.accum_steps):
                with autocast(cfg.amp, group.device):
                    outputs = state.model(batch["image"], batch["pseudo"] if "lorm" in criterion.weights else None)
                if "lorm_terms" in outputs:  # --lorm_scope all: see Criterion
                    outputs["lorm_terms"] = group.sum(outputs["lorm_terms"]) * cfg.accum_steps
                micro_parts = criterion(outputs, batch, global_counts, classes)
                # DDP takes the mean over ranks of what is a sum over them.
                state.scaler.scale(criterion.total(micro_parts) * group.world_size).backward()
            parts = parts + micro_parts.detach()
        check = schedule.check_of_ranks(cfg, state)
        if check:
            unused = doctor.check_gradients(group, state.raw_model, unused_allowed=cfg.find_unused_parameters)
            if unused:
                run.info(f"no loss depends on {', '.join(unused)}")
        # With another global batch than before, an epoch's part counts, not the number of steps.
        position = state.epoch * sampler.steps_per_epoch + state.samples / sampler.global_batch
        lr = state.lr_at(state.step if cfg.max_steps else position)
        state.update(lr, sampler.global_batch)
        scaling = state.scaler.counts if state.scaler.is_enabled() else None
        losses = criterion.named(group.sum(parts))
        run.log_step(state.epoch + 1, state.step, losses, parts, lr, sampler.global_batch, scaling)
        if check:
            doctor.check_weights(group, state.raw_model, buffers_averaged=False)
        if schedule.step_checkpoint(cfg, state):
            save(cfg, group, run, state, f"step_{state.step:08d}.pt")
    return True


def finish_epoch(
    cfg: Config, group: Group, run: Run, state: TrainState, loader: DataLoader, validation: Callable[[], bool | None]
) -> bool:
    """Validate if due, and save. False when a signal broke that off; the epoch then is not done."""
    settle(group, state)
    if group.world_size > 1:
        run.info(f"epoch {state.epoch + 1}: weights are equal on all {group.world_size} ranks")
    names = []
    if schedule.epoch_validation(cfg, state):
        is_best = validation()
        if is_best is None:
            return False
        if is_best:
            names.append("best.pt")
    assert isinstance(loader.sampler, TrainSampler)
    if loader.sampler.is_through(state.samples):  # and not at --max_steps
        state.epoch, state.samples = state.epoch + 1, 0
        if schedule.epoch_checkpoint(cfg, state):
            names.append(f"epoch_{state.epoch:04d}.pt")
    save(cfg, group, run, state, *names)
    return True


def settle(group: Group, state: TrainState) -> None:
    """Make the models of all ranks one, whose only difference is batch norm's statistics; and check that they are."""
    for model in state.models:
        group.average_buffers(model)
    doctor.check_weights(group, state.raw_model, buffers_averaged=True)


@torch.inference_mode()
def validate(
    cfg: Config, group: Group, run: Run, state: TrainState, loader: DataLoader, classes: Classes
) -> bool | None:
    """Score the whole validation list, each image once and at its own size; rank 0 writes all scores.

    Returns whether the mIoU is the run's best so far, state.best_miou; None when a signal broke it off.
    """
    model = state.models[-1].eval()  # the average of weights, where there is one
    predictor = Predictor(model, batch_size=cfg.val_batchsize, amp=cfg.amp)
    confusion = torch.zeros(cfg.numclasses, cfg.numclasses, dtype=torch.int64, device=group.device)
    panels: list[np.ndarray] = []
    for batch in run.validation_bar(loader, total=len(loader)):
        if group.stop:
            break
        image, label = (batch[name].to(group.device, non_blocking=True) for name in ("image", "label"))
        predicted = predictor.labels(image)
        confusion += confusion_matrix(predicted, label, cfg.numclasses)
        if group.is_main and len(panels) < NUM_PANELS:
            of_batch = zip(*(values.cpu().numpy() for values in (image, label, predicted)), strict=True)
            shown = [
                panel(picture, truth, guess, classes.colours, cfg.background_class)
                for picture, truth, guess in of_batch
            ]
            panels += shown[: NUM_PANELS - len(panels)]
    if any(group.gather(bool(group.stop))):
        return None
    result = scores(group.sum(confusion))
    epoch = state.epoch + 1
    run.log_validation(epoch, state.step, result, classes.names, panels)
    at = f"epoch {epoch}" + (f", step {state.step}" if schedule.step_validation(cfg, state) else "")
    run.info(f"{at}: mIoU {100 * result['miou']:.2f}, pixel accuracy {100 * result['pixel_acc']:.2f}")
    if schedule.last_validation(cfg, state):
        run.info(table(result, classes.names))
    state.validated, best = state.step, state.best_miou
    if best < 0:  # the first validation
        check_validation(cfg, run, result["acc"])
    state.best_miou = max(best, result["miou"])
    return result["miou"] > best


def save(cfg: Config, group: Group, run: Run, state: TrainState, *names: str) -> None:
    """Write files of these names and then last.pt, in the background; every rank calls it."""
    logged = run.capture()
    doctor.check_finite(state.raw_model)
    content = state.capture(group) | {"run": logged, "config": config.as_dict(cfg)}
    keep = {"step": KEEP_STEPS if cfg.keep < 0 else cfg.keep, "epoch": max(0, cfg.keep)}
    run.save_checkpoint(content, [*names, "last.pt"], keep)


def introduce(cfg: Config, group: Group, run: Run) -> None:
    """Say where each process is and what it noticed about the flags, and check that all ranks have the same."""
    run.info(
        f"rank {group.rank}, local rank {group.local_rank}, world size {group.world_size}, device {group.device}, {group.kind}, "
        f"batch {cfg.batchsize} per process, {cfg.batchsize * cfg.accum_steps * group.world_size} global",
        every_rank=True,
    )
    if group.backend and cfg.distributed is None:
        run.info(f"joining the group of {group.launcher}; --no_distributed would not")
    for note in cfg.notes:
        run.info(note)
    doctor.check_flags(group, vars(cfg), LOCAL)


if __name__ == "__main__":
    sys.exit(program.run(main))
