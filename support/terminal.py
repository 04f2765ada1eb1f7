"""Print lines to stdout and stderr, with unprintable characters escaped, and align the columns of a table."""

import contextlib
import errno
import io
import os
import sys
import unicodedata
from collections.abc import Iterable
from typing import TextIO


def configure() -> None:
    """Make stdout and stderr write each line at once, and escape the characters that their encoding lacks.

    By default Python keeps lines for a file or pipe in a buffer, and raises UnicodeEncodeError for such characters.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # and not a notebook's
            stream.reconfigure(errors="backslashreplace", line_buffering=True)


def escaped(text: str) -> str:
    """Return the text with escape codes, line breaks and other unprintable characters as Python writes them.

    File and class names may contain them, and a terminal would obey them.
    """
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def padded(texts: Iterable[str], *, to_right: bool = False) -> list[str]:
    """Return the cells of a table's column, escaped and filled with spaces to one width. to_right: align them there."""
    texts = list(map(escaped, texts))
    spaces = [" " * (max(map(display_width, texts)) - display_width(text)) for text in texts]
    return [space + text if to_right else text + space for text, space in zip(texts, spaces, strict=True)]


def display_width(text: str) -> int:
    """Return how many columns of a terminal a text takes: Chinese characters take two."""
    return sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def say(*lines: str) -> None:
    """Print lines to stdout, above a progress bar."""
    _print(lines, sys.stdout)


def warn(*lines: str) -> None:
    """Print lines to stderr, above a progress bar."""
    _print(lines, sys.stderr)


def _print(lines: tuple[str, ...], stream: TextIO | None) -> None:
    if stream is None:  # closed by the shell: >&-
        return
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)  # if it is not imported, there is no bar
    # The main thread may be creating a bar, which tqdm then shows but does not clear: hence the carriage return.
    text = "\r" if stream.isatty() and tqdm else ""
    text += "".join(f"{escaped(line)}\n" for line in lines)
    try:
        with tqdm.external_write_mode(stream) if tqdm else contextlib.nullcontext():
            stream.write(text)
            stream.flush()
    except OSError as error:  # as after `| head`: nobody reads the rest, but the work and its exit status still count
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        if stream is sys.stdout and error.errno == errno.ENOSPC:  # a file, whose reader would miss lines
            raise OSError(error.errno, error.strerror, "standard output") from None
