"""How fast a run goes: its rate, the waiting for the loader, and the time left."""

import time
from collections.abc import Iterable, Iterator

from torch.utils.data import DataLoader

from distributed.group import Group
from support.processes import num_cores
from support.progress import duration

SLOW_LOADER = 0.1  # share of the time spent waiting for batches from which the epoch's line gives advice


class Pace:
    """A stopwatch of a run's optimizer steps. Every rank has one. run_steps: the run's, when this process starts."""

    def __init__(self, group: Group):
        self.group, self.run_steps = group, 0.0
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

    def run_left(self, epoch_left: float = 0) -> str:
        """Return the run's time left as text; "" if it is not known yet, or if at most `epoch_left` steps are left."""
        left = self.run_steps - self._steps_done
        if self._steps_done < 2 or left <= epoch_left:
            return ""
        return duration(left * (time.perf_counter() - self._first_step_at) / (self._steps_done - 1))

    def text(self, batch: int, loader: DataLoader) -> str:
        """Return an epoch's time, the run's time left if known, the epoch's rate and, if the loader is slow, advice.

        Such as "40 s, 12 min left, 8.1 images/s: 34% of the time is waiting for the loader: raise --workers (now 2)".
        The rank that waited most counts, because the others wait for it. batch: images per step. Collective.
        """
        text = duration(time.perf_counter() - self._epoch_start)
        text += f", {left} left" if (left := self.run_left()) else ""
        waiting, total = max(self.group.gather(self._waiting)), self._stepping + self._waiting
        if total:
            text += f", {batch * self._num_steps / total:.3g} images/s"
        if total and waiting / total >= SLOW_LOADER:
            workers = loader.num_workers
            full = f"--workers {workers} already uses every core"
            advice = f"raise --workers (now {workers})" if workers < num_cores() else full
            text += f": {waiting / total:.0%} of the time is waiting for the loader: {advice}"
        return text
