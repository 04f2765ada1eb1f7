"""Train a semantic-segmentation model from scribbles or dense masks.

python train.py                                  # one device; without data, on the drawn demo
python train.py --dataset_path VOC2012           # your data
bash train_torchrun.sh --dataset_path VOC2012    # the same run on every GPU of this machine
torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint HOST:PORT train.py --dataset_path VOC2012
"""

import logging
from itertools import islice, takewhile

import config
from support import program

if __name__ == "__main__":
    program.check_command_line(config.parse)  # --help and wrong flags answer here, before torch is imported

import torch

from builders.augmentation import draw_samples
from config import Config
from config.flags import per_rank
from data.classes import Classes, read_classes
from data.label_check import check_sample, check_validation
from data.loader import EvalLoader, TrainLoader, batched
from distributed import checks
from distributed.group import Group, Stopped, gradient_sync
from evaluation.metrics import Scores
from evaluation.pictures import panel
from evaluation.predictor import Predictor
from evaluation.scoring import score
from losses.criterion import Criterion, to_device
from models.foreground import foreground_of
from optimization.amp import autocast
from runs import messages, schedule
from runs.messages import data_check_command, epoch_title, loader_advice, log_data, log_launch, score_text
from runs.run import Run
from runs.schedule import LearningRate
from runs.state import TrainState
from support.errors import STOPPED
from tasks import run_task
from utils import (
    get_class_weights,
    get_criterion,
    get_loader,
    get_model,
    get_optimizer,
    get_recipe,
    get_start,
    get_state,
    get_summary,
    join_group,
    prepare_demo_data,
    set_deterministic,
    share_batch,
)

OUT_OF_MEMORY_ADVICE = (
    "lower --batchsize (and raise --accum_steps to keep the global batch) or --crop_size, or use --amp bf16 or "
    "--grad_checkpointing; in validation, use --window such as 465, or lower --val_batchsize"
)
NUM_EXAMPLES = 4  # pictures of each validation on the boards

log = logging.getLogger("segtrain")


def main(argv: list[str] | None = None) -> int:
    """Train as the flags say, or run --task test or predict. Return the exit status: 0, or STOPPED after a signal.

    argv: the command line's words; None: sys.argv.
    """
    cfg = config.parse(argv)
    if cfg.task != "train":
        return run_task(cfg, argv)
    with join_group(cfg) as group, Run(cfg, group) as run, program.advice(str(group.device), OUT_OF_MEMORY_ADVICE):
        return train(cfg, group, run)


def train(cfg: Config, group: Group, run: Run) -> int:
    log_launch(cfg, group)
    checks.check_flags(group, vars(cfg), per_rank(cfg))
    set_deterministic(cfg.deterministic)
    prepare_demo_data(cfg, group)
    saved = run.find_checkpoint()  # the content to resume from, or None
    cfg = share_batch(get_recipe(config.keep_image_stats(cfg, saved), group, saved), group)
    train_loader, val_loader = get_loader(cfg, "train", group), get_loader(cfg, "val", group)
    train_set, val_set, sampler = train_loader.dataset, val_loader.dataset, train_loader.sampler
    checks.check_setup(group, {"training list": train_set, "validation list": val_set}, sampler.order(epoch=0))
    command = data_check_command(cfg)
    check_sample(train_set.files, val_set.files, cfg.numclasses, command, group.map, train_set.label_map)
    classes = read_classes(cfg.classes, cfg.numclasses)
    log_data(cfg, train_set, val_loader)

    cfg, start = get_start(cfg, group, saved)
    raw_model, model = get_model(cfg, group, start)
    del start  # free it: it is as large as the model
    class_weights = get_class_weights(cfg, group, train_set, saved)
    criterion = get_criterion(cfg, group, raw_model, class_weights)
    lr_schedule = LearningRate(cfg, sampler, saved)
    optimizer = get_optimizer(cfg, raw_model, group, lr_schedule.peak)
    state = get_state(cfg, group, raw_model, model, optimizer, saved, lr_schedule.origin, train_set, class_weights)
    if group.is_main:
        get_summary(cfg, group, criterion, val_loader).log(cfg.model_type, group.device)
    lr_schedule.log()
    run.open(cfg, state, saved, lambda: draw_samples(cfg, train_loader, classes))
    del saved  # free it: it is as large as the model and its momentum
    run.metrics.pace.start(lr_schedule.total_steps - lr_schedule.position(state))
    log.info(f"writing to {run.folder}" + ("; there is nothing left to do" if schedule.end_of_run(cfg, state) else ""))
    # Within an epoch, each rank has its own batch-norm statistics.
    checks.check_weights(group, raw_model, buffers_averaged=state.samples == 0)

    try:
        while not schedule.end_of_run(cfg, state):
            train_one_epoch(cfg, group, run, state, train_loader, val_loader, criterion, lr_schedule, classes)
            finish_epoch(cfg, group, run, state, train_loader, val_loader, classes)
    except Stopped as stop:  # raised on all ranks at the same step
        run.save(state)
        run.wait_for_checkpoint()
        messages.log_report(run.folder)
        log.info(f"stopped by {stop} after step {state.step}, in epoch {state.epoch + 1}; {run.resume_hint()}")
        return STOPPED
    run.wait_for_checkpoint()
    messages.log_end(cfg, run.folder, state, val_set, classes)
    return 0


def train_one_epoch(
    cfg: Config, group: Group, run: Run, state: TrainState, loader: TrainLoader, val_loader: EvalLoader,
    criterion: Criterion, lr_schedule: LearningRate, classes: Classes,
) -> None:  # fmt: skip
    """Train to the end of the epoch, of --max_steps or of --patience. Each step is one global batch.

    Validates and saves checkpoints between steps if due. Raises Stopped on all ranks if any rank got a signal.
    """
    loader.sampler.set_position(state.epoch, state.samples)
    num_steps = schedule.steps_left(cfg, state, loader.sampler)
    steps = takewhile(lambda _: not state.stops_early(cfg.patience), batched(loader, cfg.accum_steps))
    start_training(cfg, state)
    for micro_batches in run.metrics.steps(islice(steps, num_steps), total=num_steps, title=epoch_title(cfg, state)):
        # Validate after the previous step only now: a run stopped during this validation repeats it when resumed.
        if schedule.step_validation(cfg, state):
            average_batch_norm(group, state)
            result, is_best = validate(cfg, group, run, state, val_loader, classes)
            log.info(f"{epoch_title(cfg, state)}, step {state.step}: {score_text(result, is_best, state)}")
            if is_best:
                run.save(state, "best.pt")
            if state.stops_early(cfg.patience):
                continue  # to the end of `steps`
            start_training(cfg, state)
        train_step(cfg, group, run, state, criterion, micro_batches, lr_schedule)
        if schedule.step_checkpoint(cfg, state):
            run.save(state, f"step_{state.step:08d}.pt")


def start_training(cfg: Config, state: TrainState) -> None:
    """Put the model into training mode, and let cuDNN measure its algorithms: all crops have one size."""
    state.model.train()
    torch.backends.cudnn.benchmark = not cfg.deterministic


def train_step(
    cfg: Config, group: Group, run: Run, state: TrainState, criterion: Criterion, micro_batches: list[dict],
    lr_schedule: LearningRate,
) -> None:  # fmt: skip
    """Update the weights by one global batch: the micro-batches of all ranks.

    Raises Stopped if any rank got a signal.
    """
    # 1. Each loss is divided by its own count over the global batch, such as labelled pixels.
    counts = torch.stack([criterion.counts(batch) for batch in micro_batches]).sum(0)
    divisors = group.sum_or_stop(counts).tolist()

    # 2. Forward and backward. DDP exchanges gradients in the last backward pass only.
    parts = torch.zeros(len(criterion.names), device=group.device)
    for number, batch in enumerate(micro_batches, start=1):
        state.seed_forward(cfg.seed, ((number - 1) * group.world_size + group.rank) * cfg.batchsize, group.device)
        foreground = foreground_of(batch, group.device) if "lorm" in criterion.weights else None
        batch = to_device(batch, group.device)
        with gradient_sync(state.model, enabled=number == len(micro_batches)):
            with autocast(cfg.amp, group.device):
                outputs = state.model(batch["image"], foreground)
            loss, micro_parts = criterion(outputs, batch, divisors)
            # DDP averages gradients over ranks. The divisors are global already, so undo the average.
            state.scaler.scale(loss * group.world_size).backward()
        parts = parts + micro_parts

    # 3. Update the weights. The first step, and each --check_sync_frequency steps, also compares the ranks.
    check = schedule.check_of_ranks(cfg, state)
    if check:
        unused = checks.check_gradients(group, state.raw_model, unused_allowed=cfg.find_unused_parameters)
        if unused:
            log.info(f"no loss depends on {', '.join(unused)}")
    lr, num_images = lr_schedule.at(state), lr_schedule.sampler.global_batch
    state.update(lr, num_images)
    scaling = state.scaler.counts if state.scaler.is_enabled() else None
    losses = criterion.by_name(group.sum(parts))
    run.metrics.log_step(state.epoch + 1, state.step, losses, parts, lr, num_images, scaling, state.grad_norm)
    run.step_done()
    if check:
        checks.check_weights(group, state.raw_model, buffers_averaged=False)


def finish_epoch(
    cfg: Config, group: Group, run: Run, state: TrainState, loader: TrainLoader, val_loader: EvalLoader,
    classes: Classes,
) -> None:  # fmt: skip
    """Validate if due, log the epoch's line, and save a checkpoint. Raises Stopped if a signal comes in the validation.

    A resumed run then repeats that validation.
    """
    average_batch_norm(group, state)
    if group.world_size > 1:
        log.debug(f"epoch {state.epoch + 1}: weights are equal on all {group.world_size} ranks")
    names, line = [], f"{epoch_title(cfg, state)}: {run.metrics.loss_text()}"
    if schedule.epoch_validation(cfg, state):
        result, is_best = validate(cfg, group, run, state, val_loader, classes)
        line += f", {score_text(result, is_best, state)}"
        names += ["best.pt"] if is_best else []
    if loader.sampler.is_through(state.samples):  # and not at --max_steps
        state.epoch, state.samples = state.epoch + 1, 0
        if schedule.epoch_checkpoint(cfg, state):
            names.append(f"epoch_{state.epoch:04d}.pt")
    rate = run.metrics.pace.rate_text(loader.sampler.global_batch, loader_advice(loader))
    log.info(f"{line}, {run.metrics.pace.time_text()}{rate}")
    run.save(state, *names)


def average_batch_norm(group: Group, state: TrainState) -> None:
    """Average batch-norm statistics over ranks, then check that all ranks have equal weights. Collective."""
    for model in state.models:
        group.average_buffers(model)
    checks.check_weights(group, state.raw_model, buffers_averaged=True)


def validate(
    cfg: Config, group: Group, run: Run, state: TrainState, loader: EvalLoader, classes: Classes,
) -> tuple[Scores, bool]:  # fmt: skip
    """Score the validation list, each image once and in its own pixels. Collective.

    Log and return the scores, and whether they are the best so far: the next checkpoint then comes with a report of
    this validation. Raises Stopped if any rank got a signal.
    """
    torch.backends.cudnn.benchmark = False
    predictor = Predictor(state.eval_model.eval(), batch_size=cfg.val_batchsize, amp=cfg.amp, **cfg.sizes)
    batches, names = run.metrics.validation_bar(loader, total=len(loader)), loader.dataset.names
    result = score(
        predictor, batches, names, cfg.numclasses, group, num_examples=NUM_EXAMPLES, keep="shown", show=cfg.display
    )
    panels = [panel(x.image, x.label, x.predicted, classes, cfg.background_class) for x in result.examples]
    run.metrics.log_validation(state.epoch + 1, state.step, result.scores, classes.names, panels)
    if state.best_miou < 0:  # the first validation
        check_validation(result.scores["acc"], data_check_command(cfg))
    is_best = state.note_score(result.scores["miou"])
    run.report(state.step, result, loader.dataset, is_best=is_best)
    return result.scores, is_best


if __name__ == "__main__":
    program.run_and_exit(main)
