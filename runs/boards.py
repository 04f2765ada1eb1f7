"""A run's curves and pictures in TensorBoard. Only rank 0 has a Board."""

import threading
from pathlib import Path

import numpy as np

import config
from config import Config
from support.files import write_errors


class Board:
    """TensorBoard's event files in a run's folder.

    purge_step: points of earlier files are hidden from this step on; the run will write them again.
    """

    def __init__(self, cfg: Config, folder: Path, purge_step: int):
        from torch.utils.tensorboard import SummaryWriter  # imported here because it takes a second

        threading.excepthook = _excepthook
        self._file = folder / "events.out.tfevents"  # the beginning of its name, for messages
        with write_errors(self._file):
            self._writer = SummaryWriter(str(folder), purge_step=purge_step, flush_secs=10)
            self._writer.add_text("config.yaml", f"```yaml\n{config.dump(cfg)}\n```", purge_step)

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

    def close(self) -> None:
        with write_errors(self._file):
            self._writer.close()


def _excepthook(args: threading.ExceptHookArgs) -> None:
    """Print the traceback of a thread, except for an OSError of TensorBoard's: the next write raises it again."""
    if not (isinstance(args.exc_value, OSError) and type(args.thread).__module__.startswith("tensorboard.")):
        threading.__excepthook__(args)
