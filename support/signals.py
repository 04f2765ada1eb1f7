"""Handle signals that ask a run to stop: note them at once, and act on them between two optimizer steps."""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from support.errors import Terminated
from support.terminal import warn

WRITER = "checkpoint"  # name of the thread that writes checkpoints
# Windows has no SIGUSR1.
SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)]
_END = b"\0"  # the number of no signal
has_joined_group = False  # whether this process is or was in a process group: see program.run_and_exit()


class StopRequest:
    """A request to stop the run; true once there is a `reason`, such as the first signal's name. It is "" until then.

    relay(reason) tells the other ranks.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.relay: Callable[[str], None] = lambda reason: None

    def __bool__(self) -> bool:
        return bool(self.reason)

    def ask(self, reason: str) -> None:
        """Ask this process and the other ranks to stop. The first reason counts."""
        self.reason = self.reason or reason
        self.relay(self.reason)


def terminate_on_signals() -> None:
    """Make SIGTERM and SIGUSR1 raise Terminated in the main thread, unless they are ignored or handled already."""

    def terminate(number: int, frame: object) -> NoReturn:
        raise Terminated(signal.Signals(number).name)

    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, terminate)


def kill_workers() -> None:
    """Kill the DataLoader workers, which ignore SIGTERM and take 5 seconds to notice that their parent has exited."""
    if hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises when a worker is killed
    import multiprocessing  # takes 5 ms, which --help need not wait for

    for worker in multiprocessing.active_children():
        if worker.daemon:
            worker.kill()


def exit_at_once(status: int, *, write_seconds: float = 0.0) -> NoReturn:
    """End this process with `status`, without the exit handlers of Python and torch, which may wait for other ranks.

    write_seconds: how long to wait for the thread named WRITER to finish a checkpoint.
    """
    try:
        for thread in threading.enumerate():
            if thread.name == WRITER:
                thread.join(write_seconds)
        kill_workers()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


@contextlib.contextmanager
def stop_request(where: str = "") -> Iterator[StopRequest]:
    """Yield a StopRequest that records SIGNALS during the body. A second SIGINT ends the process with status 130.

    where: text appended to the reason, such as " on rank 1". Only the main thread can catch signals; in another thread,
    the request stays empty.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    # Python calls its handlers only when the main thread leaves a collective or a kernel, perhaps never. The file
    # descriptor receives the number of a signal at once, and a thread reads it.
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if hasattr(os, "register_at_fork"):
        # A new DataLoader worker would write the signals it receives to this process's descriptor.
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    listener = threading.Thread(target=_listen, args=(reader, request, where), daemon=True)
    listener.start()
    try:
        yield request
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        writer.send(_END)  # workers inherit the socket, so closing it here would not end the listener
        listener.join()
        writer.close()
        reader.close()


def _listen(reader: socket.socket, request: StopRequest, where: str) -> None:
    interrupted = False
    while (received := reader.recv(1)) != _END:
        if received[0] not in SIGNALS:
            continue
        if received[0] == signal.SIGINT:
            if interrupted:
                warn(f"interrupted{where} for the second time: stopped at once")
                exit_at_once(130)
            interrupted = True
        request.ask(signal.Signals(received[0]).name + where)
