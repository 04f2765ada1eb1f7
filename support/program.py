"""How a program starts and ends: the command line first, then one line and an exit status."""

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from support import signals, terminal
from support.errors import UserError, in_one_line, of_path, report
from support.launched_by import rank_of


def run(main: Callable[[], int | None]) -> int:
    """Call main and return the exit status: main's own (None: 0), 2 after a UserError, or report()'s after a signal.

    A UserError prints one line, and so does an OSError of_path(). Any other exception is a bug, with its traceback.
    """
    terminal.configure()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set by check_command_line()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signals.terminate_on_signals()
    try:
        return main() or 0
    except (UserError, KeyboardInterrupt, OSError) as error:
        if not (problem := of_path(error) if isinstance(error, OSError) else error):
            raise
        return report(problem, rank_of(os.environ))


def run_and_exit(main: Callable[[], int | None]) -> NoReturn:
    """Call run(main), then end the process with the status that it returns.

    A process that has joined a process group ends without the finalization of the interpreter: gloo's threads outlive
    destroy_process_group(), and a thread that frees a tensor during the finalization aborts the process
    (https://github.com/pytorch/pytorch/pull/179291). torchrun would then report a complete run as failed.
    """

    atexit.register(signals.kill_workers)
    status = run(main)
    for number in signals.SIGNALS:
        if callable(signal.getsignal(number)):  # it would print a traceback in an exit handler
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    if signals.has_joined_group:
        atexit._run_exitfuncs()
        signals.exit_at_once(status)
    sys.exit(status)


def check_command_line(read: Callable[[], object]) -> None:
    """Call `read`, which parses the command line, and exit the program after --help or an error.

    Call this function before importing torch, which takes seconds. Ctrl-C then ends the process without a traceback,
    until run() handles it.
    """
    terminal.configure()
    # A script's background job ignores the signal, and still should.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        read()
    except UserError as error:
        sys.exit(report(error, rank_of(os.environ)))


@contextlib.contextmanager
def explain_errors(device: str, out_of_memory: str) -> Iterator[None]:
    """Turn errors of memory, disks, paths and killed workers in the body into a UserError; other errors propagate.

    device: name of the device, for the message. out_of_memory: the remedy for lack of memory.
    """
    try:
        yield
    except OSError as error:
        raise of_path(error) or error from None
    except (RuntimeError, MemoryError) as error:
        text = str(error)
        if "DataLoader worker" in text:
            raise UserError(
                f"a process of --workers ended ({in_one_line(error)}): killed, out of memory or of shared memory in "
                "/dev/shm? Lower --workers, or use --workers 0 to see more"
            ) from None
        if type(error).__name__ in ("InductorError", "BackendCompilerFailed"):
            raise UserError(f"torch cannot compile the model ({in_one_line(error)}): drop --compile") from None
        # torch has no common class for CUDA's OutOfMemoryError and the CPU allocator's error.
        if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text:
            raise UserError(f"out of memory on {device} ({in_one_line(error)}): {out_of_memory}") from None
        raise
