"""Progress of long work: a bar in a terminal, a line now and then in a file or pipe; and times and numbers as text."""

import io
import sys
import threading
from collections.abc import Iterable

from tqdm import tqdm

from support.terminal import warn

LINE_SECONDS = 30.0  # between two lines in a file or pipe; shorter work gets none
tqdm.set_lock(threading.RLock())  # its own lock has a semaphore, for which Python may start a process


class _Lines(tqdm):
    """A tqdm bar whose display is a line on stderr: done, total, rate and time left."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if msg is None:  # else the text is empty, to clear a bar
            warn(str(self))


def progress_bar(
    items: Iterable | None, *, total: int | None, title: str, unit: str = "step", enabled: bool = True
) -> tqdm:
    """Return a tqdm bar over `items`, with the rate and, if the total is known, the time left.

    If stderr is no terminal, lines take the place of the bar.
    """
    # miniters 0 makes each update look at the clock, also when the work slows down.
    options: dict = {"total": total, "desc": title, "unit": unit, "disable": not enabled, "leave": False, "miniters": 0}
    if sys.stderr and sys.stderr.isatty():
        return tqdm(items, mininterval=0.2, dynamic_ncols=True, **options)
    words = "{desc}: {n_fmt} of {total_fmt}, {rate_fmt}, {remaining} left{postfix}"
    # tqdm itself writes to a bar's file when it clears the bar.
    options |= {"mininterval": LINE_SECONDS, "delay": LINE_SECONDS, "bar_format": words}
    return _Lines(items, file=io.StringIO(), **options)


def counted(number: float, noun: str) -> str:
    """Return a number with its noun, such as "1 step" or "2 steps"."""
    return f"{number:.15g} {noun}{'s' if number != 1 else ''}"


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it, such as "40 s", "12 min" or "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"
