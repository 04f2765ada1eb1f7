"""Keep errors in logging, pictures and reports from ending a run."""

from collections.abc import Callable
from typing import TypeVar

from support.errors import reason
from support.log import log

T = TypeVar("T")


class TryOrWarn:
    """Do what accompanies training, such as boards, pictures and the report. An error there becomes one warning."""

    def __init__(self) -> None:
        self._dropped: set[str] = set()
        self._warnings: set[str] = set()

    def __call__(self, part: str, work: Callable[[], T], *, retry: bool = False, closes: bool = False) -> T | None:
        """Return work(), or None if it raises. `part` is then dropped: later calls do nothing.

        part: names what is lost, with its file, in the warning. retry: keep the part, as the next call may succeed.
        closes: call `work` in any case, to free what a dropped part holds.
        """
        was_dropped = part in self._dropped
        if was_dropped and not closes:
            return None
        try:
            return work()
        except (Exception, SystemExit) as error:  # a board may raise anything
            if not retry:
                self._dropped.add(part)
            warning = f"{part}: {reason(error).rstrip('.')}: the run goes on without this part"
            if not was_dropped and warning not in self._warnings:
                self._warnings.add(warning)
                log.warning(warning)
            return None
