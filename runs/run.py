"""A run's folder and what is written there: log, metrics, curves. Silent on every rank but 0."""

import contextlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from distributed.group import Group
from errors import DivergedError, UserError, in_one_line
from evaluation.metrics import Scores
from losses.criterion import ACCURACY
from models.amp import read_scaling
from runs import checkpoint
from runs import folder as run_folder
from runs.boards import Board, TensorBoard, WandB, import_wandb
from runs.terminal import Terminal

# Values of a step that are not losses: metrics.jsonl has the latest, not the mean.
LATEST = ("epoch", "step", "lr", "loss_scale", "skipped_steps")


class Run(Terminal):
    """One run of training. Every rank has one and calls it alike; only rank 0 prints and writes.

    log_interval: optimizer steps between two lines of metrics. wandb: whether curves go to Weights & Biases, too.
    quiet: see Terminal.
    """

    def __init__(self, group: Group, log_interval: int, *, wandb: bool = False, quiet: bool = False):
        super().__init__(group, quiet=quiet)
        self.log_interval, self.wandb = log_interval, wandb
        if wandb and group.is_main:
            import_wandb()  # now, before anything is made
        self.folder: Path | None = None  # of a new run, once open() has made it
        self._lines: list[str] = []  # of the log, before there is a folder
        self._log: TextIO | None = None
        self._metrics: TextIO | None = None
        self._boards: list[Board] = []
        self._bar: tqdm | None = None
        self._num_lines = 0  # of metrics
        self._is_empty = False  # whether this process claimed the folder and has done no step in it
        self._writer = checkpoint.Writer()
        self._unread: tuple | None = None  # the last step, whose losses may still be on their way
        # Losses, epoch, step and lr of each step since the last line of metrics.
        self._window: list[dict[str, float]] = []
        self._window_start, self._window_images, self._last_step_at = 0.0, 0, 0.0

    def info(self, text: str, *, every_rank: bool = False, terminal: bool = True) -> None:
        """Say a line on the terminal and in train.log; with every_rank, on every rank's terminal."""
        if terminal and not self.quiet and (self.group.is_main or every_rank):
            tqdm.write(text)
        if not self.group.is_main:
            return
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n"
        if self._log:
            self._log.write(line)
            self._log.flush()
        else:
            self._lines.append(line)

    def find_checkpoint(self, logdir: str, name: str, resume: str, *, new_folder: bool) -> dict | None:
        """The content of the checkpoint to continue from, if any (runs.folder.find), read by every rank.

        The run goes on in the folder of what it continues, unless new_folder; otherwise in one that open() makes.
        """
        found: tuple[Path | None, Path | None, list[Path]] | UserError | None = None
        if self.group.is_main:
            try:
                found = run_folder.find(Path(logdir), name, resume)
            except (UserError, OSError) as error:
                found = error if isinstance(error, UserError) else UserError(f"{error.filename}: {error.strerror}")
        found = self.group.broadcast(found)
        if isinstance(found, UserError):
            raise found
        assert found is not None
        folder, path, damaged = found
        self.folder = None if new_folder else folder
        for file in damaged:
            self.info(f"{file}: damaged or torn; passed over for {path}")
        if path is None:
            return None
        began = time.perf_counter()
        content = checkpoint.read_run(path)
        self.info(
            f"resuming {path}: epoch {content['epoch'] + 1}, {content['samples']} samples into it, step {content['step']} "
            f"(read in {time.perf_counter() - began:.1f} s)"
        )
        return content

    def open(self, logdir: str, name: str, config: str, step: int, saved: dict | None) -> bool:
        """Open the run's files, after `step` optimizer steps; what was written past them is dropped.

        saved: what capture() returned then; None for a run that begins. Returns whether there is a best.pt.
        """
        if self.group.is_main:
            self._open(logdir, name, config, step, saved or {"lines": 0, "window": []})
        return self.group.broadcast(self.folder is not None and (self.folder / "best.pt").exists())

    def _open(self, logdir: str, name: str, config: str, step: int, saved: dict) -> None:
        try:
            if self.folder:
                self._log = run_folder.open_log(self.folder)
            else:
                self.folder, self._log = run_folder.claim(Path(logdir), name)
                self._is_empty = True
            self._log.writelines(self._lines)
            self._log.flush()
            set_aside = run_folder.tidy(self.folder, step)
            run_folder.replace_text(self.folder / "config.yaml", config)
            lines = run_folder.keep_lines(self.folder / "metrics.jsonl", saved["lines"])
            self._num_lines, last = len(lines), lines[-1] if lines else {}
            self._metrics = (self.folder / "metrics.jsonl").open("a", encoding="utf-8")
            self._window = saved["window"]
            validated = last.get("kind") == "val" and last["step"] == step
            self._boards.append(TensorBoard(self.folder, purge_step=step + 1 if validated else step))
            if self.wandb:
                self._boards.append(WandB(self.folder, config, self.info))
            if last.get("kind") == "train" and last["step"] == step:
                self._write_scalars(last)  # written before the validation that is to be done again
        except OSError as error:
            raise UserError(f"{self.folder or logdir}: cannot be written ({error.strerror})") from None
        if self._num_lines < saved["lines"]:
            self.info(
                f"metrics.jsonl has {self._num_lines} lines; when the checkpoint was written it had {saved['lines']}"
            )
        if set_aside:
            self.info(f"checkpoints past step {step} got .old added to their names: {', '.join(set_aside)}")

    def capture(self) -> dict:
        """What a later process needs to go on with the run's files, which are on disk up to here when this returns."""
        self._read_step()
        if self._metrics:
            os.fsync(self._metrics.fileno())
            for board in self._boards:
                board.flush()
        return {"lines": self._num_lines, "window": [dict(values) for values in self._window]}

    def save_checkpoint(self, content: dict, names: list[str], keep: dict[str, int]) -> None:
        """Write a checkpoint to files of these names, in the background; runs.checkpoint.Writer."""
        if self.group.is_main:
            assert self.folder is not None
            self._is_empty = False
            self._writer.save(content, [self.folder / name for name in names], keep)

    def wait_for_checkpoint(self) -> None:
        """Return when the last checkpoint is on the disk."""
        self._writer.wait()

    def steps(self, steps: Iterable, *, total: int, title: str) -> Iterator:
        """Go through an epoch's optimizer steps with a bar; each calls log_step. Ends with a line of metrics."""
        self._window_start, self._window_images = time.perf_counter(), 0
        self._bar = self.bar(steps, total=total, title=title)
        yield from self._bar
        self._read_step()
        if self._window:
            self._write_window()

    def validation_bar(self, batches: Iterable, *, total: int) -> Iterator:
        """Go through a validation's batches with a bar; its time does not count for the rate of training."""
        self._read_step()  # its line of metrics comes before the validation's
        began = time.perf_counter()
        yield from self.bar(batches, total=total, title="validation")
        self._window_start += time.perf_counter() - began

    def log_step(
        self, epoch: int, step: int, losses: dict[str, Tensor], own: Tensor, lr: float, num_images: int,
        scaling: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Take in an optimizer step, counted from 1 as its epoch: losses over the global batch, "loss" their total.

        own: this rank's parts of the losses. scaling: models.amp.LossScaler.counts, if there is a loss scale. The
        tensors are read one step late, while the device computes the next step. Raises UserError on every rank when
        a loss is not finite, or too many steps in a row were skipped.
        """
        self._is_empty = False
        self._read_step()
        self._writer.check()
        self._unread = (epoch, step, losses, own, lr, num_images, scaling, time.perf_counter())

    def _read_step(self) -> None:
        if self._unread is None:
            return
        epoch, step, losses, own, lr, num_images, scaling, taken_at = self._unread
        self._unread = None
        values = dict(zip(losses, torch.stack(list(losses.values())).tolist(), strict=True))
        for name, value in values.items():
            if not math.isfinite(value):
                finite = self.group.gather(bool(own.isfinite().all()))
                ranks = [rank for rank, good in enumerate(finite) if not good]
                raise DivergedError(
                    f"loss {name!r} is {value} at step {step} (epoch {epoch}), from rank(s) {ranks}: lower --lr, warm up "
                    "for longer, or use --amp bf16 or none"
                )
        assert self._bar is not None
        self._bar.set_postfix(loss=f"{values['loss']:.3f}", lr=f"{lr:.2g}", refresh=False)
        self._window.append(values | {"epoch": epoch, "step": step, "lr": lr} | read_scaling(scaling, step))
        self._window_images += num_images
        self._last_step_at = taken_at
        if step % self.log_interval == 0:
            self._write_window()

    def _write_window(self) -> None:
        """Write a line of metrics: the mean losses since the one before."""
        last = self._window[-1]
        losses = {
            name: sum(values[name] for values in self._window) / len(self._window)
            for name in last
            if name not in LATEST
        }
        # Of the steps that this process did: it may have taken over a window half-way.
        rate = self._window_images / (self._last_step_at - self._window_start) if self._window_images else 0.0
        self._window, self._window_images, self._window_start = [], 0, self._last_step_at
        line = {"kind": "train", "epoch": last["epoch"], "step": last["step"], "loss": losses.pop("loss"),
                "losses": losses, "lr": last["lr"], "images_per_s": rate}  # fmt: skip
        line |= {name: last[name] for name in ("loss_scale", "skipped_steps") if name in last}
        if ACCURACY in losses:
            line[ACCURACY] = losses.pop(ACCURACY)
        self._write(line)
        self._write_scalars(line)

    def _write_scalars(self, line: dict) -> None:
        """A train line of metrics for the boards."""
        names = ("loss", "lr", "images_per_s", "loss_scale", "skipped_steps", ACCURACY)
        scalars = {f"train/{name}": line[name] for name in names if name in line}
        scalars |= {f"train/loss_{name}": mean for name, mean in line["losses"].items()}
        for board in self._boards:
            board.write(line["step"], scalars)

    def log_validation(
        self, epoch: int, step: int, scores: Scores, class_names: list[str], panels: list[np.ndarray]
    ) -> None:
        """Write a validation's scores (evaluation.metrics.scores) and pictures ((H, W, 3) uint8)."""
        self._write({"kind": "val", "epoch": epoch, "step": step, **scores})
        scalars = {"val/miou": scores["miou"], "val/pixel_acc": scores["pixel_acc"], "val/mean_acc": scores["mean_acc"]}
        ious = zip(class_names, scores["iou"], strict=True)
        scalars |= {f"val_iou/{name}": value for name, value in ious if value is not None}
        pictures = {f"val_images/{n}_input_label_prediction_overlay": picture for n, picture in enumerate(panels)}
        for board in self._boards:
            board.write(step, scalars, pictures)

    def _write(self, line: dict) -> None:
        if self._metrics:
            self._metrics.write(json.dumps(line) + "\n")
            self._metrics.flush()
            self._num_lines += 1

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Log the error, if any, and close the files. After an error, a folder without a step is removed."""
        with contextlib.suppress(OSError) if error else contextlib.nullcontext():  # the error may be a full disk
            if error:
                self.info(f"error: {in_one_line(error)}", terminal=False)
            for board in self._boards:
                board.close(failed=bool(error or self.group.stop))
            if self._metrics:
                self._metrics.close()
            if self._log and error and self._is_empty:
                assert self.folder is not None
                run_folder.remove(self.folder, self._log)
            elif self._log:
                self._log.close()
