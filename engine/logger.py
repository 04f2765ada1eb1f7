"""A run's folder and what is written there: log, metrics, TensorBoard. Silent on every rank but 0."""

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import torch
from torch import Tensor
from tqdm import tqdm

from engine.distributed import Group
from engine.metrics import Scores
from errors import UserError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Run:
    """One run of training. Every rank has one and calls it alike; only rank 0 prints and writes.

    log_interval: optimizer steps between two lines of metrics.
    """

    def __init__(self, group: Group, log_interval: int):
        self.group, self.log_interval = group, log_interval
        self.folder: Path | None = None  # of a new run, once open() has made it
        self._lines: list[str] = []  # of the log, before there is a folder
        self._log: TextIO | None = None
        self._metrics: TextIO | None = None
        self._board: SummaryWriter | None = None
        self._bar: tqdm | None = None
        self._unread: tuple | None = None  # the last step, whose losses may still be on their way
        self._window: list[dict[str, float]] = []  # losses of the steps since the last line of metrics
        self._window_start, self._window_images = 0.0, 0

    def info(self, text: str, *, every_rank: bool = False) -> None:
        """Say a line on the terminal and in train.log; with every_rank, on every rank's terminal."""
        if not (self.group.is_main or every_rank):
            return
        tqdm.write(text)
        if not self.group.is_main:
            return
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n"
        if self._log:
            self._log.write(line)
            self._log.flush()
        else:
            self._lines.append(line)

    def find_checkpoint(self, logdir: str, name: str, resume: str) -> Path | None:
        """The checkpoint to continue from, if any, the same on every rank.

        resume: a checkpoint's path; or "auto" for the last.pt of the newest of logdir/name, name.2, name.3 ...
        The run goes on in the folder of what it continues, and otherwise in one that open() makes.
        """
        found: tuple[Path | None, Path | None] | UserError | None = None
        if self.group.is_main:
            try:
                found = _find_run(Path(logdir), name, resume)
            except UserError as error:
                found = error
        found = self.group.broadcast(found)
        if isinstance(found, UserError):
            raise found
        assert found is not None
        self.folder, checkpoint = found
        return checkpoint

    def open(self, logdir: str, name: str, config: str, step: int) -> None:
        """Open the run's files, after `step` optimizer steps; what was written past them is dropped.

        A new run gets the first of logdir/name, name.2, name.3 ... that is free: none writes over another.
        """
        if not self.group.is_main:
            return
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import: only where it is used

        try:
            self.folder = self.folder or _make_folder(Path(logdir), name)
            _replace(self.folder / "config.yaml", config)
            self._log = (self.folder / "train.log").open("a", encoding="utf-8")
            self._log.writelines(self._lines)
            self._log.flush()
            _drop_lines_after(self.folder / "metrics.jsonl", step)
            self._metrics = (self.folder / "metrics.jsonl").open("a", encoding="utf-8")
            self._board = SummaryWriter(str(self.folder), purge_step=step + 1, flush_secs=10)
        except OSError as error:
            raise UserError(f"{self.folder or logdir}: cannot be written ({error.strerror})") from None

    def bar(self, items: Iterable, *, total: int, title: str) -> tqdm:
        """A progress bar with rate and time left, on rank 0."""
        return tqdm(
            items, total=total, desc=title, leave=False, dynamic_ncols=True, disable=not self.group.is_main,
            mininterval=0.2 if sys.stderr.isatty() else 30,  # a log file wants few lines
        )  # fmt: skip

    def steps(self, steps: Iterable, *, total: int, title: str) -> Iterator:
        """Go through an epoch's optimizer steps with a bar; each calls log_step. Ends with a line of metrics."""
        self._window_start = time.perf_counter()
        self._bar = self.bar(steps, total=total, title=title)
        yield from self._bar
        self._read_step(last=True)

    def log_step(self, epoch: int, step: int, losses: dict[str, Tensor], lr: float, num_images: int) -> None:
        """Take in an optimizer step, counted from 1 as its epoch: losses over the global batch, "loss" their total.

        They are read one step late, so that the device has the next step to work on meanwhile. Raises
        UserError on every rank when one is not finite.
        """
        self._read_step()
        self._unread = (epoch, step, losses, lr, num_images, time.perf_counter())

    def _read_step(self, last: bool = False) -> None:
        if self._unread is None:
            return
        epoch, step, losses, lr, num_images, taken_at = self._unread
        self._unread = None
        values = dict(zip(losses, torch.stack(list(losses.values())).tolist(), strict=True))
        for name, value in values.items():
            if not math.isfinite(value):
                raise UserError(
                    f"loss {name!r} is {value} at step {step} (epoch {epoch}): lower --lr, warm up for longer, or use "
                    "--amp bf16 or none; last.pt is of the epoch before"
                )
        assert self._bar is not None
        self._bar.set_postfix(loss=f"{values['loss']:.3f}", lr=f"{lr:.2g}", refresh=False)
        self._window.append(values)
        self._window_images += num_images
        if last or step % self.log_interval == 0:
            self._write_window(epoch, step, lr, taken_at)

    def _write_window(self, epoch: int, step: int, lr: float, now: float) -> None:
        means = {name: sum(values[name] for values in self._window) / len(self._window) for name in self._window[0]}
        rate = self._window_images / (now - self._window_start)
        self._window, self._window_images, self._window_start = [], 0, now
        loss = means.pop("loss")
        self._write(
            {
                "kind": "train",
                "epoch": epoch,
                "step": step,
                "loss": loss,
                "losses": means,
                "lr": lr,
                "images_per_s": rate,
            }
        )
        if self._board:
            scalars = {"loss": loss, "lr": lr, "images_per_s": rate} | {
                f"loss_{name}": mean for name, mean in means.items()
            }
            for tag, value in scalars.items():
                self._board.add_scalar(f"train/{tag}", value, step)

    def log_validation(
        self, epoch: int, step: int, scores: Scores, class_names: list[str], panels: list[Tensor]
    ) -> None:
        """Write a validation's scores (engine.metrics.scores) and pictures ((H, W, 3) uint8)."""
        self._write({"kind": "val", "epoch": epoch, "step": step, **scores})
        if not self._board:
            return
        self._board.add_scalar("val/miou", scores["miou"], step)
        self._board.add_scalar("val/pixel_acc", scores["pixel_acc"], step)
        self._board.add_scalar("val/mean_acc", scores["mean_acc"], step)
        for name, value in zip(class_names, scores["iou"], strict=True):
            if value is not None:
                self._board.add_scalar(f"val_iou/{name}", value, step)
        for number, picture in enumerate(panels):
            tag = f"val_images/{number}_input_label_prediction_overlay"
            self._board.add_image(tag, picture, step, dataformats="HWC")

    def _write(self, line: dict) -> None:
        if self._metrics:
            self._metrics.write(json.dumps(line) + "\n")
            self._metrics.flush()

    def close(self) -> None:
        for file in (self._board, self._metrics, self._log):
            if file:
                file.close()


def table(scores: Scores, class_names: list[str]) -> str:
    """Per-class IoU and the summary scores, in per cent."""
    width = max(len(name) for name in [*class_names, "pixel accuracy"])
    rule = "  " + "-" * (width + 7)
    summary = {"mIoU": scores["miou"], "pixel accuracy": scores["pixel_acc"], "mean accuracy": scores["mean_acc"]}
    rows = [f"  {'class':<{width}}    IoU", rule]
    for name, value in zip(class_names, scores["iou"], strict=True):
        rows.append(f"  {name:<{width}} " + ("absent" if value is None else f"{100 * value:6.2f}"))
    return "\n".join([*rows, rule, *(f"  {name:<{width}} {100 * value:6.2f}" for name, value in summary.items())])


def _runs_of(logdir: Path, name: str) -> dict[int, Path]:
    """The folders logdir/name, name.2, name.3 ... that are there, by number."""
    numbered = re.compile(re.escape(name) + r"(?:\.(\d+))?")
    matches = {entry: numbered.fullmatch(entry.name) for entry in logdir.iterdir()} if logdir.is_dir() else {}
    return {int(match[1] or 1): entry for entry, match in matches.items() if match}


def _find_run(logdir: Path, name: str, resume: str) -> tuple[Path | None, Path | None]:
    """Folder and checkpoint of the run to continue; no checkpoint if it ended before its first one."""
    runs = _runs_of(logdir, name)
    if resume == "" or (resume == "auto" and not runs):
        return None, None
    checkpoint = runs[max(runs)] / "last.pt" if resume == "auto" else Path(resume)
    if resume != "auto" and not checkpoint.is_file():
        raise UserError(f"--resume {resume}: no such file (auto finds the newest run of --name {name})")
    return checkpoint.parent, checkpoint if checkpoint.is_file() else None


def _make_folder(logdir: Path, name: str) -> Path:
    logdir.mkdir(parents=True, exist_ok=True)
    number = max(_runs_of(logdir, name), default=0) + 1
    while True:
        folder = logdir / (name if number == 1 else f"{name}.{number}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:  # another run took it meanwhile
            number += 1


def _drop_lines_after(path: Path, step: int) -> None:
    """Keep the lines of metrics of up to `step` steps; a line cut short by a kill goes, too."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n") and json.loads(line)["step"] <= step:
            kept.append(line)
    _replace(path, "".join(kept))


def _replace(path: Path, text: str) -> None:
    """Write a text file so that it is the old or the new one, never a part."""
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)
