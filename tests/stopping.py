"""Stop this process with a signal, and wait until it is noted: the step after which it stops is then certain."""

import os
import signal
import time

from support.signals import StopRequest

requests: list[StopRequest] = []


def stop(whole_group: bool = False) -> None:
    """The signal is $SIGNAL, or SIGTERM. whole_group: send it to all processes of the process group."""
    (os.killpg if whole_group else os.kill)(os.getpid(), getattr(signal, os.environ.get("SIGNAL", "SIGTERM")))
    deadline = time.monotonic() + 30
    while not any(requests) and time.monotonic() < deadline:  # a thread notes it
        time.sleep(0.01)


initialize = StopRequest.__init__


def initialize_and_keep(request: StopRequest) -> None:
    initialize(request)
    requests.append(request)


StopRequest.__init__ = initialize_and_keep  # type: ignore[method-assign]
