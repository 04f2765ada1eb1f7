"""When things happen in a run: its learning rate, validations, checkpoints and end."""

import math

from config import Config
from runs.state import TrainState


def end_of_run(cfg: Config, state: TrainState) -> bool:
    """Whether all steps are done, and the last validation, too, which a signal may have broken off."""
    if cfg.max_steps:
        return state.step >= cfg.max_steps and state.validated == state.step
    return state.epoch >= cfg.epochs


def last_validation(cfg: Config, state: TrainState) -> bool:
    """Whether the run ends with the epoch, or the part of one, that has just been trained."""
    return state.step >= cfg.max_steps if cfg.max_steps else state.epoch + 1 == cfg.epochs


def step_validation(cfg: Config, state: TrainState) -> bool:
    """Whether a validation is due after the step that was done last: until it is done, also in a resumed run."""
    frequency = cfg.val_step_frequency
    return frequency > 0 and state.step % frequency == 0 and state.validated != state.step


def epoch_validation(cfg: Config, state: TrainState) -> bool:
    """Whether a validation is due after the epoch that has just been trained."""
    if last_validation(cfg, state) or step_validation(cfg, state):
        return True
    epochs_done, frequency = state.epoch + 1, cfg.val_epoch_frequency
    return frequency > 0 and epochs_done > cfg.val_start_epoch and epochs_done % frequency == 0


def step_checkpoint(cfg: Config, state: TrainState) -> bool:
    return cfg.save_step_frequency > 0 and state.step % cfg.save_step_frequency == 0


def epoch_checkpoint(cfg: Config, state: TrainState) -> bool:
    return cfg.save_epoch_frequency > 0 and state.epoch % cfg.save_epoch_frequency == 0


def check_of_ranks(cfg: Config, state: TrainState) -> bool:
    """Whether this step is one that the doctor checks: the first of this process, and those asked for."""
    frequency = cfg.check_sync_frequency
    return state.steps_here == 0 or (frequency > 0 and (state.step + 1) % frequency == 0)


def lr_factor(position: float, total_steps: int, warmup_steps: float) -> float:
    """What the base learning rate is multiplied by in optimizer step `position`, counted from 0.

    Linear warm-up, then cosine to 0. After a resume with another global batch, position and warmup_steps may be
    fractions.
    """
    if position < warmup_steps:
        return min(1.0, (position + 1) / warmup_steps)
    if position >= total_steps:
        return 0.0
    return 0.5 * (1 + math.cos(math.pi * (position - warmup_steps) / (total_steps - warmup_steps)))
