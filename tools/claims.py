"""Claim the folder that a command writes, so that the same command can continue it and no other one can."""

import json
from pathlib import Path

from support.errors import UserError
from support.files import remove_scratch, write_atomic

MARK = ".made_from.json"  # a hidden file, which readers of data sets skip


def claim(out: Path, settings: dict, part: str = "all") -> None:
    """Create the folder `out` with a note of its settings, or check that the same command made what is in it.

    settings: what decides the content of the files; JSON. part: name of the part that the command writes, if other
    commands may add other parts. Raises UserError if the folder has other content, before anything is written.
    """
    mark, done = out / MARK, {}
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file: name a new folder")
    if mark.is_file():
        remove_scratch(out.rglob(".*.part*"))
        done = json.loads(mark.read_text(encoding="utf-8"))
    elif out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out}: exists and is not empty: name a new folder")
    if done.get(part, settings) != settings or (done and (part == "all") != ("all" in done)):
        raise UserError(f"{out}: holds the result of another command: name a new folder, or remove this one")
    write_atomic(mark, json.dumps(done | {part: settings}, indent=1), parents=True)
