"""Logging: one logger, "segtrain", whose lines go to rank 0's terminal and to a run's train.log."""

import logging
from functools import partial
from typing import TextIO

from support.log import log
from support.terminal import say
from training.record.try_or_warn import TryOrWarn


class _TerminalHandler(logging.Handler):
    """A logging handler that prints to stdout, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        say(*self.format(record).split("\n"))


class FileHandler(logging.StreamHandler):
    """Write lines to an open file."""

    def __init__(self, file: TextIO, try_or_warn: TryOrWarn):
        super().__init__(file)
        self.try_or_warn = try_or_warn

    def emit(self, record: logging.LogRecord) -> None:
        self.try_or_warn(f"{self.stream.name} (the log)", partial(super().emit, record))

    def handleError(self, record: logging.LogRecord) -> None:
        raise


class LineFormatter(logging.Formatter):
    """A logging formatter that puts "warning: " before messages of level WARNING."""

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno == logging.WARNING:
            record = logging.makeLogRecord(record.__dict__ | {"msg": f"warning: {record.msg}"})
        return super().format(record)


def start_logging(level: str, *, is_main: bool) -> None:
    """Print lines of the logger "segtrain" from this level (--log_level) on, on rank 0 only.

    A second call replaces the handlers of the first.
    """
    terminal = _TerminalHandler(level)
    terminal.setFormatter(LineFormatter())
    log.propagate = False
    log.setLevel(logging.DEBUG if is_main else logging.CRITICAL)
    log.handlers = [terminal]
