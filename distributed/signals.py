"""Signals that ask a run to stop: noted at once, acted on between two optimizer steps."""

import atexit
import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

WRITER = "checkpoint"  # name of the thread that writes checkpoints
NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")
_END = b"\0"  # no signal's number


class StopRequest:
    """Why the run shall stop, "" while it shall go on. Whoever trains looks at it."""

    def __init__(self) -> None:
        self.reason = ""

    def __bool__(self) -> bool:
        return bool(self.reason)


class WorkerSignals:
    """worker_init_fn of a DataLoader: a signal to the whole process group must not take the data from a last step.

    Workers then leave by the loader's word, and obey SIGTERM only while their parent exits, which may wait for them.
    """

    def __init__(self) -> None:
        self.parent_exits = multiprocessing.RawValue("b", 0)  # without a lock, which a handler must not wait for
        atexit.register(self._let_go)

    def _let_go(self) -> None:
        self.parent_exits.value = 1
        if hasattr(signal, "SIGCHLD"):
            # A spawned worker that is still importing dies of SIGTERM, which torch would raise here as an error.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def __call__(self, worker_id: int) -> None:
        for number in _numbers():
            signal.signal(number, self._obey_parent if number == signal.SIGTERM else signal.SIG_IGN)

    def _obey_parent(self, number: int, frame) -> None:
        if self.parent_exits.value:
            os._exit(0)


def exit_at_once(status: int, *, write_seconds: float = 0.0) -> NoReturn:
    """End this process without the exit handlers of Python and torch, as some of them wait for the other ranks.

    write_seconds: how long to wait for the thread named WRITER to finish a checkpoint.
    """
    try:
        for thread in threading.enumerate():
            if thread.name == WRITER:
                thread.join(write_seconds)
        if hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises when a worker is killed
        for worker in multiprocessing.active_children():
            worker.kill()  # otherwise it notices only after 5 seconds that its parent has ended
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


@contextlib.contextmanager
def stop_request(where: str = "") -> Iterator[StopRequest]:
    """A StopRequest that SIGTERM, SIGINT and SIGUSR1 set; a second SIGINT ends the process with status 130.

    where: added to the reason, " on rank 1". Outside the main thread, where Python has no signals, nothing sets it.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    # Python's own handlers wait until the main thread leaves a collective or a kernel, which may be never. The
    # file descriptor gets the signal's number at once, and a thread reads it.
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    numbers = _numbers()
    handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
    descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    if hasattr(os, "register_at_fork"):
        # A DataLoader worker would write the signals it gets to this process's descriptor.
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))

    def listen() -> None:
        interrupted = False
        while (received := reader.recv(1)) != _END:
            if received[0] == signal.SIGINT and interrupted:
                print(f"interrupted{where} for the second time: stopped at once", file=sys.stderr, flush=True)
                exit_at_once(130)
            interrupted = interrupted or received[0] == signal.SIGINT
            if received[0] in numbers:
                request.reason = signal.Signals(received[0]).name + where

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield request
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        writer.send(_END)  # closing it would not do, as workers have it open, too
        listener.join()
        writer.close()
        reader.close()


def _numbers() -> list[int]:
    return [getattr(signal, name) for name in NAMES if hasattr(signal, name)]  # Windows has no SIGUSR1
