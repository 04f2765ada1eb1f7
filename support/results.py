"""The output folder of a program: whose it is, for which settings, and what in it is done."""

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from support.errors import UserError
from support.files import check_writable, remove_scratch, write_atomic


def claim(note: Path, settings: dict, results: Sequence[str], program: str, *, overwrite: bool | None) -> None:
    """Write `settings` to the file `note` of a program's output folder, or check that they are those of the file.

    Each result that is then in the folder is whole and made with these settings, so it need not be made again. With
    overwrite, all results are removed first; None: the program cannot. Files that killed processes left half-written
    are removed. results: glob patterns of the program's results in the folder. Raises UserError if the folder cannot be
    written, or has results of other settings (without overwrite) or of another program.
    """
    folder, settings = note.parent, json.loads(json.dumps(settings))
    flag = "OUT" if overwrite is None else "--output"
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{flag} {folder}: is a file: name a folder")
    saved = None
    if note.is_file():
        saved = {}
        with contextlib.suppress(ValueError, TypeError):
            saved = dict(json.loads(note.read_text(encoding="utf-8")))
    found = [path for pattern in results for path in folder.glob(pattern) if path.is_file()]
    if found and saved is None:
        raise UserError(f"{flag} {folder}: has {found[0]}, which {program} did not write: name another folder")
    saved = saved or {}
    differ = [name for name in saved | settings if saved.get(name) != settings.get(name)]
    if differ and found and not overwrite:
        raise UserError(
            f"{flag} {folder}: has results made with other settings ({', '.join(differ)}), see {note}: name another "
            f"folder{'' if overwrite is None else ', or replace them with --overwrite'}"
        )
    remove_scratch(Path(place, name) for place, _, names in os.walk(folder) for name in names)
    if differ or overwrite:
        check_writable(folder, flag)
        for path in found:
            path.unlink(missing_ok=True)
        write_atomic(note, json.dumps(settings, indent=1))
