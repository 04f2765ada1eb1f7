"""Write docs/cli.md from the flags as the programs declare them.

python -m scripts.cli_reference
"""

import argparse
import inspect
import re
from pathlib import Path
from typing import Any

import config
import evaluate
import export
import predict
from config.flags import FlagReader
from data import distance
from data.check import __main__ as check

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
HEAD = """# Command line

<!-- Written by `python -m scripts.cli_reference`; change the declarations, not this page. -->

Every flag of every program. Each program also takes `--help`. A `switch` is turned off by its name with `no_` before it. A
default in brackets is worked out: where the flag is not given, it is as said there.

`train.py`, `evaluate.py`, `predict.py` and `export.py` also take `--config FILE`, a YAML file of `flag: value` lines; the command
line goes over it. Of the sections below `stages:` in it, `--stage NAME` chooses one whose values go over the rest. The defaults of `evaluate.py`, `predict.py` and `export.py` for data and model are the checkpoint's own
values; those below are only for weights from elsewhere. Dashes in names equal underscores.
"""
STATUSES = """
## Exit status

| status | of | meaning |
| --- | --- | --- |
| 0 | all | done |
| 1 | `predict.py` | done, but for files that could not be read; they are listed |
| 1 | `python -m data.check` | warnings |
| 2 | `python -m data.check` | errors in the data, or as below |
| 2 | all | something that you can put right: one line on standard error says what |
| 75 | `train.py`, `evaluate.py`, `predict.py` | stopped by a signal; `train.py` has saved, and prints the command that resumes it |
| 130 | all | stopped at once by Ctrl-C |
| other | all | a bug of ours, with its traceback (1), or ended by a signal (128 + its number) |

`torchrun` ends with 1 whatever a process of it ended with, after a report of its own.
"""
PROGRAMS = (
    ("train.py", config.READER), ("evaluate.py", evaluate.READER), ("predict.py", predict.READER),
    ("export.py", export.READER), ("python -m data.check", check.parser()),
    ("python -m data.distance", distance.parser()),
)  # fmt: skip


def page() -> str:
    """The whole of docs/cli.md."""
    lines = [HEAD.rstrip()]
    for title, declared in PROGRAMS:
        lines += ["", f"## {title}", ""]
        lines += _of_reader(declared) if isinstance(declared, FlagReader) else _of_parser(declared)
        if isinstance(declared, FlagReader) and declared.aliases:
            lines += [
                "",
                "Other names that are taken, with a note that says ours:",
                "",
                "| name | ours |",
                "| --- | --- |",
            ]
            for name, ours in declared.aliases.items():
                ours, _, remark = ours.partition(" ")
                shown = f"`{name}` in YAML" if "." in name else f"`--{name}`"
                lines.append(f"| {shown} | `--{ours}` {remark}".rstrip() + " |")
    return "\n".join(lines) + "\n" + STATUSES


def _of_reader(reader: FlagReader) -> list[str]:
    """A table for each group of a program's flags, its own first."""
    lines = [reader.parser.description or ""]
    for title, names in _groups(reader.declared):
        lines += ["", f"### {title}", "", "| flag | type | default | meaning |", "| --- | --- | --- | --- |"]
        for name in names:
            item = reader.fields[name]
            help, default = item.metadata["help"], item.default
            found = re.search(r" ?\[([^]]*)\]", help)  # brackets in a help text say the default
            shown = f"[{found[1]}]" if found else _code(default)
            help = help.replace(found[0], "", 1) if found else help
            kind = reader.parser._option_string_actions[f"--{name}"]
            what = "switch" if kind.nargs == 0 else f"{kind.metavar} ..." if kind.nargs else kind.metavar
            lines.append(_row(f"`--{name}`", what, shown, help, item.metadata["choices"]))
    return lines


def _groups(declared: type) -> list[tuple[str, list[str]]]:
    """Fields by group: a dataclass, by its name, or in it what stands below a comment line `# Title` or `# Title: more`."""
    groups: dict[str, list[str]] = {}
    for cls in declared.__mro__[:-1]:
        title, known = cls.__name__.removesuffix("Flags"), {name for names in groups.values() for name in names}
        own: dict[str, list[str]] = {}
        for line in inspect.getsource(cls).splitlines():
            if heading := re.match(r"    # ([^:]+)", line):
                title = heading[1]
            elif (name := re.match(r"    (\w+): .*= flag\(", line)) and name[1] not in known:
                own.setdefault(title, []).append(name[1])
        groups |= {title: names + groups.get(title, []) for title, names in own.items()}
    return list(groups.items())


def _of_parser(parser: argparse.ArgumentParser) -> list[str]:
    """A table of the flags of an argparse program, which has no groups."""
    lines = [parser.description or "", "", "| flag | type | default | meaning |", "| --- | --- | --- | --- |"]
    for action in parser._actions[1:]:
        found = re.search(r" ?\[([^]]*)\]", action.help or "")
        help = (action.help or "").replace(found[0], "") if found else action.help or ""
        name = f"`{action.option_strings[0]}`" if action.option_strings else f"`{action.metavar}`"
        default = f"[{found[1]}]" if found else "required" if action.required else _code(action.default)
        kind = f"{action.metavar or 'STR'}{' ...' if action.nargs else ''}" if action.option_strings else "path"
        lines.append(_row(name, kind, default, help, tuple(action.choices or ())))
    return lines


def _code(default: Any) -> str:
    if default is False:
        return "off"
    if default is True:
        return "on"
    text = " ".join(map(str, default)) if isinstance(default, tuple) else "" if default is None else str(default)
    return f"`{text}`" if text else "none"


def _row(name: str, kind: str, default: str, help: str, choices: tuple) -> str:
    if choices:
        help += "; one of " + ", ".join(f"`{choice}`" for choice in choices)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (name, kind, default, help)) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
