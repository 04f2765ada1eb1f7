"""How fast a run goes: its rate, the waiting for the loader, and the time left."""

import time
from collections.abc import Iterable, Iterator

from distributed.group import Group

SLOW_LOADER = 0.1  # share of the time spent waiting for batches from which the epoch's line gives advice


class Pace:
    """A stopwatch of a run's optimizer steps. Every rank has one."""

    def __init__(self, group: Group):
        self.group = group
        self._epoch_start = self._first_step_at = 0.0
        self._steps_left, self._steps_done = 0.0, 0  # when this process started, and since
        self._num_steps, self._first_batch_at = 0, 0.0  # of this epoch
        self._stepping = self._waiting = 0.0  # seconds since the first batch; of these, until later batches came

    def start(self, steps_left: float) -> None:
        """Set how many steps of the run are left when this process starts, to estimate the time left."""
        self._steps_left = steps_left

    def timed(self, steps: Iterable) -> Iterator:
        """Iterate over an epoch's steps. From the first batch on, time the steps and, separately, the wait for batches.

        The seconds passed to leave_out() do not count.
        """
        self._num_steps, self._stepping, self._waiting = 0, 0.0, 0.0
        self._epoch_start = asked_at = time.perf_counter()
        for step in steps:
            came_at = time.perf_counter()
            if self._num_steps:
                self._waiting += came_at - asked_at
            else:
                self._first_batch_at = came_at
            yield step
            self._num_steps += 1
            asked_at = time.perf_counter()
            self._stepping = asked_at - self._first_batch_at

    def step_done(self) -> None:
        """Note that the computation of a step is done, or queued on the GPU."""
        self._steps_done += 1
        if self._steps_done == 1:
            self._first_step_at = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Leave the time of a validation between two steps out of the rate."""
        self._first_batch_at += seconds

    def time_text(self) -> str:
        """Return the time since the epoch began and the run's time left, if known, such as "40 s, 12 min left"."""
        left = self.time_left()
        return _duration(time.perf_counter() - self._epoch_start) + (f", {left}" if left else "")

    def time_left(self) -> str:
        """Return the time left in the run, as "12 min left"; "" before the second step and after the last.

        The first step does not count: it starts workers, compiles, and measures algorithms.
        """
        left = self._steps_left - self._steps_done
        if self._steps_done < 2 or left <= 0:
            return ""
        per_step = (time.perf_counter() - self._first_step_at) / (self._steps_done - 1)
        return f"{_duration(left * per_step)} left"

    def rate_text(self, batch: int, advice: str) -> str:
        """Return the epoch's images a second and, if it waited for the loader, the rate with every batch ready.

        Such as ", 8.1 images/s", or ", 8.1 images/s (12.3 without waiting): 34% of the time is waiting for the loader:
        ADVICE". The time until the first batch does not count: it starts the workers. The rank that waited most
        counts, because the others wait for it. batch: images of a step. Collective.
        """
        waiting = max(self.group.gather(self._waiting))
        if not self._num_steps or not self._stepping:
            return ""
        rate, share = batch * self._num_steps / self._stepping, min(waiting / self._stepping, 0.999)
        if share < SLOW_LOADER:
            return f", {rate:.3g} images/s"
        return (
            f", {rate:.3g} images/s ({rate / (1 - share):.3g} without waiting): {share:.0%} of the time is waiting for "
            f"the loader: {advice}"
        )


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"
