"""Files that a program leaves, whole or absent."""

import contextlib
import errno
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from errors import InputError, UserError

STALE = 3600  # seconds after which what nobody goes on writing is what a killed process left


def check_writable(folder: Path, flag: str) -> None:
    """Make the folder, and see that files can be written there: before the work, not after it. Raises UserError."""
    probe = folder / f".{os.getpid()}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UserError(f"{flag} {folder}: cannot be written to ({error.strerror}): name another folder") from None


def write_file(path: Path, data: bytes | memoryview) -> None:
    """Write a file, with its folder. Raises UserError where that cannot be."""
    with writing(path) as scratch:
        scratch.write_bytes(data)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Where to write a file that is to appear as `path` when the body ends without an error.

    Raises UserError where it cannot be written, InputError where only its name is the reason.
    """
    scratch = path.with_name(f".{os.getpid()}.{threading.get_ident()}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield scratch
        os.replace(scratch, path)
    except OSError as error:
        kind = InputError if error.errno == errno.ENAMETOOLONG else UserError
        raise kind(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


def remove_stale(folder: Path) -> None:
    """Remove what processes that were killed while they wrote below the folder have left."""
    for path in folder.rglob(".*.part*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE:
                path.unlink()


def sha256(path: Path) -> str:
    """Of a file's content, in hexadecimal. Raises UserError."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()
