"""The values of --loss and --class_weights."""

import difflib
import math
from dataclasses import fields
from typing import Any

from support.errors import UserError
from support.user_code import code_name, is_code

# What --loss may name: the terms of losses/terms.py that --l_seg weights. Each other term has a flag --l_NAME.
LOSSES = {"ce": "seg", "dice": "seg_dice", "lovasz": "seg_lovasz"}


def parse_loss(text: str) -> dict[str, float]:
    """Return {name in the logs: factor} of a sum of losses.

    "ce+0.5*lovasz" gives {"seg": 1.0, "seg_lovasz": 0.5}.

    Raises UserError on an unknown or repeated loss, and on a factor that is not above 0.
    """
    factors: dict[str, float] = {}
    for part in text.split("+"):
        number, _, name = (word.strip() for word in part.rpartition("*"))
        if is_code(name):
            term = code_name(name)
            if term in LOSSES.values():
                raise UserError(f"--loss {text}: {name!r} has the name of a loss in the logs: rename {term}")
        elif name not in LOSSES:
            near = difflib.get_close_matches(name, LOSSES, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            known = f"{', '.join(LOSSES)} or FILE.py:NAME"
            raise UserError(f"--loss {text}: {name!r} is not known: {hint}Add up {known}, as in ce+0.5*dice")
        else:
            term = LOSSES[name]
        if term in factors:
            raise UserError(f"--loss {text}: {name!r} is there twice: give it one factor, as in 2*{name}")
        factor = _number(number) if "*" in part else 1.0
        if not 0 < factor < math.inf:
            raise UserError(f"--loss {text}: {number!r} is not a factor: give a number above 0, as in 0.5*{name}")
        factors[term] = factor
    return factors


def own_losses(text: str) -> dict[str, str]:
    """Return {name in the logs: FILE.py:NAME or PACKAGE.MODULE:NAME} of the losses in a --loss that are code."""
    sources = [part.rpartition("*")[2].strip() for part in text.split("+")]
    return {code_name(source): source for source in sources if is_code(source)}


def loss_weights(flags: Any) -> dict[str, float]:
    """Return {term of losses/terms.py: weight} of the losses that take part.

    A loss takes part if its weight is above 0 and --dataset and --model_type have what its flag needs.
    """
    weights: dict[str, float] = {}
    for item in fields(flags):
        if item.name.startswith("l_") and (weight := getattr(flags, item.name)) > 0:
            _, takes_part = item.metadata["flag"].needs or ("", lambda flags: True)
            terms = parse_loss(flags.loss) if item.name == "l_seg" else {item.name.removeprefix("l_"): 1.0}
            weights |= {term: weight * factor for term, factor in terms.items() if takes_part(flags)}
    return weights


def read_class_weights(text: str, num_classes: int | None) -> list[float] | None:
    """Return the weights of --class_weights, one per class; None for "none" and "balanced".

    text: numbers such as "1,2,0.5". num_classes: None if it is not known yet. Raises UserError if the numbers are not
    num_classes, a weight is negative or no number, or all weights are 0.
    """
    if text in ("none", "balanced"):
        return None
    weights = [_number(word) for word in text.split(",")]
    num_classes = len(weights) if num_classes is None else num_classes
    if len(weights) != num_classes or not all(0 <= weight < math.inf for weight in weights) or not any(weights):
        raise UserError(
            f"--class_weights {text}: give none, balanced or {num_classes} numbers of at least 0, one a class and not "
            "all 0, such as 1,2,0.5"
        )
    return weights


def _number(word: str) -> float:
    """Return the word as a float; nan if the word is not a number."""
    try:
        return float(word)
    except ValueError:
        return math.nan
