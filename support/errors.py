"""Errors that the user can fix, and their one line."""

import contextlib
import errno
import json
import os
import re
import time
from pathlib import Path

from support.terminal import escaped, warn

MAX_MESSAGE = 2000  # characters
STOPPED = 75  # exit status of a run that a signal stopped, after saving; sysexits.h: EX_TEMPFAIL, "try again"
# Of an OSError with a file's name: the path is at fault. A missing file is not here: it is checked where it is read.
UNUSABLE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EROFS, errno.EIO)


def shortened(text: str, most: int) -> str:
    """Return a text of about `most` characters: a value of a file may have any length. The end has the remedy."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


class UserError(ValueError):
    """An error that the user can fix: a wrong file, flag or variable.

    The message is one line: what is wrong, where, and what to do. Unprintable characters in it are escaped.
    """

    def __init__(self, message: str):
        # PyTorch re-raises a DataLoader worker's exception with its traceback as the message, which ends with
        # "errors.UserError: " and the original message.
        message = re.split(rf"\n{__name__}\.\w+: ", message)[-1].strip()
        message = re.sub(r"\d{100,}", lambda digits: f"{digits[0][:9]}... ({len(digits[0])} digits)", message)
        super().__init__(escaped(shortened(message, MAX_MESSAGE)))


class Terminated(KeyboardInterrupt):
    """A signal that asks the program to end at once, in a program that has nothing to save. The message is its name."""


class DivergedError(UserError):
    """Training has diverged: a resumed run with the same flags would fail again."""


class WriteError(UserError):
    """A file cannot be written, for example because the disk is full."""


class InputError(UserError):
    """One of many inputs is unusable; the others are fine."""


class NotRGBError(InputError):
    """An image has other bits or bands than 8-bit RGB."""


def of_path(error: OSError) -> UserError | None:
    """Return the UserError for a full disk, or a path that the system cannot open; None for a fault of ours."""
    name = shortened(os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "", 200)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"{name or 'a disk, or /dev/shm'}: {error.strerror}: make room, then start again")
    if error.errno not in UNUSABLE or not name:
        return None
    return UserError(f"{name}: {error.strerror}: check the path, and who may read and write there")


def report(error: BaseException, rank: str) -> int:
    """Print one line on why the program ends, and return the exit status. rank: "" without a group.

    The status is 2 for UserError, 130 for KeyboardInterrupt, STOPPED for Terminated, a SystemExit's own non-zero code,
    else 1.
    """
    where = f" (rank {rank})" if rank else ""
    status, line = 2 if isinstance(error, UserError) else 1, f"error{where}: {reason(error)}"
    if isinstance(error, Terminated):
        status, line = STOPPED, f"stopped by {error}{where}; run the same command again"
    elif isinstance(error, KeyboardInterrupt):
        status, line = 130, f"interrupted{where}"
    elif isinstance(error, SystemExit) and isinstance(error.code, int):
        status = error.code or 1
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):  # torchrun's report then has the line
        with contextlib.suppress(OSError):
            Path(file).write_text(json.dumps({"message": line, "timestamp": int(time.time())}), encoding="utf-8")
    warn(line)
    return status


def reason(error: BaseException) -> str:
    """Return one line about the error, for other ranks: a UserError's message, "interrupted", or in_one_line()."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, UserError) else in_one_line(error)


def in_one_line(error: BaseException) -> str:
    """Return "CLASS: first line of the error's message", with at most 300 characters of the message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
