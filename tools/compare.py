"""Compare training runs: a table, and a page that overlays their curves.

    python -m tools.compare log/sweep/*

Each run is a folder that train.py wrote. The best one comes first: by the mIoU, or by the IoU of a single object.
"""

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # started as a file from another folder: python PATH/tools/compare.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from flags import FLAGS
from flags.declare import flag
from flags.reader import FlagReader
from support import program
from support.errors import shortened
from support.files import check_file, write_atomic
from support.terminal import display_width, padded, say
from tools.compare_page import MARK, page
from tools.compare_runs import Run, find_runs, read_run, value_text

PLACES = ("name", "logdir")  # flags that say where a run is, not what it does
MAX_CELL = 60  # characters of a value on the terminal; the page has all
MAX_WIDTH = 10**6  # of a line in a file or pipe
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]\d+)?")  # as value_text() writes it


@dataclass(frozen=True)
class CompareFlags:
    """Comparison."""

    runs: tuple[Path, ...] = flag(None, "folders of runs, such as log/demo, or folders of folders", is_argument=True)
    output: Path | None = flag(None, "page to write [compare.html in the folder that all runs are in]")


ABOUT = "Compare training runs: a table, and a page with their curves over each other."
READER = FlagReader(CompareFlags, "-m tools.compare", ABOUT, has_config=False)


def differing_flags(runs: list[Run]) -> dict[str, list[str]]:
    """Return {flag: a text for each run} of the flags whose values differ. "-": no value.

    A flag that a run's version lacked has today's default.
    """
    found = {}
    for name in dict.fromkeys(name for run in runs for name in run.flags if name not in PLACES):
        default = value_text(FLAGS[name].default) if name in FLAGS else None  # None: a flag of earlier versions
        values = [run.flags.get(name, default if run.flags else None) for run in runs]
        if len({*values} - {None}) > 1:
            found[f"--{name}"] = ["-" if value is None else value or '""' for value in values]
    return found


def edge_hint(flags: dict[str, list[str]]) -> str:
    """Return advice if one flag alone differs, by three or more numbers, and the first run has the end of its range.

    flags: result of differing_flags(), the best run first.
    """
    name, texts = next(iter(flags.items()), ("", []))
    if len(flags) > 1 or name == "--seed" or not all(map(_NUMBER.fullmatch, texts)) or len(set(texts)) < 3:
        return ""
    values = [float(text) for text in texts]
    ends = {min(values): ("smallest", "smaller"), max(values): ("largest", "larger")}
    most, more = ends.get(values[0], ("", ""))
    is_end = most and values[0] > 0  # 0 is often "off", and -1 "automatic"
    return f"the best run has the {most} {name} of these runs: also try a {more} one" if is_end else ""


def table_lines(names: list[str], columns: dict[str, list[str]], width: int) -> list[str]:
    """Return a table as lines of text. Columns that do not fit follow below, beside the names again."""
    first = padded([shortened(text, MAX_CELL) for text in ("run", *names)])
    blocks = [[first]]
    for title, cells in columns.items():
        column = padded([shortened(text, MAX_CELL) for text in (title, *cells)], to_right=title != "state")
        if len(blocks[-1]) > 1 and sum(display_width(texts[0]) + 2 for texts in (*blocks[-1], column)) - 2 > width:
            blocks.append([first])
        blocks[-1].append(column)
    tables = [["  ".join(texts).rstrip() for texts in zip(*block, strict=True)] for block in blocks]
    return [line for table in tables for line in (*table, "")]


def main(argv: list[str] | None = None) -> None:
    args = CompareFlags(**READER.command_line(argv).values)
    folders = find_runs(args.runs)
    parent = os.path.commonpath([os.path.dirname(os.path.abspath(folder)) for folder in folders])
    output = args.output or Path(os.path.relpath(parent), "compare.html")
    check_file(output, "--output", mark=MARK, suffix=".html")
    runs = [read_run(folder, Path(os.path.relpath(folder, parent)).as_posix()) for folder in folders]
    runs.sort(key=lambda run: (-run.score, run.name))
    flags = differing_flags(runs)
    by_length = sorted(runs, key=lambda run: -len(run.facts))  # a score that decides is the first title
    titles = dict.fromkeys(title for run in by_length for title in run.facts)
    facts = flags | {title: [run.facts.get(title, "-") for run in runs] for title in titles}
    ious = {name: [run.ious.get(name, "-") for run in runs] for run in runs for name in run.ious}
    tables = {"Runs": facts, "IoU of each class, at the best validation": ious}
    width = shutil.get_terminal_size((MAX_WIDTH, 0)).columns
    for heading, columns in tables.items():
        say(f"{heading}:", *table_lines([run.name for run in runs], columns, width))
    if runs[0].score > 0 and (hint := edge_hint(flags)):
        say(hint)
    write_atomic(output, page(runs, tables))
    say(f"curves: {output}")


if __name__ == "__main__":
    program.run_and_exit(main)
