"""Read the hidden file that says which command made a folder's content."""

import contextlib
import json
from pathlib import Path

from support.errors import UserError
from support.files import SCRATCH, remove_scratch

ANOTHER_COMMAND = "holds the result of another command: name a new folder, or remove this one"


def read_mark(mark: Path) -> dict | None:
    """Return the JSON content of the hidden file, {} if it is damaged, or None if its folder is new or empty.

    Old temporary files of killed processes are removed from a folder that has the hidden file. Raises UserError if the
    folder is a file, or has content but no hidden file: temporary files do not count, as a process may have been killed
    while it wrote the hidden file.
    """
    folder = mark.parent
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file: name a new folder")
    if not mark.is_file():
        if folder.is_dir() and not all(SCRATCH.fullmatch(path.name) for path in folder.iterdir()):
            raise UserError(f"{folder}: exists and is not empty: name a new folder")
        return None
    remove_scratch(folder.rglob(".*.part*"))
    with contextlib.suppress(ValueError, OSError):
        content = json.loads(mark.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}
