"""Names of other trainers: docs/coming_from.md says what each is here, and the error on an unknown name quotes it."""

import functools
import re
from typing import NamedTuple

from flags.declare import as_word
from support.shell import REPO

TABLE = REPO / "docs" / "coming_from.md"


class Other(NamedTuple):
    """A row of the table. here: what the name is here. accepted: yes, no, or the one value that changes nothing."""

    here: str
    accepted: str


@functools.cache
def other_names() -> dict[str, Other]:
    """Return {name: its row} for all names in the table's first column."""
    rows = re.findall(r"^\| (`.+`) \| (.+) \| (.+) \|$", TABLE.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        name: Other(*(re.sub(r"`|\]\(.*?\)|\[", "", text) for text in (here, accepted)))
        for names, here, accepted in rows
        for name in re.findall(r"`(\w+)`", names)
    }


def changes_nothing(name: str, value: object) -> bool:
    """Return whether another trainer's option has the value that is always so here, such as a `false`."""
    row = other_names().get(name)
    return row is not None and as_word(value) == row.accepted
