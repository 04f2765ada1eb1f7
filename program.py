"""How a program ends: one line and an exit status."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator

from distributed.launchers import rank_of
from errors import UserError, in_one_line, report


def run(main: Callable[[], int | None]) -> int:
    """Call main and return the process's exit status: what main returns, 2 on a UserError, 130 on Ctrl-C.

    A UserError is said in one line. Any other exception is a bug of ours and leaves with its traceback.
    """
    try:
        return main() or 0
    except (UserError, KeyboardInterrupt) as error:
        return report(error, rank_of(os.environ))


@contextlib.contextmanager
def advice(device: str, too_much: str) -> Iterator[None]:
    """Turn errors that come of too little memory or disk into a UserError that says what to do.

    too_much: what to do where the device's memory does not suffice.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(f"{error.filename or 'a file'}: {error.strerror}: make room, then start again") from None
    except (RuntimeError, MemoryError) as error:
        text = str(error)
        if "DataLoader worker" in text:
            raise UserError(
                f"a process of --workers ended ({in_one_line(error)}): killed for want of memory, or of shared memory in "
                "/dev/shm? Lower --workers, or use --workers 0 to see more"
            ) from None
        # OutOfMemoryError of CUDA and of the CPU allocator; torch has no common class for them.
        if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text:
            raise UserError(f"out of memory on {device} ({in_one_line(error)}): {too_much}") from None
        raise
