"""Boards show a run's curves and pictures: TensorBoard and, with --wandb, Weights & Biases. Only rank 0 has them."""

import contextlib
import os
import secrets
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import yaml

import config
from config import Config
from runs.log import log
from support import shell
from support.errors import UserError, in_one_line
from support.files import write_atomic, write_errors

BOARD_FILES = ("events.out.tfevents.*", "wandb", "wandb_id")  # what boards write in a run's folder when they open

# Limit for sending the last data, because other ranks wait and a preempted job ends soon.
FINISH_SECONDS = 20


class Board(Protocol):
    def write(self, step: int, scalars: dict[str, float], pictures: dict[str, np.ndarray] | None = None) -> None:
        """Add a point at `step` to each curve, and pictures.

        scalars: {tag: value}; pictures: {tag: (H, W, 3) uint8}.
        """

    def flush(self) -> None:
        """Flush all points to disk, if the board can."""

    def close(self, failed: bool) -> None:
        """Close the board. failed: the run did not finish."""


def open_boards(cfg: Config, folder: Path, purge_step: int) -> list[Board]:
    """Return the boards of a run: TensorBoard and, with --wandb, Weights & Biases.

    purge_step: the first step that the run will write, maybe for a second time. Raises UserError if W&B cannot start.
    """
    boards: list[Board] = [TensorBoard(folder, purge_step, config.dump(cfg))]
    if cfg.wandb:
        boards.append(WandB(folder, config.dump(cfg)))
    return boards


class TensorBoard:
    """A Board that writes event files in the run's folder. Points of earlier files are hidden from `purge_step` on.

    flags: the run's flags, as YAML, to show among the texts.
    """

    def __init__(self, folder: Path, purge_step: int, flags: str):
        from torch.utils.tensorboard import SummaryWriter  # imported here because it takes a second

        self._file = folder / "events.out.tfevents"  # the beginning of its name, for messages
        threading.excepthook = _excepthook
        with write_errors(self._file):
            self._writer = SummaryWriter(str(folder), purge_step=purge_step, flush_secs=10)
            self._writer.add_text("config.yaml", f"```yaml\n{flags}\n```", purge_step)

    def write(self, step: int, scalars: dict[str, float], pictures: dict[str, np.ndarray] | None = None) -> None:
        with write_errors(self._file):
            for tag, value in scalars.items():
                self._writer.add_scalar(tag, value, step)
            for tag, picture in (pictures or {}).items():
                self._writer.add_image(tag, picture, step, dataformats="HWC")

    def flush(self) -> None:
        with write_errors(self._file):
            self._writer.flush()

    def close(self, failed: bool) -> None:
        with write_errors(self._file):
            self._writer.close()


def _excepthook(args: threading.ExceptHookArgs) -> None:
    """Print the traceback of a thread, except for an OSError of TensorBoard's: the next write raises it again."""
    if not (isinstance(args.exc_value, OSError) and type(args.thread).__module__.startswith("tensorboard.")):
        threading.__excepthook__(args)


class WandB:
    """A Board that writes to a Weights & Biases run, with files in the run's folder.

    A resumed run continues the W&B run.

    flags: the run's flags, as YAML. Raises UserError if W&B cannot start. If W&B fails later, its curves end with a
    warning and training continues.
    """

    def __init__(self, folder: Path, flags: str):
        self._wandb = import_wandb()
        # Defaults for what the user's WANDB_* variables do not set.
        defaults = {
            "project": "segtrain",
            "run_name": folder.name,
            "root_dir": str(folder),
            "run_id": _run_id(folder),
            "resume": "allow",
            "console": "off",
            "show_info": False,
            "finish_timeout": FINISH_SECONDS,
        }
        variables = {"run_name": "WANDB_NAME", "root_dir": "WANDB_DIR"}
        settings = {
            name: value
            for name, value in defaults.items()
            if variables.get(name, f"WANDB_{name.upper()}") not in os.environ
        }
        try:
            with _no_stdin():
                options = self._wandb.Settings(**settings)
                self._wandb.setup(options)  # init() alone ignores show_info
                self._run = self._wandb.init(settings=options)
                self._run.config.update(yaml.safe_load(flags), allow_val_change=True)
                # W&B counts calls; our x-axis is the optimizer step, and a resumed run may repeat some.
                self._run.define_metric("*", step_metric="step")
        except Exception as error:  # login, network and settings errors have no common class
            raise UserError(
                f"--wandb: {in_one_line(error)} (log in with `wandb login` or WANDB_API_KEY, or set WANDB_MODE=offline)"
            ) from None
        files = f"{Path(self._run.dir).parents[1]}/offline-run-*-{self._run.id}"
        offline = f"offline; to upload the run: wandb sync {files}"
        log.info(f"Weights & Biases: {offline if self._run.offline else self._run.url or 'disabled'}")

    def write(self, step: int, scalars: dict[str, float], pictures: dict[str, np.ndarray] | None = None) -> None:
        if self._run:
            with self._guard():
                images = {tag: self._wandb.Image(picture) for tag, picture in (pictures or {}).items()}
                self._run.log({"step": step, **scalars, **images})

    def flush(self) -> None:
        """Do nothing: wandb's own process writes, and no call can wait for it."""

    def close(self, failed: bool) -> None:
        if self._run:
            with self._guard():
                self._run.finish(exit_code=int(failed))
                self._wandb.teardown()

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:  # teardown() exits with the status of wandb's process
            self._run = None
            log.warning(f"Weights & Biases failed ({in_one_line(error)}): nothing more is logged there")
            with contextlib.suppress(Exception, SystemExit):
                self._wandb.teardown()  # otherwise it runs, with a traceback, when this process exits


def import_wandb():
    """Return the module wandb. Raises UserError if the package is not installed."""
    try:
        import wandb

        if wandb.__file__ is None:
            raise ImportError("a folder, not the package")  # Python also imports a folder of wandb's runs
    except ImportError as error:
        raise UserError(f"--wandb: {error}: {shell.install_command('wandb')}") from None
    return wandb


def _run_id(folder: Path) -> str:
    """Return the W&B run id of a folder, 16 random hexadecimal digits kept in the file wandb_id."""
    file = folder / "wandb_id"
    if not file.exists():
        write_atomic(file, secrets.token_hex(8))
    return file.read_text(encoding="utf-8").strip()


@contextlib.contextmanager
def _no_stdin() -> Iterator[None]:
    """Replace stdin by an empty file during the body, so that wandb raises instead of asking for a login."""
    stdin = sys.stdin
    with open(os.devnull) as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = stdin
