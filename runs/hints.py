"""What to type next: the commands that train.py prints when a run is stopped, fails or is done."""

import os
import sys
from pathlib import Path

from config import Config
from distributed.group import Group
from errors import DivergedError, UserError
from shell import python_command, quoted, tensorboard_command, torchrun_command


class ResumeHint:
    """Says how to resume this run. As a context manager, it adds that to a UserError once there is a checkpoint.

    A DivergedError gets no hint: the run would fail again.
    folder: the run's folder, None until it has one.
    """

    def __init__(self, cfg: Config, group: Group):
        self.cfg, self.group = cfg, group
        self.folder: Path | None = None
        group.advise(self.after_failure)

    def __str__(self) -> str:
        """A command that resumes on as many processes as now, or else the words to add to the first start's command.

        A resumed run reads its other flags from config.yaml beside the checkpoint.
        """
        words = ["--resume", os.path.join(str(self.folder), "last.pt")]
        if self.group.world_size == 1:
            return f"to resume: {python_command('train.py', *words)}"
        one_machine = self.group.local_world_size == self.group.world_size
        if self.group.launcher == "torchrun" and one_machine and sys.platform != "win32":
            return f"to resume: {torchrun_command(self.group.world_size, 'train.py', *words)}"
        without = " without --reset_data_offset" if self.cfg.reset_data_offset else ""
        return f"to resume, start all processes as before{without} and add: {quoted(words)}"

    def after_failure(self) -> str:
        """What rank 0 adds to an error message of any rank; "" before the first checkpoint."""
        if not (self.group.is_main and self.folder and (self.folder / "last.pt").is_file()):
            return ""
        return f"; {self}"

    def __enter__(self) -> "ResumeHint":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UserError) and not isinstance(error, DivergedError) and self.after_failure():
            raise UserError(f"{error}{self.after_failure()}") from None


def next_steps(logdir: str, folder: Path, validation: list[dict[str, Path]]) -> list[str]:
    """Lines with commands to run after training. validation: the files of each validation image."""
    best = folder / "best.pt"
    source = os.path.commonpath([files["image"].parent for files in validation])
    predict = ["--checkpoint", best, "--input", source, "--output", folder / "predictions", "--overlay"]
    return [
        f"to see the curves: {tensorboard_command(logdir)}",
        f"to score it, with a web page: {python_command('evaluate.py', '--checkpoint', best, '--report', folder / 'report')}",
        f"to predict images: {python_command('predict.py', *predict)}",
        f"to export it: {python_command('export.py', '--checkpoint', best, '--format', 'torch')}",
    ]
