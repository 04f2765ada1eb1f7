"""How fast a run goes: its rate, the waiting for the loader, and the time left."""

import time
from collections.abc import Iterable, Iterator

from distributed.group import Group

SLOW_LOADER = 0.1  # share of the time spent waiting for batches from which the epoch's line gives advice


class Pace:
    """A stopwatch of a run's optimizer steps. Every rank has one. steps_left: of the run, when this process starts."""

    def __init__(self, group: Group):
        self.group, self.steps_left = group, 0.0
        self._steps_done, self._first_step_at = 0, 0.0  # since this process started
        self._epoch_start, self._num_steps, self._stepping, self._waiting = 0.0, 0, 0.0, 0.0  # of this epoch
        self._came_at = 0.0  # when this step's batches came

    def timed(self, steps: Iterable) -> Iterator:
        """Iterate over an epoch's steps, and time each and the wait for its batches, but not the wait for the first."""
        self._num_steps, self._stepping, self._waiting = 0, 0.0, 0.0
        self._epoch_start = asked_at = time.perf_counter()
        for step in steps:
            self._came_at = time.perf_counter()
            if self._num_steps:  # the first batch takes long: it starts the workers
                self._waiting += self._came_at - asked_at
            yield step
            asked_at = time.perf_counter()
            self._stepping += asked_at - self._came_at
            self._num_steps += 1
            # The first step does not count for the time left: it starts workers, compiles, and measures algorithms.
            self._steps_done += 1
            if self._steps_done == 1:
                self._first_step_at = asked_at

    def leave_out(self, seconds: float) -> None:
        """Exclude the time of a validation from the rate. After the last step, this has no effect."""
        self._came_at += seconds

    def time_text(self) -> str:
        """Return the time since the epoch began and the run's time left, if known, such as "40 s, 12 min left"."""
        now, left = time.perf_counter(), self.steps_left - self._steps_done
        text = _duration(now - self._epoch_start)
        if self._steps_done < 2 or left <= 0:
            return text
        return f"{text}, {_duration(left * (now - self._first_step_at) / (self._steps_done - 1))} left"

    def rate_text(self, batch: int, advice: str) -> str:
        """Return the epoch's images a second and, if it waited for the loader, the share of waiting and the advice.

        Such as ", 8.1 images/s", or ", 8.1 images/s: 34% of the time is waiting for the loader: ADVICE". The rank that
        waited most counts, because the others wait for it. batch: images of a step. Collective.
        """
        waiting, total = max(self.group.gather(self._waiting)), self._stepping + self._waiting
        if not total:
            return ""
        slow = f": {waiting / total:.0%} of the time is waiting for the loader: {advice}"
        return f", {batch * self._num_steps / total:.3g} images/s{slow if waiting / total >= SLOW_LOADER else ''}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"
