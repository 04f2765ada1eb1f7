"""Lines and progress bars on the terminal of rank 0."""

import sys
from collections.abc import Iterable

from tqdm import tqdm

from distributed.group import Group


class Terminal:
    """Every rank has one and calls it alike; only rank 0 prints. quiet: bars only, no lines."""

    def __init__(self, group: Group, *, quiet: bool = False):
        self.group, self.quiet = group, quiet

    def info(self, text: str) -> None:
        """Say a line; a bar that is being shown stays below it."""
        if not self.quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Say a line, also where the terminal is to be quiet."""
        if self.group.is_main:
            tqdm.write(text)

    def bar(self, items: Iterable | None, *, total: int | None, title: str, unit: str = "it") -> tqdm:
        """A progress bar with rate and, where the total is known, time left."""
        return tqdm(
            items,
            total=total,
            desc=title,
            unit=unit,
            leave=False,
            dynamic_ncols=True,
            disable=not self.group.is_main,
            mininterval=0.2 if sys.stderr.isatty() else 30,  # a log file wants few lines
        )
