"""A run's folder: find the one to resume, make a new one, and lock it against other processes."""

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import TextIO

from errors import UserError
from files import write_atomic
from runs import checkpoint
from runs.boards import BOARD_FILES

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Files that a start writes before its first step.
_START_FILES = ("train.log", "config.yaml", ".*.part*", ".*.tmp", *BOARD_FILES)


def find(logdir: Path, name: str, resume: str) -> tuple[Path | None, Path | None, dict | None, list[Path]]:
    """Find the run to continue: its folder, the path and content of its checkpoint, and damaged files it replaces.

    resume: a checkpoint's path, or "auto" for the newest intact checkpoint of the newest of logdir/name, name.2,
    name.3 ...; path and content are None if that run ended before its first one. Raises UserError if the
    path is missing, or if all checkpoints are damaged.
    """
    if resume != "auto":
        path = Path(resume)
        if not path.is_file():
            raise UserError(f"--resume {resume}: no such file (auto finds the newest run of --name {name})")
        return path.parent, path, checkpoint.read_run(path), []
    folder = newest(logdir, name)
    if folder is None:
        return None, None, None, []
    newest_path, content, damaged = checkpoint.read_newest(folder)
    if damaged and newest_path is None:
        raise UserError(
            f"{folder}: all checkpoints are damaged ({', '.join(file.name for file in damaged)}): delete them to start "
            "the run again"
        )
    return folder, newest_path, content, damaged


def newest(logdir: Path, name: str) -> Path | None:
    """Return the newest of the runs logdir/name, name.2, name.3 ..., or None."""
    runs = _runs_of(logdir, name)
    return runs[max(runs)] if runs else None


def claim(logdir: Path, name: str) -> tuple[Path, TextIO]:
    """Make the folder of a new run, logdir/name, name.2, name.3 ..., and open its train.log as open_log() does.

    The number follows the highest one in use. A folder whose process ended before the first step is used again.
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
        except FileNotFoundError:  # another process made the folder, failed and removed it
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
    # Check again under the lock: another process may have started a run in the folder, or removed it, meanwhile.
    if (locked or (made and locked is None)) and _is_in(log, folder) and _never_began(folder):
        return log
    log.close()
    return None


def remove(folder: Path, log: TextIO) -> None:
    """Undo claim() before the first step: close the log, and remove the folder unless it has other files."""
    if fcntl is None:  # Windows does not remove an open file
        log.close()
    if _never_began(folder):
        shutil.rmtree(folder, ignore_errors=True)
    log.close()


def open_log(folder: Path) -> TextIO:
    """Open train.log for appending, locked while this process lives: two runs in one folder would mix their files."""
    log = (folder / "train.log").open("a", encoding="utf-8")
    if _lock(log) is False:
        log.close()
        raise UserError(f"{folder}: another process writes to this run: stop it, or choose another --name")
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
    """Whether the folder exists and has no file of a run that did a step."""
    if not folder.is_dir():
        return False
    return all(
        any(map(file.match, _START_FILES)) or (file.name == "metrics.jsonl" and file.stat().st_size == 0)
        for file in folder.iterdir()
    )


def _is_in(log: TextIO, folder: Path) -> bool:
    """Whether the open file is still the folder's train.log."""
    return os.path.samestat(os.fstat(log.fileno()), (folder / "train.log").stat())


def tidy(folder: Path, step: int) -> list[str]:
    """Remove temporary files, and rename checkpoints after `step` to NAME.old: the resumed run replaces them.

    Returns the names of these checkpoints.
    """
    for scratch in (*folder.glob(".*.part*"), *folder.glob(".*.tmp")):  # not those of predictions in a folder below
        scratch.unlink(missing_ok=True)
    later = [file for file in checkpoint.files_of_run(folder) if (checkpoint.step_of(file) or 0) > step]
    for file in later:
        os.replace(file, file.with_name(f"{file.name}.old"))
    return sorted(file.name for file in later)


def keep_lines(path: Path, num_lines: int) -> list[dict]:
    """Keep the first lines of a JSON-lines file, remove the rest, and return the kept ones. The file may be missing."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")][:num_lines]
        values = [json.loads(line) for line in lines]
    except ValueError:
        raise UserError(f"{path}: not valid JSON lines: fix or delete it") from None
    write_atomic(path, "".join(lines), sync=True)
    return values


def _runs_of(logdir: Path, name: str) -> dict[int, Path]:
    """Return {number: folder} of the existing folders logdir/name (number 1), name.2, name.3 ..."""
    numbered = re.compile(re.escape(name) + r"(?:\.(\d+))?")
    matches = {entry: numbered.fullmatch(entry.name) for entry in logdir.iterdir()} if logdir.is_dir() else {}
    return {int(match[1] or 1): entry for entry, match in matches.items() if match}
