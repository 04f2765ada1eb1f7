"""Reserve a program's output folder for one program and one set of settings, and keep what is done in it."""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from support.errors import UserError
from support.files import check_place, check_writable, remove_scratch, write_atomic


def reserve(
    note: Path,
    settings: dict,
    results: Sequence[str],
    program: str,
    *,
    flag: str = "OUT",
    inputs: Iterable[Path] = (),
    overwrite: bool | None = None,
    files: dict | None = None,
    paths: Callable[[str], list[Path]] = lambda name: [],
    remedy: str = "",
) -> list[str]:
    """Write `settings` to the file `note` of a program's output folder, or check that the file has the same settings.

    Each result that is then in the folder is whole and made with these settings, so the program can keep it. Files that
    killed processes left half-written are removed. results: glob patterns of the program's results in the folder.
    overwrite: whether to remove all results first; None if the program has no such flag.
    files: {name: state of its input, such as size and time} of all results to make, which `note` also keeps. Results
    whose state has changed are removed. paths: maps a name to the paths of its results; nothing else is removed.
    remedy: end of the message if the folder has other results, such as ", or ...".
    Returns the names that `note` has besides `files`: of inputs of an earlier start, whose results stay.
    Raises UserError, naming `flag`, if the folder cannot be written, is in one of the inputs, or has results of other
    settings (without overwrite) or of another program.
    """
    folder, (settings, files) = note.parent, json.loads(json.dumps([settings, files]))
    check_place(folder, flag, inputs)
    saved: dict = {}
    if note.is_file():
        with contextlib.suppress(ValueError, TypeError):
            saved = dict(json.loads(note.read_text(encoding="utf-8")))
    known = saved.pop("files", None)  # earlier versions saved none
    present = sorted(path for pattern in results for path in folder.glob(pattern) if path.is_file())
    if present and not note.is_file():
        problem = f"has {present[0]} but no {note.name}, so {program} may not have written it"
        raise UserError(f"{flag} {folder}: {problem}: name another folder{remedy}")
    differ = [name for name in saved | settings if saved.get(name) != settings.get(name)]
    if differ and present and not overwrite:
        raise UserError(
            f"{flag} {folder}: has results made with other settings ({', '.join(differ)}), see {note}: name another "
            f"folder{'' if overwrite is None else ', or replace them with --overwrite'}{remedy}"
        )
    remove_scratch(Path(place, name) for place, _, names in os.walk(folder) for name in names)
    stale = [name for name in files or () if known is None or known.get(name, files[name]) != files[name]]
    if files is not None:
        foreign = [path for name in files if known is not None and name not in known for path in paths(name)]
        if there := [path for path in foreign if os.path.lexists(path)]:
            raise UserError(f"{flag} {folder}: has {there[0]}, which {program} did not write: move it away")
        stale = [*(known or {}), *stale] if overwrite else stale
        settings["files"] = files if overwrite else (known or {}) | files
    if differ or overwrite or settings.get("files") != known:
        check_writable(folder, flag)
        for path in (path for name in stale for path in paths(name)):
            path.unlink(missing_ok=True)
        write_atomic(note, json.dumps(settings, indent=1))
    return [name for name in settings.get("files") or () if name not in (files or ())]


def file_state(file: Path) -> list[int]:
    """Return a file's size and time of change; [] if there is no such file, as behind a broken link."""
    try:
        state = os.stat(file)
    except OSError:  # the file is read later, and that error names it
        return []
    return [state.st_size, state.st_mtime_ns]
