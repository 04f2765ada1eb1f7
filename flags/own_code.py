"""Which flags name code of the user's own. Nothing but a user's command or file of --config makes a program run it."""

from collections.abc import Mapping
from typing import Any

from flags.loss_weights import own_losses
from support.errors import UserError
from support.user_code import is_code


def sources(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return {flag: the FILE.py:NAME or PACKAGE.MODULE:NAME in its value} of the flags that name code."""
    found = {name: [values[name]] for name in ("model_type", "transform") if is_code(values.get(name, ""))}
    own = list(own_losses(values.get("loss", "")).values())
    return found | ({"loss": own} if own else {})


def words(values: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line that name the code in these flags."""
    return [word for name in sources(values) for word in (f"--{name}", values[name])]


def refuse_unnamed(saved: Mapping[str, Any], named: Mapping[str, Any], where: str) -> None:
    """Raise UserError if a file's flags name code, and the user does not name it, too.

    saved, named: {flag: value} of the file and of the user. where: the file, for the message.
    """
    unnamed = {name: saved[name] for name in sources(saved) if name not in named}
    for name, value in unnamed.items():
        remedy = " ".join(f"--{flag} {text}" for flag, text in unnamed.items())
        raise UserError(f"{where}: its --{name} is code, {value}: to run that code, add {remedy}")
