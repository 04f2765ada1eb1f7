"""Where a run's curves and pictures are shown: TensorBoard, and on request Weights & Biases. Only rank 0 has any."""

import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import yaml

import shell
from errors import UserError, in_one_line
from runs.folder import replace_text

FINISH_SECONDS = (
    20  # that W&B may take for the last data; the other ranks wait meanwhile, and a stopped job's grace is short
)


class Board(Protocol):
    def write(self, step: int, scalars: dict[str, float], pictures: dict[str, np.ndarray] | None = None) -> None:
        """Add a point to each curve, and pictures ((H, W, 3) uint8), all by their tag."""

    def flush(self) -> None:
        """Return when all so far is on disk, where the board can tell."""

    def close(self, failed: bool) -> None:
        """failed: the run has not come to its end."""


class TensorBoard:
    """Event files in the run's folder. What earlier files have from `purge_step` on is left out."""

    def __init__(self, folder: Path, purge_step: int):
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import: only where it is used

        self._writer = SummaryWriter(str(folder), purge_step=purge_step, flush_secs=10)

    def write(self, step: int, scalars: dict[str, float], pictures: dict[str, np.ndarray] | None = None) -> None:
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, step)
        for tag, picture in (pictures or {}).items():
            self._writer.add_image(tag, picture, step, dataformats="HWC")

    def flush(self) -> None:
        self._writer.flush()

    def close(self, failed: bool) -> None:
        self._writer.close()


class WandB:
    """A run of Weights & Biases, with its files in the run's folder; resumed, it is the same one.

    config: the flags, as YAML. say: takes lines for the user. A failure after the start ends these curves, with a
    line, and not the training.
    """

    def __init__(self, folder: Path, config: str, say: Callable[[str], None]):
        self._wandb, self._say = import_wandb(), say
        # Unless the user's variables say otherwise, which wandb reads by itself. Its errors and warnings are shown.
        chosen = {
            "WANDB_PROJECT": ("project", "segtrain"),
            "WANDB_NAME": ("run_name", folder.name),
            "WANDB_DIR": ("root_dir", str(folder)),
            "WANDB_RUN_ID": ("run_id", _id_of(folder)),
            "WANDB_RESUME": ("resume", "allow"),
            "WANDB_CONSOLE": ("console", "off"),
            "WANDB_SHOW_INFO": ("show_info", False),
            "WANDB_FINISH_TIMEOUT": ("finish_timeout", FINISH_SECONDS),
        }
        settings = dict(setting for variable, setting in chosen.items() if variable not in os.environ)
        try:
            with _no_terminal():
                options = self._wandb.Settings(**settings)
                self._wandb.setup(options)  # which alone heeds show_info
                self._run = self._wandb.init(settings=options)
                self._run.config.update(yaml.safe_load(config), allow_val_change=True)
                # W&B counts calls by itself; the curves are over our steps, of which a resumed run may repeat some.
                self._run.define_metric("*", step_metric="step")
        except Exception as error:  # of a login, the network or its variables; they have no common class
            raise UserError(
                f"--wandb: {in_one_line(error)} (log in by `wandb login` or WANDB_API_KEY, or set WANDB_MODE=offline)"
            ) from None
        files = f"{Path(self._run.dir).parents[1]}/offline-run-*-{self._run.id}"
        offline = f"offline; to upload the run: wandb sync {files}"
        say(f"Weights & Biases: {offline if self._run.offline else self._run.url or 'disabled'}")

    def write(self, step: int, scalars: dict[str, float], pictures: dict[str, np.ndarray] | None = None) -> None:
        if self._run:
            with self._guard():
                images = {tag: self._wandb.Image(picture) for tag, picture in (pictures or {}).items()}
                self._run.log({"step": step, **scalars, **images})

    def flush(self) -> None:
        """wandb's own process writes; no call waits for that."""

    def close(self, failed: bool) -> None:
        if self._run:
            with self._guard():
                self._run.finish(exit_code=int(failed))
                self._wandb.teardown()

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:  # the latter of teardown(), with the status of wandb's process
            self._run = None
            self._say(f"Weights & Biases failed ({in_one_line(error)}): nothing more is logged there")
            with contextlib.suppress(Exception, SystemExit):
                self._wandb.teardown()  # which would be tried, with a traceback, when this process exits


def import_wandb():
    """The package. Raises UserError where it is not installed."""
    try:
        import wandb

        if wandb.__file__ is None:
            raise ImportError("no package of that name but a folder")  # such as one of its runs; Python imports it
    except ImportError as error:
        install = shell.python_command("-m", "pip", "install", "-r", shell.repo_file("requirements-wandb.txt"))
        raise UserError(f"--wandb: {error}: {install}") from None
    return wandb


def _id_of(folder: Path) -> str:
    """The id of the folder's run at W&B: kept in the folder, as other machines have folders of the same name."""
    file = folder / "wandb_id"
    if not file.exists():
        replace_text(file, secrets.token_hex(8))
    return file.read_text(encoding="utf-8").strip()


@contextlib.contextmanager
def _no_terminal() -> Iterator[None]:
    """Without a terminal wandb raises where it would ask for a login, and the other ranks would wait."""
    stdin = sys.stdin
    with open(os.devnull) as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = stdin
