"""Train a semantic-segmentation model from scribbles or dense masks.

python train.py                                  # one device; without data, on the drawn demo
python train.py --dataset_path VOC2012           # your data
bash train_torchrun.sh --dataset_path VOC2012    # the same run on every GPU of this machine
torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint HOST:PORT train.py --dataset_path VOC2012
"""

import logging
import sys
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

if not __package__:  # started as a file: PYTHONSAFEPATH keeps its folder out of sys.path
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from flags import parse_flags
from support import program

if __name__ == "__main__":
    program.check_command_line(parse_flags)  # --help and wrong flags answer here, before torch is imported

import numpy as np
import torch

import utils
from data.classes import Classes
from data.label_check import check_sample
from data.loader import EvalLoader, TrainLoader, batched
from data.pictures import panel
from distributed import checks
from distributed.group import Group, Stopped, gradient_sync
from distributed.precision import autocast
from flags import Config
from inference import report
from inference.predictor import Predictor, window_steps
from inference.scoring import gather_predictions, score
from losses.criterion import Criterion
from losses.pixel_accuracy import count_hits
from support.batch import Batch
from support.errors import STOPPED
from training.augmentation import draw_samples
from training.plan import Plan
from training.record import messages
from training.record.folder import REPORT
from training.record.log import start_logging
from training.record.run import Run
from training.schedule import Schedule
from training.scores import Scores
from training.settle import settle
from training.state import TrainState
from training.task import task_words

NUM_EXAMPLES = 4  # pictures of each validation on the boards

log = logging.getLogger("segtrain")


def main(argv: list[str] | None = None) -> int:
    """Train as the flags say. Return the exit status: 0, or STOPPED after a signal.

    argv: the command line's words; None: sys.argv.
    """
    cfg = parse_flags(argv)
    if cfg.task != "train":
        return run_task(cfg)
    with utils.join_group(cfg) as group:
        start_logging(cfg.log_level, is_main=group.is_main)
        with Run(group) as run, program.explain_errors(str(group.device), messages.MORE_MEMORY):
            plan = settle(cfg, group)
            trainer = build(plan, group, run)
            del plan  # its weights are as large as the model and its momentum
            return trainer.fit()


def run_task(cfg: Config) -> int:
    """Score or use the run that the flags name, by evaluate.py or predict.py. Return its exit status."""
    import evaluate  # imported here, since training needs neither
    import predict

    return {"test": evaluate, "predict": predict}[cfg.task].main(task_words(cfg))


def build(plan: Plan, group: Group, run: Run) -> "Trainer":
    """Build what trains from the plan, and open the run's folder. Collective.

    Raises UserError if labels are invalid, if start weights or the checkpoint do not fit the model, or if ranks differ.
    """
    cfg, classes = plan.cfg, plan.classes
    utils.set_deterministic(cfg.deterministic)
    train_loader = utils.get_loader(cfg, "train", group, plan.files["train"])
    val_loader = utils.get_loader(cfg, "val", group, plan.files["val"])
    train_set, val_set, sampler = train_loader.dataset, val_loader.dataset, train_loader.sampler
    checks.check_setup(group, {"training list": train_set, "validation list": val_set})
    messages.log_data(cfg, train_set, val_loader, is_main=group.is_main)
    # Wrong labels are found now, not in mid-epoch.
    command = messages.data_check_command(cfg)
    check_sample(train_set.files, val_set.files, cfg.numclasses, command, group.share_work, train_set.label_map)

    raw_model, model = utils.get_model(cfg, group, plan.start_weights)
    class_weights = utils.get_class_weights(cfg, group, train_set)
    criterion = utils.get_criterion(cfg, group, raw_model, class_weights)
    schedule = Schedule(cfg, sampler, plan.resumed)
    optimizer = utils.get_optimizer(cfg, raw_model, group, schedule.peak_lr)
    state = utils.get_state(cfg, group, raw_model, model, optimizer, schedule, train_set, plan.resumed)

    run.open(plan, state, steps_left=schedule.total_steps - schedule.position(state))
    run.show_samples(lambda: draw_samples(cfg, train_loader, classes))
    messages.log_model(cfg, raw_model)
    schedule.log()
    log.info(f"writing to {run.folder}" + ("; there is nothing left to do" if schedule.is_over(state) else ""))
    # A run that resumes in mid-epoch has statistics of batch norm of its own on each rank.
    checks.check_weights(group, raw_model, buffers_averaged=state.samples == 0)
    return Trainer(cfg, group, run, state, criterion, schedule, train_loader, val_loader, classes)


@dataclass
class Trainer:
    """The loop over epochs and steps, and what it works with. Every rank calls the methods alike."""

    cfg: Config
    group: Group
    run: Run
    state: TrainState
    criterion: Criterion
    schedule: Schedule
    train_loader: TrainLoader
    val_loader: EvalLoader
    classes: Classes

    def fit(self) -> int:
        """Train to the end of the run. Return the exit status: 0, or STOPPED after a signal to any rank."""
        run, state, schedule = self.run, self.state, self.schedule
        try:
            while not schedule.is_over(state):
                self.train_one_epoch()
                self.close_epoch()
        except Stopped as stop:  # raised on all ranks at the same step
            run.save(state)
            run.writer.wait()
            messages.log_report(run.folder)
            log.info(f"stopped by {stop} after step {state.step}, in epoch {state.epoch + 1}; {run.resume_hint()}")
            return STOPPED
        run.writer.wait()
        messages.log_end(self.cfg, run.folder, state, self.val_loader.dataset, self.classes, run.extras)
        return 0

    def train_one_epoch(self) -> None:
        """Train to the end of the epoch, of --max_steps or of --patience. Each step is one global batch.

        Validates and saves checkpoints between steps if due. Raises Stopped on all ranks if any rank got a signal.
        """
        cfg, run, state, schedule = self.cfg, self.run, self.state, self.schedule
        self.train_loader.sampler.set_position(state.epoch, state.samples)  # a resumed run goes on in mid-epoch
        num_steps, title = schedule.steps_left(state), messages.epoch_title(cfg, state)
        steps = islice(batched(self.train_loader, cfg.accum_steps), num_steps)
        self.start_training()
        for micro_batches in run.metrics.steps(steps, total=num_steps, title=title):
            # Validate after the previous step only now: a run stopped during this validation repeats it when resumed.
            if schedule.validates_step(state):
                self.average_batch_norm()
                scores, is_best = self.validate()
                log.info(f"{title}, step {state.step}: {messages.score_text(scores, is_best, state)}")
                if is_best:
                    run.save(state, "best.pt")
                if state.stops_early(cfg.patience):
                    break
                self.start_training()
            self.train_step(micro_batches)
            if schedule.saves_step(state):
                run.save(state, f"step_{state.step:08d}.pt")
        run.metrics.end_epoch()

    def start_training(self) -> None:
        """Put the model into training mode, and let cuDNN measure its algorithms: all crops have one size."""
        self.state.model.train()
        torch.backends.cudnn.benchmark = not self.cfg.deterministic

    def train_step(self, micro_batches: list[Batch]) -> None:
        """Update the weights by one global batch: the micro-batches of all ranks.

        Raises Stopped if any rank got a signal.
        """
        cfg, group, state, criterion = self.cfg, self.group, self.state, self.criterion
        group.note(f"step {state.step + 1}")
        progress = self.schedule.position(state) / self.schedule.total_steps
        # 1. Each loss is divided by its own count over the global batch, such as labelled pixels.
        counts = torch.stack([criterion.counts(batch) for batch in micro_batches]).sum(0)
        divisors = group.sum_or_stop(counts).tolist()

        # 2. Forward and backward. DDP exchanges gradients in the last backward pass only.
        parts, hits = torch.zeros(len(criterion.names), device=group.device), []
        for number, batch in enumerate(micro_batches, start=1):
            # Dropout draws by the batch's place in the global batch: the same numbers on any number of ranks.
            first_sample = ((number - 1) * group.world_size + group.rank) * cfg.batchsize
            state.seed_forward(cfg.seed, first_sample, group.device)
            batch = batch.to(group.device)
            with gradient_sync(state.model, enabled=number == len(micro_batches)):
                with autocast(cfg.amp, group.device):
                    outputs = state.model(batch.image, batch.foreground)
                # --lorm_scope all counts terms that depend on the features, so step 1 cannot count them. The loss of
                # LoRM is then the mean over micro-batches, each divided by its own count over all ranks.
                if "lorm_terms" in outputs:
                    outputs["lorm_terms"] = group.sum(outputs["lorm_terms"]) * len(micro_batches)
                loss, micro_parts = criterion(outputs, batch, divisors, progress)
                # DDP averages gradients over ranks. The divisors are global already, so undo the average.
                state.scaler.scale(loss * group.world_size).backward()
            parts = parts + micro_parts
            if cfg.report_training_batch_acc:
                hits.append(count_hits(outputs["logits"], batch))

        # 3. Update the weights. The first step of this process also compares the ranks.
        is_first = state.steps_since_start == 0
        if is_first:
            checks.check_gradients(group, state.raw_model)
        lr, num_images = self.schedule.lr(state), self.schedule.sampler.global_batch
        state.update(lr, num_images)
        losses = criterion.as_dict(group.sum(parts), progress)
        all_hits = group.sum(torch.stack(hits).sum(0)) if hits else None
        self.run.metrics.log_step(state, losses, lr=lr, num_images=num_images, hits=all_hits)
        self.run.writer.check()
        if is_first:
            checks.check_weights(group, state.raw_model, buffers_averaged=False)

    def close_epoch(self) -> None:
        """After an epoch, or at --max_steps or --patience: validate if due, log a line, and save checkpoints.

        Raises Stopped if a signal comes in the validation. A resumed run then repeats that validation.
        """
        group, run, state, sampler = self.group, self.run, self.state, self.train_loader.sampler
        self.average_batch_norm()
        if group.world_size > 1:
            log.debug(f"epoch {state.epoch + 1}: weights are equal on all {group.world_size} ranks")
        checkpoints, line = [], f"{messages.epoch_title(self.cfg, state)}: {run.metrics.loss_text()}"
        if self.schedule.validates_epoch(state):
            scores, is_best = self.validate()
            line += f", {messages.score_text(scores, is_best, state)}"
            checkpoints += ["best.pt"] if is_best else []
        if sampler.is_epoch_done(state.samples):  # and not at --max_steps
            state.epoch, state.samples = state.epoch + 1, 0
            if self.schedule.saves_epoch(state):
                checkpoints.append(f"epoch_{state.epoch:04d}.pt")
        rate = run.metrics.pace.rate_text(sampler.global_batch, messages.loader_advice(self.train_loader))
        log.info(f"{line}, {run.metrics.pace.time_text()}{rate}")
        run.save(state, *checkpoints)

    def average_batch_norm(self) -> None:
        """Average batch-norm statistics over ranks, then check that all ranks have equal weights. Collective."""
        for model in self.state.models:
            self.group.average_buffers(model)
        checks.check_weights(self.group, self.state.raw_model, buffers_averaged=True)

    def validate(self) -> tuple[Scores, bool]:
        """Score the validation list, each image once and in its own pixels. Collective.

        Log and return the scores, and whether they are the best so far: the next checkpoint then comes with a report of
        this validation. Raises Stopped if any rank got a signal.
        """
        cfg, group, run, state, dataset = self.cfg, self.group, self.run, self.state, self.val_loader.dataset
        torch.backends.cudnn.benchmark = False  # images have many sizes: it would measure again for each
        predictor = Predictor(state.eval_model.eval(), batch_size=cfg.val_batchsize, amp=cfg.amp, **cfg.sizes)
        own, batches = self.val_loader.batch_sampler, run.metrics.validation(self.val_loader)
        with window_steps(predictor, own.sizes, own, "validation", group) as step:
            options: dict = {"step": step, "keep_pngs": True, "keep_first": NUM_EXAMPLES}
            result = score(predictor, batches, dataset.names, cfg.numclasses, group, **options)

        def draw() -> list[np.ndarray]:
            return [
                panel(image, label, predicted, self.classes, cfg.background_class)
                for image, label, predicted in result.examples
            ]

        panels = run.extras.run("pictures of the validation", draw) or []
        run.metrics.log_validation(state, result.scores, self.classes.names, panels)
        is_best = state.record_miou(result.scores["miou"])
        # Only the best validation is worth the pictures of its predictions; the others add points to the curves.
        predictions = gather_predictions(result, group) if is_best else {}
        if run.folder:
            path = run.folder / REPORT
            write = partial(report.update, path, state.step, cfg, dataset, result, predictions)
            run.write_with_next_save(f"{path} (the report)", write)
        return result.scores, is_best


if __name__ == "__main__":
    program.run_and_exit(main)
