"""Files that a program leaves, whole or absent."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from errors import UserError


def check_writable(folder: Path) -> None:
    """Make the folder, and see that files can be written there: before the work, not after it. Raises UserError."""
    write_file(folder / ".segtrain", b"")
    (folder / ".segtrain").unlink(missing_ok=True)


def write_file(path: Path, data: bytes | memoryview) -> None:
    """Write a file, with its folder. Raises UserError where that cannot be."""
    with writing(path) as scratch:
        scratch.write_bytes(data)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Where to write a file that is to appear as `path` when the body ends without an error."""
    scratch = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield scratch
        os.replace(scratch, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


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
