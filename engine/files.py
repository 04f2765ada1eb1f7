"""Files that a program leaves, whole or absent."""

import contextlib
import os
from pathlib import Path

from errors import UserError


def check_writable(folder: Path) -> None:
    """Make the folder, and see that files can be written there: before the work, not after it. Raises UserError."""
    write_file(folder / ".segtrain", b"")
    (folder / ".segtrain").unlink(missing_ok=True)


def write_file(path: Path, data: bytes) -> None:
    """Write a file, with its folder, so that it is whole or absent. Raises UserError where that cannot be."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(data)
        os.replace(scratch, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
