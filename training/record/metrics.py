"""What a run measures: metrics.jsonl and the curves on the boards, written by rank 0."""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from distributed.device import AsyncCopy
from distributed.group import Group
from distributed.precision import read_scaling
from distributed.rank_checks import STEADIER
from flags import Config
from support.errors import DivergedError
from support.progress import progress_bar
from training.record.boards import Boards
from training.record.folder import keep_lines
from training.record.pace import Pace
from training.record.try_or_warn import TryOrWarn
from training.scores import Scores
from training.state import TrainState

# Values of a step that are not losses: a line of metrics has the latest, not the mean.
LATEST = ("epoch", "step", "lr", "loss_scale", "skipped_steps", "grad_norm", "hits")
NOT_CURVES = ("kind", "epoch", "step", "losses")


class Metrics:
    """A recorder of training losses and validation scores: metrics.jsonl, boards and progress bars.

    Every rank calls the methods alike; only rank 0 writes.
    """

    def __init__(self, group: Group):
        self.group, self.log_interval = group, 1  # optimizer steps between two lines of metrics.jsonl
        self.try_or_warn = TryOrWarn()
        self.boards = Boards(self.try_or_warn)
        self.pace = Pace(group)
        self._epoch_losses: list[float] = []  # of this process's steps in this epoch
        self._epoch_hits: list[list[int]] = []  # likewise, from losses.pixel_accuracy
        self._file: TextIO | None = None
        self._num_lines = 0
        self._bar: tqdm | None = None
        self._unread: tuple | None = None  # the last step: the GPU may still be computing its losses
        self._window: list[dict] = []  # losses and more of each step since the last line of metrics
        # Training time and images since then. Only steps of this process count: a resumed run may begin in a window.
        self._seconds, self._images, self._step_began = 0.0, 0, 0.0

    def open(self, cfg: Config, folder: Path | None, step: int, saved: dict, *, steps_left: float) -> None:
        """Open metrics.jsonl and the boards, and remove what follows the resumed checkpoint.

        folder: None on other ranks than 0. step: the checkpoint's. saved: the checkpoint's state_dict(), or {} in a
        new run. steps_left: number of steps that the run will still do.
        """
        self.log_interval, self.pace.run_steps = cfg.log_interval, steps_left
        if folder is None:
            return
        path = folder / "metrics.jsonl"
        self._part = f"{path} (losses and scores)"
        lines = self.try_or_warn(self._part, lambda: keep_lines(path, saved.get("lines", 0))) or []
        self._num_lines, self._window = len(lines), saved.get("window", [])
        self._file = self.try_or_warn(self._part, lambda: path.open("a", encoding="utf-8"))
        last = lines[-1] if lines and lines[-1]["step"] == step else {"kind": "none"}
        # Unless its validation is done, the resumed run writes the points of `step` again.
        purge_step = step + 1 if last["kind"] == "val" else step
        self.boards.open(cfg, folder, purge_step=purge_step, wandb_id=saved.get("wandb_id", ""))
        if last["kind"] == "train":
            # The run repeats the validation after this step, so write the step's curve first.
            self.try_or_warn(f"curves at step {step}", lambda: self.boards.write(step, _scalars(last), {}))

    def loss_text(self) -> str:
        """Return the mean loss, and pixel accuracy if measured, of this process's steps in the epoch, as text."""
        losses, accuracy = self._epoch_losses, _share(self._epoch_hits)
        loss = f"loss {sum(losses) / len(losses):.3f}" if losses else "no steps were left"
        return loss + ("" if accuracy is None else f", training pixel accuracy {100 * accuracy:.2f}")

    def state_dict(self) -> dict:
        """Flush all files to disk, and return what open() needs to continue them in a resumed run.

        Raises DivergedError if the last step's loss is not finite.
        """
        self.read_step()
        if self._file:
            self.try_or_warn(self._part, partial(os.fsync, self._file.fileno()))
        self.boards.flush()
        return {"lines": self._num_lines, "window": self._window, "wandb_id": self.boards.wandb_id}

    def watch(self, steps: Iterable, *, total: int, title: str) -> Iterator:
        """Iterate over an epoch's optimizer steps with a progress bar. Call log_step() for each, and end_epoch()."""
        self._epoch_losses, self._epoch_hits = [], []
        self._seconds, self._images, self._step_began = 0.0, 0, time.perf_counter()
        self._bar = progress_bar(self.pace.timed(steps), total=total, title=title, enabled=self.group.is_main)
        yield from self._bar

    def end_epoch(self) -> None:
        """Write the losses since the last line of metrics.jsonl as a line."""
        self.read_step()
        if self._window:
            self._write_window()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time of the body, a validation, from the rate of training."""
        self.read_step()  # its line of metrics comes before the validation's
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self._step_began += seconds
        self.pace.leave_out(seconds)

    def log_step(
        self, state: TrainState, losses: dict[str, Tensor], *, lr: float, num_images: int, hits: Tensor | None = None
    ) -> None:
        """Record the optimizer step that `state` has just done.

        losses: {name: scalar over the global batch}, with the total as "loss". hits: losses.pixel_accuracy over
        the global batch. The CPU reads both one step later, so it never waits for the GPU. Raises DivergedError on
        every rank if a loss is not finite, or if too many steps in a row were skipped.
        """
        values = losses if state.grad_norm is None else losses | {"grad_norm": state.grad_norm}
        read = AsyncCopy(torch.stack(list(values.values())))
        counts = AsyncCopy(state.scaler.counts) if state.scaler.is_enabled() else None
        late_hits = None if hits is None else AsyncCopy(hits)
        now = time.perf_counter()
        seconds, self._step_began = now - self._step_began, now
        self.read_step()
        facts = {"epoch": state.epoch + 1, "step": state.step, "lr": lr}
        self._unread = facts, list(values), read, counts, late_hits, num_images, seconds

    def read_step(self) -> None:
        """Read the losses of the last step, if still unread. Raises DivergedError if a loss is not finite."""
        if self._unread is None:
            return
        facts, names, losses, counts, hits, num_images, seconds = self._unread
        self._unread = None
        values = dict(zip(names, losses.tolist(), strict=True))
        norm = values.pop("grad_norm", math.inf)  # also infinite in a step that --amp fp16 skips
        for name, value in values.items():
            if not math.isfinite(value):  # on all ranks, because the losses are sums over them
                where = f"at step {facts['step']} (epoch {facts['epoch']})"
                raise DivergedError(f"loss {name!r} is {value} {where}: {STEADIER}")
        assert self._bar is not None
        # The bar's own time is the epoch's, and that of the run in its last epoch.
        epoch_left = (self._bar.total or 0) - self._bar.n
        run_left = f", run: {left} left" if (left := self.pace.run_left(epoch_left)) else ""
        self._bar.set_postfix_str(f"loss {values['loss']:.3f}, lr {facts['lr']:.2g}{run_left}", refresh=False)
        self._epoch_losses.append(values["loss"])
        self._window.append(values | facts | (read_scaling(counts.tolist(), facts["step"]) if counts else {}))
        self._window[-1] |= {"grad_norm": norm} if math.isfinite(norm) else {}
        if hits:
            self._window[-1]["hits"] = hits.tolist()
            self._epoch_hits.append(self._window[-1]["hits"])
        self._seconds, self._images = self._seconds + seconds, self._images + num_images
        if facts["step"] % self.log_interval == 0:
            self._write_window()

    def _write_window(self) -> None:
        """Write a line to metrics.jsonl and the boards: the mean losses since the previous line."""
        last = self._window[-1]
        # A resumed run may have other losses than the steps before it.
        values = {name: [step[name] for step in self._window if name in step] for name in last if name not in LATEST}
        losses = {name: sum(own) / len(own) for name, own in values.items()}
        rate = self._images / self._seconds if self._seconds else 0.0
        accuracy = _share([step["hits"] for step in self._window if "hits" in step])
        self._window, self._seconds, self._images = [], 0.0, 0
        line = {"kind": "train", "epoch": last["epoch"], "step": last["step"], "loss": losses.pop("loss")}
        line |= {"losses": losses, "lr": last["lr"], "images_per_s": rate}
        line |= {name: last[name] for name in ("loss_scale", "skipped_steps", "grad_norm") if name in last}
        line |= {} if accuracy is None else {"pixel_acc": accuracy}
        self._write(line, _scalars(line), {})

    def log_validation(
        self, state: TrainState, scores: Scores, class_names: list[str], draw: Callable[[], list[np.ndarray]]
    ) -> None:
        """Write a validation's scores to metrics.jsonl and the boards. draw: returns pictures, (H, W, 3) uint8."""
        panels = (self.try_or_warn("pictures of the validation", draw) if self.group.is_main else None) or []
        scalars = {f"val/{name}": scores[name] for name in ("miou", "mean_dice", "pixel_acc", "mean_acc")}
        for kind in ("iou", "dice"):
            values = zip(class_names, scores[kind], strict=True)
            scalars |= {f"val_{kind}/{name}": value for name, value in values if value is not None}
        pictures = {f"val_images/{n}_input_label_prediction_overlay": panel for n, panel in enumerate(panels)}
        line = {"kind": "val", "epoch": state.epoch + 1, "step": state.step, **scores}
        self._write(line, scalars, pictures)

    def _write(self, line: dict, scalars: dict[str, float], pictures: dict[str, np.ndarray]) -> None:
        """Write a line to metrics.jsonl, and its curves and pictures to the boards, on rank 0."""
        if self._file:
            self.try_or_warn(self._part, partial(self._write_line, line))
        self.boards.write(line["step"], scalars, pictures)

    def _write_line(self, line: dict) -> None:
        assert self._file
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._num_lines += 1

    def close(self, *, failed: bool) -> None:
        """Close all files. failed: the run ends with an error."""
        self.boards.close(failed=failed)
        if self._file:
            self.try_or_warn(self._part, self._file.close, closes=True)


def _share(hits: list[list[int]]) -> float | None:
    """Return the share of right pixels in [[right, labelled], ...]; None without labelled pixels."""
    right, labelled = (sum(column) for column in zip(*hits, strict=True)) if hits else (0, 0)
    return right / labelled if labelled else None


def _scalars(line: dict) -> dict[str, float]:
    """Return {tag: value} of the curves of a training line of metrics.jsonl."""
    scalars = {f"train/{name}": value for name, value in line.items() if name not in NOT_CURVES}
    return scalars | {f"train/loss_{name}": mean for name, mean in line["losses"].items()}
