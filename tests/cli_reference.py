"""Write docs/cli.md from the flags as the programs declare them.

python -m tests.cli_reference
"""

import argparse
import re
from itertools import groupby
from pathlib import Path
from typing import Any

from data import distance
from flags import READER
from flags.programs import EVALUATE, EXPORT, PREDICT, PSEUDO
from flags.reader import FlagReader
from tools import split
from tools.check.__main__ import READER as CHECK
from tools.compare import READER as COMPARE
from tools.convert.__main__ import READER as CONVERT
from tools.scribbles.__main__ import READER as SCRIBBLES
from tools.scribbles.pipeline import READER as PIPELINE
from tools.suggest.__main__ import READER as SUGGEST

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
HEAD = """# Command line

<!-- Written by `python -m tests.cli_reference`; change the declarations, not this page. -->

Every flag of every program, grouped as in `--help`. The prefix `no_` turns a `switch` off, as in `--no_augment`. A
default in brackets is worked out if the flag is not given.

All programs whose name ends with `.py` also take `--config FILE`, a YAML file of `flag: value` lines; the command line
overrides it. `--stage NAME` chooses one of the sections below `stages:` in the file, which overrides the rest of it. In
`evaluate.py`, `predict.py`, `pseudo.py` and `export.py`, data and model flags default to the checkpoint's values; the
defaults below are only for weights from elsewhere. Dashes in names equal underscores.
"""
STATUSES = """
## Exit status

| status | program | meaning |
| --- | --- | --- |
| 0 | all | done |
| 1 | `predict.py` | done, except for the listed files, which could not be read |
| 1 | `python -m tools.check` | warnings |
| 1 | `python -m tools.convert`, `python -m tools.scribbles` | done, except for what it names |
| 2 | `python -m tools.check` | errors in the data, or the next line |
| 2 | all | an error that you can fix: one line on standard error says what |
| 75 | all | stopped by a signal; `train.py` has saved and prints how to resume |
| 130 | all | Ctrl-C stopped it at once |
| other | all | a bug, with its traceback (1), or a signal (128 + its number) |

`torchrun` always ends with 1, after a report of its own, which has the line of an error.
`train_torchrun.sh`, `train_ddp.sh` and `run_ddp.sh` end with the status of the process that failed first, and its line;
after a signal, with 75 if all processes stopped and saved.
"""
PROGRAMS = (READER, EVALUATE, PREDICT, PSEUDO, EXPORT)
TOOLS = (CHECK, CONVERT, split.READER, COMPARE, SCRIBBLES, PIPELINE, SUGGEST)
COLUMNS = ("| flag | type | default | meaning |", "| --- | --- | --- | --- |")


def page() -> str:
    """The whole of docs/cli.md."""
    lines = [HEAD.rstrip()]
    for reader in (*PROGRAMS, *TOOLS):
        lines += ["", f"## {'python ' if reader in TOOLS else ''}{reader.program}", "", *_of_reader(reader)]
    lines += ["", "## python -m data.distance", "", *_of_parser(distance.parser())]
    return "\n".join(lines) + "\n" + STATUSES


def _of_reader(reader: FlagReader) -> list[str]:
    """A table for each group of a program's flags, and their other names."""
    lines = [reader.description.partition("\n")[0]]
    if reader.arguments:
        lines += ["", "### Arguments", "", *COLUMNS]
    for item in reader.arguments:
        kind, note = ("path" if item.kind is Path else "name"), (" [required]" if item.default is None else "")
        lines.append(_row(f"`{item.name.upper()}`", kind, item.help + note, item.default, item.choices))
    for group, flags in groupby(reader.flags.values(), lambda item: item.group):
        lines += ["", f"### {group}", "", *COLUMNS]
        for item in flags:
            kind = "switch" if item.kind is bool else item.kind.__name__.upper() + " ..." * item.is_list
            lines.append(_row(f"`--{item.name}`", kind, item.help, item.default, item.choices))
    if reader in TOOLS:
        return lines
    if reader is not READER:
        return [
            *lines,
            "",
            "The other names of these flags are those of `train.py`; `--batch_size` is `--val_batchsize`.",
        ]
    lines += ["", "Other names, in all programs that have the flag:", "", "| name | flag |", "| --- | --- |"]
    return lines + [f"| `--{alias}` | `--{name}` |" for alias, name in reader.aliases.items()]


def _of_parser(parser: argparse.ArgumentParser) -> list[str]:
    """A table of the flags of an argparse program."""
    lines = [parser.description or "", "", *COLUMNS]
    for action in parser._actions[1:]:
        name = f"`{action.option_strings[0]}`" if action.option_strings else f"`{action.metavar}`"
        kind = f"{action.metavar or 'STR'}{' ...' if action.nargs else ''}" if action.option_strings else "path"
        kind = "switch" if action.nargs == 0 else "name" if action.choices and not action.option_strings else kind
        help = (action.help or "") + (" [required]" if action.required and "[" not in (action.help or "") else "")
        lines.append(_row(name, kind, help, action.default, tuple(action.choices or ())))
    return lines


def _row(name: str, kind: str, help: str, default: Any, choices: tuple) -> str:
    """A row of a table. The help's text in brackets, if any, is the default."""
    found = re.search(r" ?\[([^]]*)\]", help)
    if found:
        help, shown = help.replace(found[0], "", 1), f"[{found[1]}]"
    elif isinstance(default, bool):
        shown = "on" if default else "off"
    else:
        text = " ".join(map(str, default if isinstance(default, tuple) else [default]))
        shown = "none" if default in (None, "", (), []) else f"`{text}`"
    if choices:
        help += "; one of " + ", ".join(f"`{choice}`" for choice in choices)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (name, kind, shown, help)) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
