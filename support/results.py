"""The output folder of a program: whose it is, for which settings, and what in it is done."""

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
) -> None:
    """Write `settings` to the file `note` of a program's output folder, or check that they are those of the file.

    Each result that is then in the folder is whole and made with these settings, so it need not be made again. With
    overwrite, all results are removed first; None: the program cannot. Files that killed processes left half-written
    are removed. results: glob patterns of the program's results in the folder.
    files: {name: state of its input, such as size and time} of all results to make; saved in `note`. Results whose
    state has changed are removed. paths: function from a name to the paths of its results; nothing else is removed.
    Raises UserError, naming `flag`, if the folder cannot be written, is in one of the inputs, or has results of other
    settings (without overwrite) or of another program.
    """
    folder, (settings, files) = note.parent, json.loads(json.dumps([settings, files]))
    check_place(folder, flag, inputs)
    saved = None
    if note.is_file():
        saved = {}
        with contextlib.suppress(ValueError, TypeError):
            saved = dict(json.loads(note.read_text(encoding="utf-8")))
    known = (saved or {}).pop("files", None)  # earlier versions saved none
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
