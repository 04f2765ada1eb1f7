"""A run's folder: finding the one to resume, making a new one, and keeping other processes out of it."""

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import TextIO

from errors import UserError
from runs import checkpoint

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_OF_A_START = re.compile(r"train\.log|config\.yaml|events\.out\.tfevents\..*|wandb|wandb_id|\..*\.tmp")


def find(logdir: Path, name: str, resume: str) -> tuple[Path | None, Path | None, list[Path]]:
    """Folder and checkpoint of the run to continue, if any, and the damaged checkpoints that were passed over.

    resume: "" for a new run, a checkpoint's path, or "auto" for the newest whole checkpoint of the newest of
    logdir/name, name.2, name.3 ...; there is none if that run ended before its first one. Raises
    UserError where there are checkpoints, but none is whole.
    """
    if resume == "":
        return None, None, []
    if resume != "auto":
        chosen = Path(resume)
        if not chosen.is_file():
            raise UserError(f"--resume {resume}: no such file (auto finds the newest run of --name {name})")
        return chosen.parent, chosen, []
    folder = newest(logdir, name)
    if folder is None:
        return None, None, []
    path, damaged = checkpoint.newest_whole(folder)
    if damaged and path is None:
        raise UserError(
            f"{folder}: none of its checkpoints is whole ({', '.join(file.name for file in damaged)}); delete them to "
            "begin the run anew"
        )
    return folder, path, damaged


def newest(logdir: Path, name: str) -> Path | None:
    """The newest of the runs logdir/name, name.2, name.3 ..., if any."""
    runs = _runs_of(logdir, name)
    return runs[max(runs)] if runs else None


def claim(logdir: Path, name: str) -> tuple[Path, TextIO]:
    """A folder for a new run, logdir/name, name.2, name.3 ..., and its train.log: see open_log().

    The number is the first after those of other runs. If its process has ended, a folder
    whose start failed before the first step is used again.
    """
    logdir.mkdir(parents=True, exist_ok=True)
    number = max(_runs_of(logdir, name), default=1)
    while True:
        folder = logdir / (name if number == 1 else f"{name}.{number}")
        try:
            folder.mkdir()
            made = True
        except FileExistsError:
            made = False
        try:
            log = _take(folder, made)
        except FileNotFoundError:  # the start that made it has just failed and removed it
            continue
        if log:
            return folder, log
        number += 1


def _take(folder: Path, made: bool) -> TextIO | None:
    """Lock the folder and return its open train.log; None if another process has it or a run began in it.

    made: whether this process made the folder.
    """
    if not (made or _never_began(folder)):
        return None
    log = (folder / "train.log").open("a", encoding="utf-8")
    locked = _lock(log)
    # Look again under the lock: meanwhile another process may have begun a run in the folder, or removed it.
    if (locked or (made and locked is None)) and _is_in(log, folder) and _never_began(folder):
        return log
    log.close()
    return None


def remove(folder: Path, log: TextIO) -> None:
    """Undo claim() of a folder without a step: close the log, and remove the folder unless others' files are in it."""
    if fcntl is None:  # Windows does not remove an open file
        log.close()
    if _never_began(folder):
        shutil.rmtree(folder, ignore_errors=True)
    log.close()


def open_log(folder: Path) -> TextIO:
    """train.log, to append to, locked while this process lives: two runs in one folder would spoil it."""
    log = (folder / "train.log").open("a", encoding="utf-8")
    if _lock(log) is False:
        log.close()
        raise UserError(f"{folder}: another process writes to this run; stop it, or choose another --name")
    return log


def _lock(log: TextIO) -> bool | None:
    """Lock the file for this process. Returns False if another process holds it, None if files cannot be locked.

    If the file system refuses locks, the log gets a warning.
    """
    if fcntl is None:
        return None
    try:
        # lockf() locks for the process. flock() locks the open file, which workers inherit and may keep open.
        fcntl.lockf(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        log.write(f"{log.name} cannot be locked ({error.strerror}): do not start another process on this run\n")
        return None
    return True


def _never_began(folder: Path) -> bool:
    """Whether a folder has only files that a start writes before its first step."""
    if not folder.is_dir():
        return False
    return all(
        _OF_A_START.fullmatch(file.name) or (file.name == "metrics.jsonl" and file.stat().st_size == 0)
        for file in folder.iterdir()
    )


def _is_in(log: TextIO, folder: Path) -> bool:
    """Whether the open file is still the folder's train.log."""
    return os.path.samestat(os.fstat(log.fileno()), (folder / "train.log").stat())


def tidy(folder: Path, step: int) -> list[str]:
    """Make the folder that of a run of `step` steps: half-written files go, and later checkpoints are set aside.

    Returns the names of the latter, which get ".old" added: they belong to a course that the run left.
    """
    for scratch in folder.glob(".*.tmp"):
        scratch.unlink()
    later = [file for file in checkpoint.files_of_run(folder) if (checkpoint.step_of(file) or 0) > step]
    for file in later:
        os.replace(file, file.with_name(f"{file.name}.old"))
    return sorted(file.name for file in later)


def keep_lines(path: Path, num_lines: int) -> list[dict]:
    """The first lines of a file of JSON objects; what comes after them is dropped, and no file is an empty one."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")][:num_lines]
        values = [json.loads(line) for line in lines]
    except ValueError:
        raise UserError(f"{path}: not a file of JSON lines any more; mend it, or delete it to go on without") from None
    replace_text(path, "".join(lines))
    return values


def replace_text(path: Path, text: str) -> None:
    """Write a text file so that it is the old or the new one, never a part."""
    scratch = path.with_name(f".{path.name}.tmp")
    try:
        with scratch.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise


def _runs_of(logdir: Path, name: str) -> dict[int, Path]:
    """The folders logdir/name, name.2, name.3 ... that are there, by number."""
    numbered = re.compile(re.escape(name) + r"(?:\.(\d+))?")
    matches = {entry: numbered.fullmatch(entry.name) for entry in logdir.iterdir()} if logdir.is_dir() else {}
    return {int(match[1] or 1): entry for entry, match in matches.items() if match}
