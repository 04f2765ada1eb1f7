"""Train a semantic-segmentation model from scribbles or dense masks.

python train.py                                  # one device; without --dataset_path: generated images
python train.py --dataset_path VOC2012           # your data
bash train_torchrun.sh --dataset_path VOC2012    # one run on all GPUs of this machine
torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint HOST:PORT train.py --dataset_path VOC2012
"""

import sys
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

if not __package__:  # in a clone: with PYTHONSAFEPATH, Python leaves this folder out of sys.path
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from flags import parse_flags
from support import program

if __name__ == "__main__":
    # --help and wrong flags end here, before the slow import of torch. main() parses the flags again.
    program.check_command_line(parse_flags)

import torch

import utils
from data.classes import Classes
from data.loader import Loader, batched
from distributed import rank_checks
from distributed.group import Group, Stopped, gradient_sync
from distributed.precision import autocast
from flags import Config
from inference import report
from inference.evaluation import evaluate_split
from inference.predictor import Predictor
from losses.criterion import Criterion
from losses.pixel_accuracy import count_hits
from support.batch import Batch
from support.best_score import deciding_score
from support.errors import STOPPED
from support.log import log
from training.plan import Plan
from training.record import messages
from training.record.log import start_logging
from training.record.run import Run
from training.record.samples import draw_samples
from training.schedule import Schedule
from training.settle import settle
from training.state import TrainState
from training.task import task_arguments


def main(argv: list[str] | None = None) -> int:
    """Train as the flags say, or evaluate or predict with --task. Return the exit status: 0, or STOPPED after a signal.

    The exit status of --task predict is 1 if an image could not be predicted.
    argv: the command line's words; None: sys.argv.
    """
    cfg = parse_flags(argv)
    if cfg.task != "train":
        import evaluate
        import predict

        program_of_task = evaluate if cfg.task == "test" else predict
        return program_of_task.main(task_arguments(cfg))
    with utils.join_group(cfg) as group:
        start_logging(cfg.log_level, is_main=group.is_main)
        # explain_errors() turns errors that the user can mend, such as out of memory, into UserErrors. Run, the outer
        # context, sees them: rank 0 writes its error to train.log, if that is open. If there is a last.pt, Run adds to
        # a UserError how to resume; not after a divergence, since the run would diverge again.
        with Run(group) as run, program.explain_errors(str(group.device), messages.OUT_OF_MEMORY_ADVICE):
            plan = settle(cfg, group)  # chooses the final flags, lists the files, reads the checkpoint or start weights
            trainer = build(plan, group, run)
            del plan  # frees what fit() does not need: rank 0's start weights, or the checkpoint's tensors
            status = trainer.fit()
            # Free DDP before the group is left. As the last owner of the process group, it would wait for gloo's
            # threads while it holds Python's global lock, which they may need.
            del trainer
            return status


def build(plan: Plan, group: Group, run: Run) -> "Trainer":
    """Build the Trainer from a plan, and open the run's folder. Collective.

    Raises UserError if files, loaders, model, losses, schedule or checkpoint do not fit each other, if a weight is not
    finite or differs between ranks, or if the folder cannot be written.
    """
    cfg = plan.cfg
    utils.set_deterministic(cfg.deterministic)
    train_loader = utils.get_loader(cfg, "train", group, plan.files["train"])
    val_loader = utils.get_loader(cfg, "val", group, plan.files["val"])
    # `model` is the DDP wrapper of raw_model in a process group, and raw_model itself without one. Checkpoints have the
    # parameter names of raw_model. --seed decides its random weights.
    raw_model, model = utils.get_model(cfg, group, plan.start_weights)
    class_weights = utils.get_class_weights(cfg, group, train_loader.dataset)
    criterion = utils.get_criterion(cfg, raw_model, class_weights)
    # The schedule decides the learning rate, when to validate and to save, and the end. The peak learning rate of a new
    # run is --lr with --total_batchsize, else --lr x f(number of processes); --lr_scaling chooses f. A resumed run has
    # the factor of its checkpoint, times f(global batch now / global batch at its start).
    schedule = Schedule(cfg, train_loader.sampler, plan.checkpoint)
    optimizer = utils.get_optimizer(cfg, group, raw_model, schedule.peak_lr)
    # Make the state. From a checkpoint, load the weights, the optimizer's state (not with --reset_optimizer), and the
    # position in the run (not with --reset_data_offset: a new run starts at step 0).
    state = utils.get_state(cfg, group, raw_model, model, optimizer, schedule, train_loader.dataset, plan.checkpoint)
    # All ranks must start with finite and equal weights. Batch-norm statistics are equal between epochs, because
    # close_epoch() averages them over ranks. In mid-epoch (state.samples > 0), each rank may have its own.
    rank_checks.check_weights(group, raw_model, compare_batch_norm=state.samples == 0)
    # Open the folder only now, so that a failure above leaves none behind. If the run continues in its folder, open()
    # renames checkpoints of steps after state.step to *.old, and deletes the metrics written after the checkpoint. If
    # there is no best.pt, it resets state.best_score and state.validations_since_best: the next validation writes one.
    run.open(plan, state, steps_left=schedule.total_steps - schedule.steps_done(state))
    run.write_samples(lambda: draw_samples(cfg, train_loader, plan.classes))  # rank 0 of a new run draws augmented.jpg
    messages.log_start(plan, run.folder, state, schedule, train_loader.dataset, val_loader, class_weights)
    return Trainer(cfg, group, run, state, criterion, schedule, train_loader, val_loader, plan.classes)


@dataclass
class Trainer:
    """The loop over epochs and steps, and what it works with.

    Collective: every rank calls the same methods in the same order.
    """

    cfg: Config
    group: Group
    run: Run
    state: TrainState
    criterion: Criterion
    schedule: Schedule
    train_loader: Loader
    val_loader: Loader
    classes: Classes

    def fit(self) -> int:
        """Train to the end of the run. Return the exit status: 0, or STOPPED after a signal to any rank."""
        run, state = self.run, self.state
        try:
            while not self.schedule.is_over(state):  # a resumed run may have only its last validation to do
                self.train_one_epoch()
                self.close_epoch()
        except Stopped as stop:  # all ranks raise it at the same place, so their checkpoint is consistent
            run.save(state)  # to last.pt, which every save writes
            run.writer.wait()  # checkpoints are written in the background
            messages.log_stop(self.cfg, run.folder, state, self.group, stop)
            return STOPPED
        run.writer.wait()
        messages.log_end(self.cfg, run.folder, state, self.val_loader.dataset, self.classes, run.try_or_warn)
        return 0

    def train_one_epoch(self) -> None:
        """Train until the epoch ends, or until --max_steps or --patience ends the run. A step is one global batch.

        Validates and saves checkpoints between steps if due. Raises Stopped on all ranks if any rank got a signal.
        """
        cfg, run, state, schedule = self.cfg, self.run, self.state, self.schedule
        # Choose the epoch's order, as DistributedSampler.set_epoch() does, and skip state.samples: the samples of this
        # epoch that a resumed run has seen. The sampler then knows how many steps of the epoch are left.
        self.train_loader.sampler.set_position(state.epoch, state.samples)
        # A step takes --accum_steps batches of the loader. Each step has a whole global batch: the sampler drops the
        # rest of an epoch. --max_steps may end the run before the loader ends.
        num_steps = schedule.steps_left_in_epoch(state)
        title = messages.epoch_title(cfg, state)
        steps = islice(batched(self.train_loader, cfg.accum_steps), num_steps)
        self.enter_train_mode()
        for micro_batches in run.metrics.watch(steps, total=num_steps, title=title):
            # Validate here, before the next step, if a validation is due after the previous one. If a signal stops it,
            # the resumed run comes back to this check and repeats it. After the epoch's last step, close_epoch()
            # validates.
            if schedule.is_step_validation_due(state):
                state.average_batch_norm(self.group)  # all ranks must score the same model
                score_line, is_best = self.validate()
                log.info(f"{title}, step {state.step}: {score_line}")
                if is_best:
                    run.save(state, "best.pt")
                if state.stops_early(cfg.patience):
                    break  # the run is over; close_epoch() does not validate this step again
                self.enter_train_mode()
            self.train_step(micro_batches)
            if schedule.is_step_save_due(state):
                run.save(state, f"step_{state.step:08d}.pt")
        run.metrics.end_epoch()

    def enter_train_mode(self) -> None:
        """Put the model into training mode. cuDNN measures its algorithms on the crops, except with --deterministic."""
        self.state.model.train()
        torch.backends.cudnn.benchmark = not self.cfg.deterministic

    def train_step(self, micro_batches: list[Batch]) -> None:
        """Update the weights by one global batch: the micro-batches of all ranks.

        Raises Stopped if any rank got a signal.
        """
        cfg, group, state, criterion = self.cfg, self.group, self.state, self.criterion
        group.note(f"step {state.step + 1}")  # this rank's error names it if another rank's process stands still
        # 1. Sum each loss's divisor, such as the number of labelled pixels, over the global batch. A mean per rank
        # would give a pixel more weight on a rank with fewer labelled pixels. The counts are CPU tensors, which gloo
        # sums, so nothing here waits for the GPU. sum_or_stop() raises Stopped on all ranks if any rank got a signal,
        # before any rank has changed its weights in this step.
        counts = torch.stack([criterion.counts(batch) for batch in micro_batches]).sum(0)
        divisors = group.sum_or_stop(counts).tolist()

        # 2. Forward and backward. Gradients add up over micro-batches, so DDP exchanges them in the last one only.
        # progress: the share of the run that is done, 0 to 1; the CRF loss's weight depends on it. With --epochs,
        # steps_done() counts samples, because steps before a resume may have had another global batch.
        progress = self.schedule.steps_done(state) / self.schedule.total_steps
        # This rank's share of each unweighted loss in criterion.names. The shares add up over micro-batches and ranks.
        parts = torch.zeros(len(criterion.names), device=group.device)
        hits = []  # [right, labelled] pixels of each micro-batch
        for number, batch in enumerate(micro_batches):
            # Seed dropout and other random layers by --seed, the epoch and the batch's position in it: state.samples
            # plus first_sample, the position in this step. A run on fewer ranks then draws the same numbers, if it
            # accumulates more batches of the same --batchsize.
            first_sample = (number * group.world_size + group.rank) * cfg.batchsize
            state.seed_forward(cfg.seed, first_sample, group.device)
            batch = batch.to(group.device)
            with gradient_sync(state.model, enabled=number == len(micro_batches) - 1):
                # The criterion stays outside of autocast: its losses need more digits than bf16 and fp16 have.
                with autocast(cfg.amp, group.device):
                    # foreground: LoRM's positions in the feature map; None unless LoRM is trained
                    outputs = state.model(batch.image, batch.foreground)
                # With --lorm_scope all, the divisor of the LoRM loss (models/lorm.py) depends on the features. Its
                # entry in `divisors` is 0 then, and the criterion divides by lorm_count. The loss is the mean over
                # micro-batches of (sum over all ranks / count over all ranks).
                if "lorm_count" in outputs:
                    outputs["lorm_count"] = group.sum(outputs["lorm_count"]) * len(micro_batches)
                loss, micro_parts = criterion(outputs, batch, divisors, progress)
                # DDP averages gradients over ranks. The divisors are global already, so undo the average.
                state.scaler.scale(loss * group.world_size).backward()
            parts = parts + micro_parts
            if cfg.report_training_batch_acc:
                hits.append(count_hits(outputs["logits"], batch))

        # 3. optimizer_step() clips gradients, updates the weights and the EMA, clears gradients, and counts the step
        # and its samples. In this process's first step, compare gradients and weights between ranks: they differ if the
        # model is not wrapped, or if its forward() changes weights. close_epoch() would notice it much later.
        is_first = state.steps_in_process == 0
        if is_first:
            rank_checks.check_gradients(group, state.raw_model)
        lr, num_images = self.schedule.lr(state), self.train_loader.sampler.global_batch
        state.optimizer_step(lr, num_images)
        if is_first:
            rank_checks.check_weights(group, state.raw_model, compare_batch_norm=False)

        # 4. Log the losses. Metrics reads them in the next step, so the CPU does not wait for the GPU here. If a loss
        # is not finite, the run ends there.
        losses = criterion.as_dict(group.sum(parts), progress)
        all_hits = group.sum(torch.stack(hits).sum(0)) if hits else None
        self.run.metrics.log_step(state, losses, lr=lr, num_images=num_images, hits=all_hits)
        self.run.writer.check()  # a checkpoint that could not be written ends the run now, not after days

    def close_epoch(self) -> None:
        """After an epoch, or at --max_steps or --patience: validate if due, log a line, and save checkpoints.

        Raises Stopped if a signal comes in the validation. A resumed run then repeats that validation.
        """
        run, state, schedule, sampler = self.run, self.state, self.schedule, self.train_loader.sampler
        state.average_batch_norm(self.group)  # also without a validation: build() of a resumed run compares the ranks
        line = f"{messages.epoch_title(self.cfg, state)}: {run.metrics.loss_text()}"
        checkpoints = []
        if schedule.is_epoch_validation_due(state):  # before state.epoch counts this epoch
            score_line, is_best = self.validate()
            line += f", {score_line}"
            if is_best:
                checkpoints.append("best.pt")
        # Count the epoch only after its validation: if a signal stops the validation, the resumed run has no steps left
        # in this epoch, and validates again. The epoch is incomplete if --max_steps or --patience ended the run early.
        if sampler.is_epoch_done(state.samples):
            state.epoch, state.samples = state.epoch + 1, 0
            if schedule.is_epoch_save_due(state):  # after state.epoch counts this epoch
                checkpoints.append(f"epoch_{state.epoch:04d}.pt")
        pace = run.metrics.pace.text(sampler.global_batch, self.train_loader)  # collective: every rank calls it
        log.info(f"{line}, {pace}")
        run.save(state, *checkpoints)

    def validate(self) -> tuple[str, bool]:
        """Predict each validation image, and score it once, at its original resolution. Collective.

        Return the scores as text, and whether they are the best so far. Raises Stopped if any rank got a signal.
        """
        cfg, group, run, state, dataset = self.cfg, self.group, self.run, self.state, self.val_loader.dataset
        torch.backends.cudnn.benchmark = False  # images have many sizes: cuDNN would measure again for each
        # A new Predictor each time: it folds batch norm into weights of its own, which do not follow the training.
        predictor = Predictor(state.eval_model.eval(), batch_size=cfg.val_batchsize, amp=cfg.amp, **cfg.window_options)
        with run.metrics.pause():  # exclude the prediction from images per second
            result = evaluate_split(predictor, self.val_loader, group, "validation", keep=report.choose_images)
        draw = partial(result.panels, self.classes, cfg.background_class)
        run.metrics.log_validation(state, result.scores, self.classes.names, draw)
        # This score decides best.pt: the mIoU; or the object's IoU, if there is one object and the background.
        name, score = deciding_score(result.scores, self.classes.names, cfg.background_class)
        is_best = state.record_score(score)  # equal on all ranks, as the scores are
        messages.log_unpredicted_classes(cfg, result.scores, self.classes)
        # The report shows the predictions of best.pt, so gather them only for a new best score; other validations
        # update its curves. The next save() calls report.update(), with the report's path as the last argument.
        predictions = report.gather_predictions(result, group) if is_best else {}
        run.report_with_next_save(partial(report.update, state.step, cfg, dataset, result, predictions))
        return messages.score_text(name, score, result.scores, is_best, state), is_best


if __name__ == "__main__":
    program.run_and_exit(main)
