"""Errors that the user can put right, and how a program of this project ends on one."""

import os
import sys
from collections.abc import Callable

from tqdm import tqdm


class UserError(ValueError):
    """A wrong file, flag or variable. The message is one line: what is wrong, where, and what to do."""

    def __init__(self, message: str):
        # A DataLoader worker's exception is raised again with its whole traceback as the message; the
        # last line of that is "errors.UserError: " and what was said first.
        super().__init__(message.strip().splitlines()[-1].removeprefix("errors.UserError: "))


def run(main: Callable[[], None]) -> int:
    """Call main and return the process's exit status: 0, 2 on a UserError (said in one line), 130 on Ctrl-C.

    Any other exception is a bug of ours and leaves with its traceback.
    """
    rank = f" (rank {os.environ['RANK']})" if "RANK" in os.environ else ""
    try:
        main()
    except UserError as error:
        tqdm.write(f"error{rank}: {error}", file=sys.stderr)  # clears a progress bar first
        return 2
    except KeyboardInterrupt:
        tqdm.write(f"interrupted{rank}", file=sys.stderr)
        return 130
    return 0
