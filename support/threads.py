"""Threads that have ended before the process forks."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


class ThreadPool(ThreadPoolExecutor):
    """A ThreadPoolExecutor whose threads have ended when shutdown() returns, so the process can fork loader workers.

    Before Python 3.13, shutdown() returns while a thread may still run its last instructions, in which it takes a lock
    of OpenCV. A process that is forked at this moment gets a copy of the lock that nothing releases, and hangs in its
    next call of OpenCV.

    num_threads: None takes ThreadPoolExecutor's default.
    """

    def __init__(self, num_threads: int | None = None):
        self._native_ids: list[int] = []
        super().__init__(num_threads, initializer=lambda: self._native_ids.append(threading.get_native_id()))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        # Linux, the only system where loader workers are forked by default, lists the threads of a process here.
        while wait and any(Path(f"/proc/self/task/{number}").exists() for number in self._native_ids):
            time.sleep(0.0005)
