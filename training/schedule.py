"""When things happen in a run: its learning rate, validations, checkpoints and end."""

import math

from data.sampler import TrainSampler
from flags import Config
from support.errors import UserError
from support.progress import counted
from training.checkpoint_content import Checkpoint
from training.state import TrainState

POLY_POWER = 0.9  # DeepLab (arXiv:1606.00915, section 4.1.1)


class Schedule:
    """When a run validates, saves and ends, and its learning rate: linear warm-up to the peak, then --schedule.

    A resumed run keeps its curve when its batch changes. For this, checkpoints keep the `origin` of the run: its batch
    at the start, and the factor applied to --lr there, "lr_factor". Only the batch's total size counts.

    resumed: the Checkpoint that the run continues, or None. With --reset_data_offset the curve starts again. Raises
    UserError if the warm-up takes the whole run.
    """

    def __init__(self, cfg: Config, sampler: TrainSampler, resumed: Checkpoint | None = None):
        self.cfg, self.sampler = cfg, sampler
        self.origin = {
            "world_size": sampler.num_replicas,
            "global_batch": sampler.global_batch,
            "steps_per_epoch": sampler.steps_per_epoch,
            "lr_factor": 1.0 if cfg.total_batchsize else _scaling(cfg.lr_scaling, sampler.num_replicas),
        }
        self.is_resumed = resumed is not None and not cfg.reset_data_offset
        if resumed and self.is_resumed:
            self.origin = resumed.origin
        self.batch_scale = _scaling(cfg.lr_scaling, sampler.global_batch / self.origin["global_batch"])
        self.lr_scale = self.origin["lr_factor"] * self.batch_scale
        self.peak_lr = cfg.lr * self.lr_scale
        self.total_steps = cfg.max_steps or cfg.epochs * sampler.steps_per_epoch
        self.warmup_steps = self._warmup_steps()
        if self.warmup_steps >= self.total_steps:
            raise UserError(
                f"{counted(self.warmup_steps, 'step')} of warm-up in a run of {self.total_steps}: the learning rate "
                "would never reach --lr: lower --warmup_steps or --warmup_epochs"
            )

    def lr(self, state: TrainState) -> float:
        """Return the learning rate of the next optimizer step."""
        return self.peak_lr * lr_factor(self.steps_done(state), self.total_steps, self.warmup_steps, self.cfg.schedule)

    def steps_done(self, state: TrainState) -> float:
        """Return how many steps of the run are done, a float from 0 to total_steps.

        With --epochs, samples are counted in units of the current global batch: a resumed run may have another batch.
        """
        if self.cfg.max_steps:
            return state.step
        return state.epoch * self.sampler.steps_per_epoch + state.samples / self.sampler.global_batch

    def steps_left_in_epoch(self, state: TrainState) -> int:
        """Return the number of steps to the end of the epoch or to --max_steps."""
        left = self.sampler.steps_left
        return min(left, max(0, self.cfg.max_steps - state.step)) if self.cfg.max_steps else left

    def is_over(self, state: TrainState) -> bool:
        """Return whether the run is over: by --patience, or after all steps and the last validation."""
        if state.stops_early(self.cfg.patience):
            return True
        if self.cfg.max_steps:
            return state.step >= self.cfg.max_steps and state.validated == state.step
        return state.epoch >= self.cfg.epochs

    def is_step_validation_due(self, state: TrainState) -> bool:
        """Return whether a validation is due after the previous step of this epoch, and was not done yet.

        --val_step_frequency and --val_start_epoch decide.
        """
        is_due = _is_due(state.step, self.cfg.val_step_frequency) and state.epoch >= self.cfg.val_start_epoch
        return is_due and state.samples > 0 and state.validated != state.step

    def is_epoch_validation_due(self, state: TrainState) -> bool:
        """Return whether a validation is due after the epoch that has just been trained."""
        cfg, epochs_done = self.cfg, state.epoch + 1
        if state.stops_early(cfg.patience):  # in mid-epoch, after the validation of a step
            return False
        is_run_over = state.step >= cfg.max_steps if cfg.max_steps else epochs_done == cfg.epochs
        due = _is_due(epochs_done, cfg.val_epoch_frequency) and epochs_done > cfg.val_start_epoch
        return is_run_over or due or self.is_step_validation_due(state)

    def is_step_save_due(self, state: TrainState) -> bool:
        return _is_due(state.step, self.cfg.save_step_frequency)

    def is_epoch_save_due(self, state: TrainState) -> bool:
        return _is_due(state.epoch, self.cfg.save_epoch_frequency)

    def _warmup_steps(self) -> float:
        """Return the length of the warm-up in the unit of steps_done(), rounded to steps of the run's first batch."""
        cfg, steps_per_epoch = self.cfg, self.origin["steps_per_epoch"]
        if cfg.warmup_steps >= 0:
            steps = cfg.warmup_steps
        elif cfg.warmup_epochs >= 0:
            steps = round(cfg.warmup_epochs * steps_per_epoch)
        else:
            steps = round((cfg.max_steps or cfg.epochs * steps_per_epoch) / 10)
        return steps * (1 if cfg.max_steps else self.sampler.steps_per_epoch / steps_per_epoch)


def lr_factor(position: float, total_steps: int, warmup_steps: float, kind: str = "cosine") -> float:
    """Return the factor, 0 to 1, on the peak learning rate in optimizer step `position`, counted from 0.

    Linear warm-up, then cosine to 0; or (1 - t)^POLY_POWER, with t the share done of the steps after the warm-up, for
    the kind "poly"; or 1 for "constant". In a resumed run with another batch, position and warmup_steps may be
    fractions.
    """
    if position < warmup_steps:
        return min(1.0, (position + 1) / warmup_steps)
    if kind == "constant":
        return 1.0
    if position >= total_steps:
        return 0.0
    if kind == "poly":
        return ((total_steps - position) / (total_steps - warmup_steps)) ** POLY_POWER
    return 0.5 * (1 + math.cos(math.pi * (position - warmup_steps) / (total_steps - warmup_steps)))


def _scaling(rule: str, ratio: float) -> float:
    """Return the factor of --lr_scaling `rule` on the learning rate for a batch that is `ratio` times as large."""
    return {"linear": float(ratio), "sqrt": math.sqrt(ratio), "none": 1.0}[rule]


def _is_due(number: int, frequency: int) -> bool:
    """Return whether something that happens every `frequency` steps or epochs happens after this one. 0: never."""
    return frequency > 0 and number % frequency == 0
