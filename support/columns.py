"""Align the columns of a table on a terminal, also with Chinese characters."""

import unicodedata
from collections.abc import Iterable

from support.terminal import escaped


def padded(texts: Iterable[str], *, to_right: bool = False) -> list[str]:
    """Return the cells of a table's column, escaped and filled with spaces to one width. to_right: align them there."""
    texts = list(map(escaped, texts))
    spaces = [" " * (max(map(display_width, texts)) - display_width(text)) for text in texts]
    return [space + text if to_right else text + space for text, space in zip(texts, spaces, strict=True)]


def display_width(text: str) -> int:
    """Return how many columns of a terminal a text takes: Chinese characters take two."""
    return sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in text)
