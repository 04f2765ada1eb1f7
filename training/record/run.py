"""One run of training on disk: its folder, log, metrics and checkpoints."""

import logging
import logging.handlers
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np
from PIL import Image

from data.images import encode
from data.overlays import JPEG_QUALITY
from distributed import rank_checks
from distributed.group import Group
from distributed.lifeline import WRITE_SECONDS
from flags import as_dict, dump
from support.errors import DivergedError, UserError, WriteError, in_one_line
from support.files import write_atomic
from support.log import log
from training import checkpoint
from training.plan import Plan
from training.record import folder, samples
from training.record.log import FileHandler, LineFormatter
from training.record.messages import resume_hint
from training.record.metrics import Metrics
from training.state import TrainState


class Run:
    """One run of training on disk. Every rank has a Run and calls the methods alike; only rank 0 prints and writes.

    As a context manager, the Run logs the error that ends the run, and adds the command to resume to a UserError.
    """

    def __init__(self, group: Group):
        self.group = group
        self.folder: Path | None = None  # on rank 0, once it is open
        self._place: Path | None = None  # the same on all ranks, for messages
        self._was_saved = False  # once in this folder, at least
        self.metrics = Metrics(group)
        self.try_or_warn = self.metrics.try_or_warn
        self.writer = checkpoint.Writer()
        self._log_file: TextIO | None = None
        self._report: Callable[[], object] = lambda: None  # writes the report, with the next checkpoint
        # There is no train.log yet, so keep lines in memory.
        self._early_lines = logging.handlers.MemoryHandler(capacity=10**6, flushLevel=logging.CRITICAL + 1)
        log.addHandler(self._early_lines)

    def open(self, plan: Plan, state: TrainState, *, steps_left: float) -> None:
        """Open the run's folder, log, metrics and boards, and remove entries after the step of `state`. Collective.

        steps_left: of the run. If the folder has no best.pt, state.best_score becomes -1. Raises UserError if the
        folder cannot be written.
        """
        self.cfg, self.is_new = plan.cfg, plan.folder is None
        self._was_saved = not self.is_new
        if self.group.is_main:
            try:
                self._open(plan, state.step)
            except OSError as error:
                raise WriteError(f"{self.folder or self.cfg.logdir}: cannot be written ({error.strerror})") from None
        # At step 0, the run starts anew from a checkpoint's weights (--reset_data_offset).
        saved = plan.checkpoint.run if plan.checkpoint and state.step else {}
        self.metrics.open(self.cfg, self.folder, state.step, saved, steps_left=steps_left)
        has_best = self.folder is not None and (self.folder / "best.pt").exists()
        self._place, has_best = self.group.broadcast((self.folder, has_best))
        if not has_best:
            state.best_score, state.validations_since_best = -1.0, 0

    def _open(self, plan: Plan, step: int) -> None:
        cfg = plan.cfg
        if plan.folder:
            self.folder, self._log_file = plan.folder, folder.open_log(plan.folder)
        else:
            self.folder, self._log_file = folder.create(Path(cfg.logdir), cfg.name)
        self._handler = FileHandler(self._log_file, self.try_or_warn)
        self._handler.setFormatter(LineFormatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        self._early_lines.setTarget(self._handler)
        self._early_lines.close()
        log.removeHandler(self._early_lines)
        log.addHandler(self._handler)

        if set_aside := folder.tidy(self.folder, step):
            log.info(f"checkpoints after step {step}, or truncated, were renamed to *.old: {', '.join(set_aside)}")
        checkpoint.drop_older(self.folder, self.cfg.kept_files)  # a killed process may have left one more
        file, text = self.folder / "config.yaml", dump(cfg)
        if file.is_file() and (old := file.read_bytes()) != text.encode():
            write_atomic(file.with_name("config.yaml.old"), memoryview(old))
        write_atomic(file, text, sync=True)

    def write_samples(self, draw: Callable[[], np.ndarray]) -> None:
        """Write augmented.jpg of a new run: draw() returns a picture of training samples, (H, W, 3) uint8."""
        if self.is_new and self.folder:
            file = self.folder / samples.FILE
            self.try_or_warn(f"{file.name} (training samples)", partial(self._save_picture, draw, file))

    def report_with_next_save(self, write: Callable[[Path], object]) -> None:
        """Let the next save() call write(path of the report) first, on rank 0. An error there becomes a warning."""
        if self.folder:
            path = self.folder / folder.REPORT
            self._report = lambda: self.try_or_warn(f"{path} (the report)", lambda: write(path), retry=True)

    def _save_picture(self, draw: Callable[[], np.ndarray], file: Path) -> None:
        picture = draw()
        write_atomic(file, encode(Image.fromarray(picture), "JPEG", quality=JPEG_QUALITY))
        self.metrics.boards.write(0, {}, {"train_images/augmented": picture})
        log.info(f"samples: {file}, as the network gets them, with their labels")

    def save(self, state: TrainState, *names: str) -> None:
        """Write the state to files of these names and to last.pt, in a background thread on rank 0. Collective.

        Raises DivergedError if a loss or weight is not finite, and the error of an earlier write that failed.
        """
        logged = self.metrics.state_dict()  # first: a loss that is not finite says more than a weight
        rank_checks.check_finite(state.raw_model)
        content = state.checkpoint(self.group, config=as_dict(self.cfg), texts=self.cfg.texts, run=logged)
        if self.folder:
            files = [self.folder / name for name in (*names, "last.pt")]
            self.writer.save(content, files, self.cfg.kept_files, self._report)
            self._report = lambda: None
        # Another rank that loses rank 0 cannot know if rank 0 had written the first file.
        if self.folder or self._was_saved:
            self.group.advise(resume_hint(self.cfg, self.group, self._place))
        self._was_saved = True

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.writer.join(WRITE_SECONDS)  # it may write the first checkpoint
        can_resume = self.folder is not None and (self.folder / "last.pt").is_file()
        if error:
            log.debug(f"error: {in_one_line(error)}")  # the program prints it on the terminal when it ends
        self.metrics.close(failed=error is not None)
        if self._log_file:
            log.removeHandler(self._handler)
            self.try_or_warn(f"{self._log_file.name} (the log)", self._log_file.close, closes=True)
        if isinstance(error, WriteError) and not can_resume:
            raise UserError(f"{error}: make room or allow writing, or choose another --logdir") from None
        # A run that diverged would diverge again.
        if can_resume and isinstance(error, UserError) and not isinstance(error, DivergedError):
            remedy = ": make room or allow writing" if isinstance(error, WriteError) else ""
            raise UserError(f"{error}{remedy}; {resume_hint(self.cfg, self.group, self.folder)}") from None
