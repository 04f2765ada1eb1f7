"""A run's curves and pictures: TensorBoard and, with --wandb, Weights & Biases. Only rank 0 has a Board."""

import os
import secrets
import threading
from pathlib import Path

import numpy as np
import yaml

import config
from config import Config
from runs.log import log
from support import shell
from support.errors import UserError, in_one_line
from support.files import write_atomic, write_errors


class Board:
    """TensorBoard's event files in a run's folder. With --wandb, W&B shows what it reads in them.

    purge_step: points of earlier files are hidden from this step on; the run will write them again. Raises UserError if
    W&B cannot start.
    """

    def __init__(self, cfg: Config, folder: Path, purge_step: int):
        from torch.utils.tensorboard import SummaryWriter  # imported here because it takes a second

        threading.excepthook = _excepthook
        flags = config.dump(cfg)
        self._wandb = start_wandb(folder, flags) if cfg.wandb else None
        self._file = folder / "events.out.tfevents"  # the beginning of its name, for messages
        with write_errors(self._file):
            self._writer = SummaryWriter(str(folder), purge_step=purge_step, flush_secs=10)
            self._writer.add_text("config.yaml", f"```yaml\n{flags}\n```", purge_step)

    def write(self, step: int, scalars: dict[str, float], pictures: dict[str, np.ndarray]) -> None:
        """Add points at `step`, {tag: value}, and pictures, {tag: (H, W, 3) uint8}."""
        with write_errors(self._file):
            for tag, value in scalars.items():
                self._writer.add_scalar(tag, value, step)
            for tag, picture in pictures.items():
                self._writer.add_image(tag, picture, step, dataformats="HWC")

    def flush(self) -> None:
        """Flush all points to disk."""
        with write_errors(self._file):
            self._writer.flush()

    def close(self, failed: bool) -> None:
        """Close the board. failed: the run did not finish."""
        with write_errors(self._file):
            self._writer.close()
        if self._wandb:
            try:
                self._wandb.finish(exit_code=int(failed))
            except Exception as error:  # an online service's failure is not the run's
                log.warning(f"Weights & Biases failed ({in_one_line(error)})")


def _excepthook(args: threading.ExceptHookArgs) -> None:
    """Print the traceback of a thread, except for an OSError of TensorBoard's: the next write raises it again."""
    if not (isinstance(args.exc_value, OSError) and type(args.thread).__module__.startswith("tensorboard.")):
        threading.__excepthook__(args)


def start_wandb(folder: Path, flags: str):
    """Start a W&B run that reads the folder's event files, and return it. A resumed run continues its W&B run.

    flags: the run's flags, as YAML. Raises UserError if the package is missing or W&B cannot start.
    """
    try:
        import wandb
    except ImportError as error:
        raise UserError(f"--wandb: {error}: {shell.install_command('wandb')}") from None
    id_file = folder / "wandb_id"
    if not id_file.exists():
        write_atomic(id_file, secrets.token_hex(8))
    try:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "segtrain"), name=folder.name, dir=folder, resume="allow",
            id=id_file.read_text(encoding="utf-8"), config=yaml.safe_load(flags), sync_tensorboard=True,
            settings=wandb.Settings(console="off"),
        )  # fmt: skip
        run.define_metric("*", step_metric="global_step")  # W&B counts calls, our curves optimizer steps
    except Exception as error:  # login, network and settings errors have no common class
        raise UserError(f"--wandb: {in_one_line(error)} (`wandb login`, or set WANDB_MODE=offline)") from None
    return run
