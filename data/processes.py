"""Work on many files in several processes, with a progress bar."""

import math
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from tqdm import tqdm
from tqdm.contrib.concurrent import process_map

from data.cores import num_cores
from errors import UserError

CHUNK = 8  # items that a process takes at once; fewer if there are few
Item = TypeVar("Item")
Result = TypeVar("Result")


def work_on(function: Callable[[Item], Result], items: list[Item], workers: int, unit: str, doing: str) -> list[Result]:
    """Return function(item) of each item, in order, with a progress bar.

    workers: number of processes; 0 works in this process, -1 takes one for each core. The result does not depend on it.
    unit, doing: words for the bar. Raises UserError if a process is killed.
    """
    workers = min(num_cores() if workers < 0 else workers, len(items))
    if workers == 0:
        return [function(item) for item in tqdm(items, unit=unit, desc=doing)]
    chunk = min(CHUNK, math.ceil(len(items) / (4 * workers)))
    try:
        return process_map(function, items, max_workers=workers, chunksize=chunk, unit=unit, desc=doing)
    except BrokenProcessPool:
        raise UserError(
            f"a process of --workers {workers} was killed, out of memory? Lower --workers, or use --workers 0"
        ) from None
