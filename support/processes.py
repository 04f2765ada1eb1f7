"""Work in several processes, with a progress bar, and in threads."""

import contextlib
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from multiprocessing import resource_tracker
from pathlib import Path
from typing import NoReturn, TypeVar

from support.errors import UserError
from support.progress import progress_bar
from support.signals import SIGNALS

CHUNK = 8  # items that a process takes at once; fewer if there are few
THREADS = Path("/proc/self/task")  # of this process; only on Linux, where loader workers may be forked
Item = TypeVar("Item")
Result = TypeVar("Result")


def num_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def work_on(function: Callable[[Item], Result], items: list[Item], workers: int, unit: str, doing: str) -> list[Result]:
    """Return function(item) of each item, in order, with a progress bar.

    workers: number of processes; 0 works in this process, -1 takes one for each core. The result does not depend on it.
    unit, doing: words for the bar. The processes end with this one. Raises UserError if one of them is killed.
    """
    most = 61 if os.name == "nt" else len(items)  # Windows waits for no more processes than that
    workers = min(num_cores() if workers < 0 else workers, len(items), most)
    if workers == 0:
        return [function(item) for item in progress_bar(items, total=len(items), title=doing, unit=unit)]
    size = min(CHUNK, math.ceil(len(items) / (4 * workers)))
    results = []
    # The bar is built before there is work to interrupt: Ctrl-C in tqdm's constructor prints a traceback.
    with progress_bar(None, total=len(items), title=doing, unit=unit) as bar, contextlib.ExitStack() as at_end:
        try:
            with starting():
                pool = ProcessPoolExecutor(workers, initializer=_start_worker)
                at_end.callback(pool.shutdown, cancel_futures=True)
                chunks = [items[first : first + size] for first in range(0, len(items), size)]
                # pool.map() would cancel its futures in this thread after a signal. If the signal has ended a process,
                # too, the pool's own thread fails on a cancelled future, before Python 3.12, and prints a traceback.
                futures = [pool.submit(_work_on_chunk, function, chunk) for chunk in chunks]
            for future in futures:
                for result in future.result():
                    results.append(result)
                    bar.update()
        except BrokenProcessPool:
            problem = f"a process of --workers {workers} was killed, out of memory?"
            raise UserError(f"{problem} Lower --workers, or use --workers 0") from None
    return results


def _work_on_chunk(function: Callable[[Item], Result], chunk: list[Item]) -> list[Result]:
    return [function(item) for item in chunk]


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Let processes that start in the body begin with SIGNALS blocked.

    Otherwise a signal to all processes of a run, such as Ctrl-C, would end one that still imports, or the helpers by
    which Python starts processes without a fork.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        if multiprocessing.get_start_method() != "fork":
            resource_tracker.ensure_running()  # its start unblocks some of them
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def let_threads_rest() -> None:
    """Wait at most a second until no other thread of this process is active. Does nothing where THREADS is missing.

    gloo's threads, for example, enter Python after a collective has ended, to drop its tensors.
    """
    for _ in range(500 if THREADS.is_dir() else 0):
        time.sleep(0.002)  # a thread that waits for Python's global lock gets it now
        others = [task for task in THREADS.iterdir() if int(task.name) != threading.get_native_id()]
        if not any(map(_is_active, others)):
            return


def _is_active(task: Path) -> bool:
    """Return whether a thread in THREADS runs or could run (R), or waits for memory or a disk (D)."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] in "RD"  # NUMBER (NAME) STATE ...
    except OSError:  # it has ended
        return False


def _start_worker() -> None:
    """Leave Ctrl-C to the parent process, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the pool ends its processes by it
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    end_with_parent()


def end_with_parent() -> None:
    """Start a thread that ends this child process when its parent has ended, whatever the child waits for."""
    parent = multiprocessing.parent_process()
    assert parent

    def wait_for_parent() -> NoReturn:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()


class ThreadPool(ThreadPoolExecutor):
    """A ThreadPoolExecutor whose threads have ended when shutdown() returns, so the process can fork loader workers.

    Before Python 3.13, shutdown() returns while a thread may still run its last instructions, in which it takes a lock
    of OpenCV. A process that is forked at this moment gets a copy of the lock that nothing releases, and hangs in its
    next call of OpenCV.
    """

    def __init__(self, num_threads: int):
        self._native_ids: list[int] = []
        super().__init__(num_threads, initializer=lambda: self._native_ids.append(threading.get_native_id()))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        while wait and any((THREADS / str(number)).exists() for number in self._native_ids):
            time.sleep(0.0005)
