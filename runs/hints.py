"""The commands that train.py prints when a run is stopped, fails or ends."""

import os
import sys
from pathlib import Path

from config import Config
from distributed.group import Group
from shell import python_command, quoted, tensorboard_command, torchrun_command


def resume_hint(cfg: Config, group: Group, folder: Path | None) -> str:
    """Return a command that resumes the run, or else the words to add to the first start's command.

    A resumed run reads its other flags from config.yaml beside the checkpoint.
    """
    words = ["--resume", os.path.join(str(folder), "last.pt")]
    if group.world_size == 1:
        return f"to resume: {python_command('train.py', *words)}"
    one_machine = group.local_world_size == group.world_size
    if group.launcher == "torchrun" and one_machine and sys.platform != "win32":
        return f"to resume: {torchrun_command(group.world_size, 'train.py', *words)}"
    without = " without --reset_data_offset" if cfg.reset_data_offset else ""
    return f"to resume, start all processes as before{without} and add: {quoted(words)}"


def next_steps(logdir: str, folder: Path, validation: list[dict[str, Path]]) -> list[str]:
    """Return lines with the commands to run after training. validation: the files of each validation image."""
    best = folder / "best.pt"
    images = os.path.commonpath([files["image"].parent for files in validation])
    predict = ["--checkpoint", best, "--input", images, "--output", folder / "predictions", "--overlay"]
    return [
        f"curves:  {tensorboard_command(logdir)}",
        f"scores:  {python_command('evaluate.py', '--checkpoint', best, '--report', folder / 'report')}",
        f"predict: {python_command('predict.py', *predict)}",
        f"export:  {python_command('export.py', '--checkpoint', best, '--format', 'torch')}",
    ]
