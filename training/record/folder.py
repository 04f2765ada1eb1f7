"""A run's folder: find the one to resume, make a new one, and lock it against other processes."""

import contextlib
import errno
import json
import os
import re
from pathlib import Path
from typing import TextIO

from support.errors import UserError
from support.files import json_lines, write_atomic
from support.log import log
from support.yaml_file import read_yaml
from training import checkpoint

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

REPORT = "report.html"


def newest(logdir: Path, name: str) -> Path | None:
    """Return the folder of the newest of the runs logdir/name, name.2, name.3 ... that did a step, or None."""
    runs = {number: folder for number, folder in _runs_of(logdir, name).items() if _began(folder)}
    return runs[max(runs)] if runs else None


def find_best(logdir: Path, name: str) -> Path:
    """Return best.pt of the newest of the runs logdir/name, name.2 ... that has one. Raises UserError without one."""
    runs = sorted(_runs_of(logdir, name).items())
    best = [folder / "best.pt" for _, folder in runs if (folder / "best.pt").is_file()]
    if not best:
        raise UserError(f"{logdir / name / 'best.pt'}: no such file: train this run first, or name a --checkpoint FILE")
    return best[-1]


def check_name(logdir: Path, name: str) -> None:
    """Raise UserError if a new run would be inside another run's folder, or would have others in its own.

    Whoever moves or deletes one of them, or compares all runs of a folder, does not expect the other.
    """
    folder = logdir / name
    if outer := next((parent for parent in folder.parents if logdir in parent.parents and _began(parent)), None):
        other = name.replace("/", "_")
        raise UserError(f"--name {name}: {outer} is the folder of a run: use another name, such as --name {other}")
    if not _began(folder) and (inner := next(folder.glob("*/**/metrics.jsonl"), None)):
        raise UserError(f"--name {name}: {folder} has other runs in it, such as {inner.parent}: use --name {name}/NAME")


def create(logdir: Path, name: str) -> tuple[Path, TextIO]:
    """Make the folder of a new run, and return (folder, train.log, open for appending and locked).

    The folder is logdir/name, name.2, name.3 ..., one number above the highest in use. If a run ended before its first
    checkpoint or line of metrics, the next run takes its folder.
    """
    number = max(_runs_of(logdir, name), default=1)
    while True:
        folder = logdir / (name if number == 1 else f"{name}.{number}")
        folder.mkdir(parents=True, exist_ok=True)
        if not _began(folder) and (file := _locked_log(folder)):
            # Check again under the lock: another process may have started a run in the folder in the meantime.
            if not _began(folder):
                return folder, file
            file.close()
        number += 1


def open_log(folder: Path) -> TextIO:
    """Return a folder's train.log, open and locked. Raises UserError if another process holds the lock."""
    file = _locked_log(folder)
    if file is None:
        raise UserError(f"{folder}: another process writes to this run: stop it, or choose another --name")
    return file


def _locked_log(folder: Path) -> TextIO | None:
    """Return a folder's train.log, open and, if the system can lock files, locked; None if another process has it."""
    file = (folder / "train.log").open("a", encoding="utf-8", errors="backslashreplace")
    try:
        if fcntl:
            # lockf() locks for the process. flock() locks the open file, which workers inherit and may keep open.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            file.close()
            return None
    return file


def _began(folder: Path) -> bool:
    """Return whether a folder has a checkpoint, or metrics of a run that did a step."""
    metrics = folder / "metrics.jsonl"
    return any(folder.glob("*.pt*")) or (metrics.exists() and metrics.stat().st_size > 0)


def tidy(folder: Path, step: int) -> list[str]:
    """Remove temporary files, rename checkpoints of steps after `step` to NAME.old, and return their former names.

    A resumed run writes these checkpoints again. It also renames truncated ones, because a truncated best.pt would keep
    the best score until a better validation. The report is renamed with best.pt, which it describes.
    """
    for scratch in folder.glob(".*.part*"):  # not those of predictions in a folder below
        scratch.unlink(missing_ok=True)
    steps = {file: checkpoint.step_of(file) for file in checkpoint.files_of_run(folder)}
    set_aside = [file for file, its_step in steps.items() if its_step is None or its_step > step]
    report = [folder / REPORT] if folder / "best.pt" in set_aside and (folder / REPORT).is_file() else []
    for file in (*set_aside, *report):
        os.replace(file, file.with_name(f"{file.name}.old"))
    return sorted(file.name for file in set_aside)


def keep_lines(path: Path, num_lines: int) -> list[dict]:
    """Cut a metrics.jsonl to its first `num_lines` lines, and return them as objects.

    A missing file is made, empty. Damaged lines are left out: warns of them, and keeps the old file as *.old.
    """
    lines = [line for line in json_lines(path)[:num_lines] if line is not None]
    if (num_lost := num_lines - len(lines)) > 0:
        log.warning(f"{path}: {num_lost} of {num_lines} lines are damaged or missing: the curves go on without them")
        if path.exists():
            os.replace(path, path.with_name(f"{path.name}.old"))
    write_atomic(path, "".join(json.dumps(line) + "\n" for line in lines), sync=True)
    return lines


def _runs_of(logdir: Path, name: str) -> dict[int, Path]:
    """Return {number: folder} of the existing folders logdir/name (1), name.2, name.3 ..."""
    parent, own_name = (logdir / name).parent, (logdir / name).name
    numbered = re.compile(re.escape(own_name) + r"(?:\.(\d+))?")
    runs = {}
    for entry in parent.iterdir() if parent.is_dir() else ():
        match = numbered.fullmatch(entry.name)
        if match and not (match[1] and _is_named(entry)):
            runs[int(match[1] or 1)] = entry
    return runs


def _is_named(folder: Path) -> bool:
    """Return whether --name gave the folder its number: lr_1.5 is then a run of its own, not the fifth one of lr_1."""
    with contextlib.suppress(UserError, TypeError, KeyError):  # config.yaml is missing or damaged
        return Path(read_yaml(folder / "config.yaml")["name"]).name == folder.name
    return False
