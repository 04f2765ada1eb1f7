"""Read a run's folder: its flags, curves, scores, time, and how it ended."""

import contextlib
import json
import re
import statistics
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from data.classes import read_classes
from support.best_score import deciding_score
from support.errors import UserError
from support.files import json_lines, read_bytes
from support.progress import duration
from support.yaml_file import read_yaml

FILES = ("config.yaml", "metrics.jsonl", "train.log")  # the folder of a run has at least one of them
_LOG_LINE = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (.*)", re.MULTILINE)


class Run(NamedTuple):
    """A run. flags, loss, miou and ious are empty if the run has none, as after a start that failed."""

    name: str
    flags: dict[str, str]
    loss: list[tuple[int, float]]  # (step, training loss)
    miou: list[tuple[int, float]]  # (step, mIoU of the validation)
    score: float  # of the best validation, which decides: the mIoU, or the IoU of a single object; -1: none
    facts: dict[str, str]  # {title of a column: text}; "-" is a missing value
    ious: dict[str, str]  # {class: IoU at the best validation}; "-": neither labelled nor predicted


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the folders of runs: the paths, or the runs in a path. Files are skipped: a shell's * matches them, too.

    Raises UserError if a path is missing, or is a folder that neither is a run nor has one.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such folder: name the folders of runs, such as log/demo")
        folders = [path, *sorted(path.iterdir())] if path.is_dir() else []
        runs = [folder for folder in folders if any((folder / name).is_file() for name in FILES)]
        if folders and not runs:
            raise UserError(f"{path}: neither a run nor a folder of runs: name the folders of runs, such as log/demo")
        found |= {folder.resolve(): folder for folder in ([path] if path in runs else runs)}
    if not found:
        raise UserError(f"{paths[0]}: a file: name the folders of runs, such as log/demo")
    return list(found.values())


def read_run(folder: Path, name: str) -> Run:
    """Read a run's folder. Missing files, and damaged lines as a killed run leaves them, are left out.

    Raises UserError if config.yaml is there but cannot be read.
    """
    flags = _read_flags(folder / "config.yaml")
    lines = [line for line in json_lines(folder / "metrics.jsonl") if line is not None]
    background = flags.get("background", "0")

    def score(line: dict) -> tuple[float, str]:
        names = [str(number) for number in range(len(line.get("iou") or []))]
        name, value = deciding_score(line, names, int(background) if background.isdecimal() else None)
        return -1.0 if value is None else value, name

    best = max((line for line in lines if line.get("miou") is not None), key=score, default={})
    best_score, name_of_score = score(best) if best else (-1.0, "mIoU")
    rates = [rate for _, rate in _curve(lines, "images_per_s")]
    steps = max((line["step"] for line in lines), default=0)
    state, seconds, planned_steps = _read_log(folder / "train.log")
    facts = {name_of_score: _percent(best_score)} if best_score >= 0 else {}
    facts |= {
        "mIoU": _percent(best.get("miou")),
        "at step": str(best.get("step", "-")),
        "steps": str(steps) if state == "done" or steps >= planned_steps else f"{steps} of {planned_steps}",
        "time": duration(seconds) if seconds else "-",
        "images/s": f"{statistics.median(rates):.3g}" if rates else "-",
        "state": state if best else f"{state}, no validation",
    }
    ious = _by_class(best.get("iou") or [], flags.get("classes", ""))
    return Run(name, flags, _curve(lines, "loss"), _curve(lines, "miou"), best_score, facts, ious)


def _curve(lines: list[dict], name: str) -> list[tuple[int, float]]:
    """Return (step, value) of the lines that have this value: those of training or those of validation."""
    return [(line["step"], line[name]) for line in lines if line.get(name) is not None]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _by_class(values: list[float | None], classes: str) -> dict[str, str]:
    """Return {name: IoU}. Names are numbers if the file of --classes is missing or no longer matches."""
    names = [str(number) for number in range(len(values))]
    with contextlib.suppress(UserError):
        names = read_classes(classes, len(values)).names
    return dict(zip(names, map(_percent, values), strict=True))


def _read_flags(path: Path) -> dict[str, str]:
    """Return {flag: value as text} of a config.yaml; {} without one."""
    if not path.is_file():
        return {}
    try:
        content = read_yaml(path)
    except UserError as error:
        raise UserError(f"{error}: repair it, or leave this run out") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected lines 'flag: value': repair it, or leave this run out")
    return {str(name): value_text(value) for name, value in content.items()}


def value_text(value: Any) -> str:
    """Return a flag's value as in YAML, but numbers in their shortest form, so that 1.0e-3 equals 0.001."""
    if isinstance(value, list | tuple):
        return " ".join(map(value_text, value))
    text = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    if re.fullmatch(r"[-+]?(\d+\.\d*|\.\d+|\d+)(e[-+]?\d+)?", text, re.IGNORECASE) and not text.isdecimal():
        return f"{float(text):g}"
    return text


def _read_log(path: Path) -> tuple[str, float, int]:
    """Return how a run ended, its seconds without the time between two starts, and its planned number of steps.

    Neither a killed run nor one that still trains has a last line: both are "not finished".
    """
    state, seconds, planned_steps, before = "", 0.0, 0, None
    text = read_bytes(path, 2**30).decode("utf-8", "replace") if path.is_file() else ""
    for stamp, line in _LOG_LINE.findall(text):
        if line.startswith("rank 0, local rank "):  # the first line of each start
            state, before = "", None
        with contextlib.suppress(ValueError):  # a damaged line
            now = datetime.fromisoformat(stamp)
            seconds += max(0.0, (now - before).total_seconds()) if before else 0.0
            before = now
            if match := re.search(r"(\d+) steps? in all", line):
                planned_steps = int(match[1])
        if line.startswith(("done: ", "stopped by ", "error: ")):
            state = {"d": "done", "s": "stopped"}.get(line[0], line)
    return state or "not finished", seconds, planned_steps
