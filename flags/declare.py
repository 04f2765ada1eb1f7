"""Flags as fields of dataclasses: how to declare one, and how to convert and check its value."""

import dataclasses
import difflib
import inspect
import math
import operator
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from support.errors import UserError

SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}  # of YAML 1.1
LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@dataclass(frozen=True)
class Flag:
    """A command-line flag: its default, help, limits, names and type. Brackets in `help` state the default.

    flag() sets the fields up to `is_argument`; flags_of() sets the others.
    """

    default: Any
    help: str
    choices: tuple = ()
    ge: float | None = None  # the value must be greater than or equal to this
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    aliases: str = ""  # other names that mean exactly the same, separated by spaces
    renamed: Mapping[str, str] = field(default_factory=dict)  # other names: a line each on what they mean here
    synonyms: Mapping[str, str] = field(default_factory=dict)  # other values, in lower case: the value they mean
    replaces: str = ""  # a flag that this one overrides if both are set
    needs: tuple[str, Callable[[Any], bool]] | None = None  # (text, test) of what it needs to have an effect
    per_launch: bool = False  # belongs to one start of the program and is not saved with the run
    per_rank: bool = False  # may differ between ranks, such as a path or a device
    accepts: tuple[str, Callable[[str], bool]] | None = None  # (text, test) of values beside the choices
    takes_mapping: bool = False  # in YAML, a section of this name is its value: a list of words "key=value"
    never_empty: bool = False  # refuses "", as from an unset shell variable; flags of type Path always do
    is_argument: bool = False  # a word without --name, such as a folder; required if the default is None
    name: str = ""
    group: str = ""  # heading in --help
    kind: type = str  # type of the value, or of each value if is_list
    is_list: bool = False

    def convert(self, value: Any, where: str) -> Any:
        """Convert a value from YAML or the command line to the flag's type; a tuple if the flag is a list.

        where: name of the flag or key, for error messages. Raises UserError if the value has another type, exceeds a
        limit, is not among the choices, or is an empty list but the default is not.
        """
        if self.is_list:
            if value in ([], ()) and self.default:
                raise UserError(f"{where}: is empty: name one or more")
            items = value if isinstance(value, list) else [value]
            if self.kind is not str:  # 4,3,2 means 4 3 2
                items = [part for item in items for part in (item.split(",") if isinstance(item, str) else [item])]
            return tuple(self._convert_one(item, where) for item in items)
        return self._convert_one(value, where)

    def _convert_one(self, value: Any, where: str) -> Any:
        word = as_word(value)
        value = value if value is None else self.synonyms.get(word, value)
        if self.kind is bool:
            if word in ("true", "false") or (value is None and self.default is None):
                return None if value is None else word == "true"
            raise UserError(f"{where}: {value!r} is not true or false")
        try:
            if not isinstance(value, str | int | float) or isinstance(value, bool):
                raise ValueError
            number = float(value) if self.kind is int and "." in str(value) else value  # 5.0
            converted = self.kind(number)
            if isinstance(number, float) and number != converted:
                raise ValueError
        except (ValueError, OverflowError):
            article = "an" if self.kind is int else "a"
            raise UserError(f"{where}: {value!r} is not {article} {self.kind.__name__}") from None
        if self.kind is str and "\0" in converted:
            raise UserError(f"{where}: {value!r} has a null character, which no path has")
        if self.kind is float and not math.isfinite(converted):
            raise UserError(f"{where} {converted}: must be a finite number")
        limits = {name: limit for name in LIMITS if (limit := getattr(self, name)) is not None}
        if not all(getattr(operator, name)(converted, limit) for name, limit in limits.items()):
            allowed = " and ".join(f"{LIMITS[name]} {limit}" for name, limit in limits.items())
            raise UserError(f"{where} {converted}: must be {allowed}")
        if self.kind is int and abs(converted) >= 2**63:
            raise UserError(f"{where} {converted}: must have at most 64 bits")
        if self.choices and converted not in self.choices and not (self.accepts and self.accepts[1](converted)):
            known = ", ".join(map(str, self.choices)) + (f", or {self.accepts[0]}" if self.accepts else "")
            near = difflib.get_close_matches(str(converted), map(str, self.choices), n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"{where}: {value!r} is not known: {hint}One of {known}")
        return converted


def as_word(value: object) -> str:
    """Return a value's text in lower case; "true" or "false" for each word that YAML 1.1 has for it."""
    return SWITCHES.get(str(value).lower(), str(value).lower())


def flag(default: Any, help: str, **facts: Any) -> Any:
    """Return a dataclass field that declares a flag. facts: fields of Flag, from `choices` to `is_argument`.

    The field's annotation is the flag's type: str, int, float, bool or Path, one of these or None (None: not set),
    tuple[str, ...] or tuple[float, ...]. The first line of the dataclass's docstring is the flag's heading in --help.
    """
    return dataclasses.field(default=default, metadata={"flag": Flag(default, help, **facts)})


def flags_of(declared: type) -> dict[str, Flag]:
    """Return {name: Flag} of a dataclass's flags: first those it declares, then those of its bases in their order."""
    return {name: item for cls in declared.__mro__ for name, item in _declared_by(cls).items()}


@cache
def _declared_by(cls: type) -> dict[str, Flag]:
    """Return {name: Flag} of the flags that this class itself declares."""
    fields = getattr(cls, "__dataclass_fields__", {})
    return {
        name: dataclasses.replace(
            fields[name].metadata["flag"],
            name=name,
            group=(cls.__doc__ or "").partition("\n")[0].rstrip("."),
            kind=(*typing.get_args(kind), kind)[0],  # bool of bool | None, str of tuple[str, ...]
            is_list=typing.get_origin(kind) is tuple,
        )
        for name, kind in inspect.get_annotations(cls).items()
        if name in fields and "flag" in fields[name].metadata
    }


def per_rank(values: Any) -> set[str]:
    """Return the names of a dataclass's fields that may differ between ranks: flags with `per_rank`, and non-flags."""
    fields = dataclasses.fields(values)
    return {item.name for item in fields if "flag" not in item.metadata or item.metadata["flag"].per_rank}
