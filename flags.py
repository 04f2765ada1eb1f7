"""Reading flags that a dataclass declares, from a YAML file and from the command line.

Names are exact: no prefixes, and what is not known is refused with the nearest right name.
"""

import argparse
import dataclasses
import difflib
import sys
import typing
from pathlib import Path

import yaml

from errors import UserError


def flag(default, help: str, *, choices: tuple = (), at_least: float | None = None, per_launch: bool = False):
    """Declare a flag as a dataclass field.

    Its type is the field's annotation: str, int, float, bool, bool | None, or tuple[float, ...] for one or more numbers.
    Brackets in `help` say the default where the value itself does not. at_least: the smallest value allowed.
    `per_launch` flags belong to one start of the program and are not saved with a run.
    """
    metadata = {"help": help, "choices": choices, "at_least": at_least, "per_launch": per_launch}
    return dataclasses.field(default=default, metadata=metadata)


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UserError(f"{message} ({self.prog} --help lists every flag)")


class FlagReader:
    """Reads the flags of a dataclass. aliases: {another name: the flag's name}, accepted with a note."""

    def __init__(self, declared: type, aliases: dict[str, str], program: str, description: str):
        self.declared = declared
        self.fields = {item.name: item for item in dataclasses.fields(declared) if "help" in item.metadata}
        self.types = typing.get_type_hints(declared)
        self.aliases = aliases
        self.parser = self._parser(program, description)

    def _parser(self, program: str, description: str) -> argparse.ArgumentParser:
        parser = _Parser(
            prog=program, description=description, allow_abbrev=False, argument_default=argparse.SUPPRESS,
            usage=f"{program} [--config FILE] [--flag value ...]",
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=120),
        )  # fmt: skip
        parser.add_argument("--config", metavar="FILE", help="YAML file of flags; the command line goes over it")
        for name, item in self.fields.items():
            help = item.metadata["help"].replace("%", "%%")
            if item.metadata["choices"]:
                help += ": " + ", ".join(map(str, item.metadata["choices"]))
            if "[" not in help and item.default is not False:
                default: typing.Any = item.default
                help += f" [{' '.join(map(str, default)) if self._is_list(name) else default}]"
            if self._is_switch(name):
                parser.add_argument(f"--{name}", action="store_true", help=help)
                parser.add_argument(f"--no_{name}", dest=name, action="store_false", help=argparse.SUPPRESS)
            elif self._is_list(name):
                parser.add_argument(f"--{name}", metavar="FLOAT", nargs="+", help=help)
            else:
                parser.add_argument(f"--{name}", metavar=self.types[name].__name__.upper(), help=help)
        return parser

    def command_line(self, argv: list[str] | None) -> tuple[dict, Path | None, list[str]]:
        """The values on the command line (default: sys.argv), the --config file if any, and notes for the user."""
        notes: list[str] = []
        words = [self._our_word(word, notes) for word in (sys.argv[1:] if argv is None else argv)]
        given, unknown = self.parser.parse_known_args(words)
        if unknown:
            word = unknown[0]
            if not word.startswith("-"):
                raise UserError(f"unexpected argument {word!r}: flags start with --")
            name = word.lstrip("-").partition("=")[0]
            raise UserError(f"unknown flag --{name}" + self._nearest(name, "--"))
        values = vars(given)
        config_file = Path(values.pop("config")) if "config" in values else None
        return {name: self._convert(name, value, f"--{name}") for name, value in values.items()}, config_file, notes

    def yaml_file(self, path: Path, notes: list[str]) -> dict:
        """The values in a YAML file of `flag: value`; notes for the user are added to `notes`."""
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"--config {path}: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"--config {path}: not YAML ({' '.join(str(error).split())})") from None
        if not isinstance(content, dict | None):
            raise UserError(f"--config {path}: expected lines 'flag: value', found a {type(content).__name__}")
        values = {}
        for key, value in (content or {}).items():
            name = self._translate(str(key).replace("-", "_"), notes, "")
            if name not in self.fields:
                raise UserError(f"{path}: unknown key {key!r}" + self._nearest(name, ""))
            if name in values:
                raise UserError(f"{path}: {name!r} is given twice, once as {key!r}: remove one")
            values[name] = self._convert(name, value, f"{path}: {name}")
        return values

    def _is_switch(self, name: str) -> bool:
        return self.types[name] in (bool, bool | None)

    def _is_list(self, name: str) -> bool:
        return typing.get_origin(self.types[name]) is tuple

    def _our_word(self, word: str, notes: list[str]) -> str:
        """`--old-name=value` to `--our_name=value`: dashes are underscores, aliases are translated with a note."""
        if not word.startswith("--"):
            return word
        name, equals, value = word[2:].partition("=")
        return "--" + self._translate(name.replace("-", "_"), notes, "--") + equals + value

    def _translate(self, name: str, notes: list[str], prefix: str) -> str:
        if name in self.aliases:
            notes.append(f"{prefix}{name} is now {prefix}{self.aliases[name]}")
        return self.aliases.get(name, name)

    def _nearest(self, name: str, prefix: str) -> str:
        found = difflib.get_close_matches(name, [*self.fields, *self.aliases, "config"], n=1, cutoff=0.5)
        if not found:
            return f": {self.parser.prog} --help lists all"
        return f": did you mean {prefix}{self.aliases.get(found[0], found[0])}?"

    def _convert(self, name: str, value, where: str):
        """A value from YAML or the command line, as the flag's type."""
        kind, choices = self.types[name], self.fields[name].metadata["choices"]
        if self._is_switch(name):
            if isinstance(value, bool) or (value is None and kind is not bool):
                return value
            raise UserError(f"{where}: {value!r} is not true or false")
        if self._is_list(name):
            values = value if isinstance(value, list) else [value]
            return tuple(self._number(item, float, where, self.fields[name].metadata["at_least"]) for item in values)
        converted = self._number(value, kind, where, self.fields[name].metadata["at_least"])
        if choices and converted not in choices:
            near = difflib.get_close_matches(str(converted), map(str, choices), n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"{where}: {value!r} is not known: {hint}One of {', '.join(map(str, choices))}")
        return converted

    def _number(self, value, kind: type, where: str, at_least: float | None):
        """A single value as `kind`: str, int or float."""
        try:
            if not isinstance(value, str | int | float) or isinstance(value, bool):
                raise ValueError
            converted = kind(value)
            if kind is int and float(value) != converted:
                raise ValueError
        except (ValueError, OverflowError):
            raise UserError(f"{where}: {value!r} is not {'an' if kind is int else 'a'} {kind.__name__}") from None
        if at_least is not None and not converted >= at_least:  # also catches nan
            raise UserError(f"{where} {converted}: must be at least {at_least}")
        return converted
