"""The error message on unknown flags and keys, with the nearest names."""

import difflib
from collections.abc import Iterable, Mapping

# Typos of names up to 5 letters (--flop, --seeds) reach 0.75. Longer names of other trainers reach 0.80 with flags that
# mean something else (freeze -> freeze_bn), and typos of long names 0.84 (tests/test_config.py has both).
CUTOFF, SHORT_CUTOFF, SHORT = 0.82, 0.75, 5


def unknown_names(kind: str, unknown: Iterable[str], names: Mapping[str, str], prefix: str) -> str:
    """Return the error message on unknown names. kind: "unknown flag" or "unknown key".

    names: {a name that is known: the flag that it stands for}. prefix: "--" on a command line, "" in a YAML file.
    """
    near = {name: nearest(name, names) for name in unknown}
    parts = [f"{name}: did you mean {prefix}{ours}?" for name, ours in near.items() if ours]
    if others := [name for name, ours in near.items() if not ours]:
        parts.append(f"{', '.join(others)}: see --help for all flags, docs/coming_from.md for names of other trainers")
    return f"{kind}{'s' if len(near) > 1 else ''} {'; '.join(parts)}"


def nearest(name: str, names: Mapping[str, str]) -> str:
    """Return the flag that an unknown name probably stands for, or ""."""
    name = name.strip("-'").replace("-", "_")
    cutoff = SHORT_CUTOFF if len(name) <= SHORT else CUTOFF
    alike = [own for own in names if own[0] == name[:1]]  # bn_momentum is no typo of momentum
    near = difflib.get_close_matches(name, alike, n=1, cutoff=cutoff)
    return names[near[0]] if near else ""
