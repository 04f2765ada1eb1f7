"""A run's curves and pictures in TensorBoard and Weights & Biases. Only rank 0 has boards."""

import os
import secrets
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from flags import Config, as_dict, dump
from training.record.try_or_warn import TryOrWarn

# Our values of wandb's own variables, in seconds. The other ranks wait while rank 0 uploads at the end. A SIGKILL loses
# what W&B's process has not written to its file, by default every 15 s.
WANDB_SECONDS = {"WANDB_FINISH_TIMEOUT": "60", "WANDB__TRANSACTION_LOG_FLUSH_INTERVAL": "1"}


class TensorBoard:
    """TensorBoard's event files in a run's folder.

    purge_step: TensorBoard hides points of earlier files from this step on. The run will write them again.
    """

    def __init__(self, cfg: Config, folder: Path, purge_step: int):
        from torch.utils.tensorboard import SummaryWriter  # imported here because it takes a second

        threading.excepthook = _excepthook
        self._writer = SummaryWriter(str(folder), purge_step=purge_step, flush_secs=10)
        self._writer.add_text("config.yaml", f"```yaml\n{dump(cfg)}\n```", purge_step)

    def write(self, step: int, scalars: dict[str, float], pictures: dict[str, np.ndarray]) -> None:
        """Add points at `step`, {tag: value}, and pictures, {tag: (H, W, 3) uint8}."""
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, step)
        for tag, picture in pictures.items():
            self._writer.add_image(tag, picture, step, dataformats="HWC")

    def flush(self) -> None:
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        """Write what is left. failed: the run ends with an error."""
        self._writer.close()


class WandB:
    """A run of Weights & Biases, with the methods of TensorBoard. A run whose id is known is continued.

    WANDB_* variables take precedence over our options.
    """

    def __init__(self, cfg: Config, folder: Path, run_id: str):
        for name, seconds in WANDB_SECONDS.items():
            os.environ.setdefault(name, seconds)
        import wandb

        run_name = folder.relative_to(cfg.logdir).as_posix() if folder.is_relative_to(cfg.logdir) else folder.name
        ours = {"project": "segtrain", "name": run_name, "dir": str(folder), "resume": "allow", "id": run_id}
        variables = {name: "WANDB_RUN_ID" if name == "id" else f"WANDB_{name.upper()}" for name in ours}
        own: dict = {name: value for name, value in ours.items() if variables[name] not in os.environ}
        self._image, self._teardown = wandb.Image, wandb.teardown
        self._run = wandb.init(config=as_dict(cfg), **own)

    def write(self, step: int, scalars: dict[str, float], pictures: dict[str, np.ndarray]) -> None:
        images = {tag: self._image(picture) for tag, picture in pictures.items()}
        # What has the same step goes into one row. A validation, which has pictures, is the last part of a row.
        self._run.log(scalars | images, step=step, commit=bool(images))

    def flush(self) -> None:
        """Do nothing: W&B's own process writes each row at once."""

    def close(self, *, failed: bool) -> None:
        try:
            self._run.finish(exit_code=int(failed))
        except Exception:
            self._teardown()  # else wandb's exit handler would print a traceback
            raise


class Boards:
    """Write to all boards of a run, and drop a board that fails. Before open() there is none."""

    def __init__(self, try_or_warn: TryOrWarn):
        self._try_or_warn, self.wandb_id = try_or_warn, ""
        self._boards: dict[str, TensorBoard | WandB] = {}

    def open(self, cfg: Config, folder: Path, *, purge_step: int, wandb_id: str) -> None:
        """Open all boards. wandb_id: the W&B run to continue; "": start a new one. purge_step: see TensorBoard."""
        self.wandb_id = wandb_id
        makers: dict[str, Callable[[], TensorBoard | WandB]] = {
            f"TensorBoard's file in {folder}": partial(TensorBoard, cfg, folder, purge_step)
        }
        if cfg.wandb:
            self.wandb_id = os.environ.get("WANDB_RUN_ID") or wandb_id or secrets.token_hex(4)
            makers["Weights & Biases"] = partial(WandB, cfg, folder, self.wandb_id)
        opened = {name: self._try_or_warn(name, make) for name, make in makers.items()}
        self._boards = {name: board for name, board in opened.items() if board}

    def write(self, step: int, scalars: dict[str, float], pictures: dict[str, np.ndarray]) -> None:
        for name, board in self._boards.items():
            self._try_or_warn(name, partial(board.write, step, scalars, pictures))

    def flush(self) -> None:
        for name, board in self._boards.items():
            self._try_or_warn(name, board.flush)

    def close(self, *, failed: bool) -> None:
        for name, board in self._boards.items():
            self._try_or_warn(name, partial(board.close, failed=failed), closes=True)


def _excepthook(args: threading.ExceptHookArgs) -> None:
    """Print the traceback of a thread, except for TensorBoard's: the next write raises its error again."""
    if not type(args.thread).__module__.startswith("tensorboard."):
        threading.__excepthook__(args)
