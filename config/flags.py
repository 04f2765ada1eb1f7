"""Reading flags that a dataclass declares, from a YAML file and from the command line.

Names are exact: no prefixes, and what is not known is refused with the nearest right name. In a YAML file a mapping
under a name is a section: its keys are flags, too, and its name is for the reader. The sections of `stages` are
alternatives, of which --stage chooses one that goes over the rest of the file.
"""

import argparse
import dataclasses
import difflib
import math
import sys
import typing
from pathlib import Path
from typing import NamedTuple

import yaml

from config.unknown import Hints, Parser, find_unknown
from errors import UserError

STAGES = "stages"


def flag(default, help: str, *, choices: tuple = (), at_least: float | None = None, per_launch: bool = False):
    """Declare a flag as a dataclass field.

    Its type is the field's annotation: str, int, float, bool, bool | None, or tuple[float, ...] or tuple[str, ...] for one
    or more values.
    Brackets in `help` say the default where the value itself does not. at_least: the smallest value allowed.
    `per_launch` flags belong to one start of the program and are not saved with a run.
    """
    metadata = {"help": help, "choices": choices, "at_least": at_least, "per_launch": per_launch}
    return dataclasses.field(default=default, metadata=metadata)


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that a mapping has twice, of which YAML would take the last."""

    def construct_mapping(self, node, deep=False):
        for number, (key, _) in enumerate(node.value):
            if any(key.value == other.value for other, _ in node.value[:number]):
                raise yaml.YAMLError(f"{key.value!r} is given twice{key.start_mark}")
        return super().construct_mapping(node, deep)


class ConfigFile(NamedTuple):
    """--config and --stage."""

    path: Path
    stage: str

    @property
    def name(self) -> str:
        """What a run of it is called."""
        return f"{self.path.stem}-{self.stage}" if self.stage else self.path.stem


class FlagReader:
    """Reads the flags of a dataclass.

    aliases: {another name: the flag's name}, accepted with a note, which ends with what follows the name after a space.
    Another name may be SECTION.KEY, of a key in a section of a YAML file. instead: {a flag: one that goes before it,
    unless the first is given by itself in a source that goes over the one which gives the second}.
    """

    def __init__(
        self,
        declared: type,
        aliases: dict[str, str],
        program: str,
        description: str,
        instead: dict[str, str] | None = None,
    ):
        self.declared, self.instead = declared, instead or {}
        self.fields = {item.name: item for item in dataclasses.fields(declared) if "help" in item.metadata}
        self.types = typing.get_type_hints(declared)
        self.aliases = aliases
        self.parser = self._parser(program, description)
        switches_off = [f"no_{name}" for name in self.fields if self._is_switch(name)]
        self.hints = Hints([*self.fields, *switches_off, "config", "stage"], program)

    def _parser(self, program: str, description: str) -> argparse.ArgumentParser:
        parser = Parser(
            prog=program, description=description, allow_abbrev=False, argument_default=argparse.SUPPRESS,
            usage=f"{program} [--config FILE [--stage NAME]] [--flag value ...]",
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=120),
        )  # fmt: skip
        parser.add_argument("--config", metavar="FILE", help="YAML file of flags; the command line goes over it")
        parser.add_argument(
            "--stage", metavar="NAME", help="of the file's `stages`: the one whose flags go over the rest"
        )
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
                parser.add_argument(f"--{name}", metavar=self._kind(name).__name__.upper(), nargs="+", help=help)
            else:
                parser.add_argument(f"--{name}", metavar=self.types[name].__name__.upper(), help=help)
        return parser

    def command_line(self, argv: list[str] | None) -> tuple[dict, ConfigFile | None, list[str]]:
        """The values on the command line (default: sys.argv), the --config file if any, and notes for the user."""
        notes: list[str] = []
        words = [self._our_word(word, notes) for word in (sys.argv[1:] if argv is None else argv)]
        unknown = [] if {"-h", "--help"} & set(words) else find_unknown(words, self._num_values)
        if unknown:
            raise UserError(self.hints.of_words(unknown))
        values = vars(self.parser.parse_args(words))
        path, stage = values.pop("config", None), values.pop("stage", "")
        if stage and not path:
            raise UserError(f"--stage {stage} without --config: name the file whose stage it is")
        given = {name: self._convert(name, value, f"--{name}") for name, value in values.items()}
        return given, ConfigFile(Path(path), stage) if path else None, notes

    def peek(self, argv: list[str] | None, name: str):
        """The value of one flag on the command line, whatever else is there; its default where it is not given."""
        words = [self._our_word(word, []) for word in (sys.argv[1:] if argv is None else argv)]
        given = vars(self.parser.parse_known_args(words)[0])
        return self._convert(name, given[name], f"--{name}") if name in given else self.fields[name].default

    def words(self, values: dict) -> list[str]:
        """The command line that gives these values of flags."""
        words = []
        for name, value in values.items():
            if self._is_switch(name):
                words.append(f"--{name}" if value else f"--no_{name}")
            else:
                words += [f"--{name}", *map(str, value if self._is_list(name) else [value])]
        return words

    def yaml_file(self, config_file: ConfigFile, notes: list[str]) -> dict:
        """The values in a YAML file, of its stage as well; notes for the user are added to `notes`."""
        path, stage = config_file
        try:
            content = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)
        except OSError as error:
            raise UserError(f"--config {path}: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"--config {path}: not YAML ({' '.join(str(error).split())})") from None
        if not isinstance(content, dict | None):
            raise UserError(f"--config {path}: expected lines 'flag: value', found a {type(content).__name__}")
        content = content or {}
        stages = content.pop(STAGES, None) or {}
        if not (isinstance(stages, dict) and all(isinstance(values, dict) for values in stages.values())):
            raise UserError(f"{path}: {STAGES}: expected a section of flags under each stage's name")
        stages = {str(name): values for name, values in stages.items()}
        if stage not in stages and (stage or stages):
            chosen = f"--stage {stage}: not in" if stage else "--stage is not set, but there are stages in"
            raise UserError(f"{chosen} {path}: it has {', '.join(stages) or 'none'}")
        return self.merge(self._values(content, path, notes), self._values(stages.get(stage, {}), path, notes))

    def merge(self, values: dict, over: dict) -> dict:
        """The values of two sources, of which the second goes over the first."""
        dropped = {other for name, other in self.instead.items() if name in over and other not in over}
        return {name: value for name, value in values.items() if name not in dropped} | over

    def _values(self, content: dict, path: Path, notes: list[str]) -> dict:
        """The flags in a mapping of a YAML file, and in its sections."""
        lines: list[tuple[str, str, typing.Any]] = []  # key, SECTION.key, value
        for key, value in content.items():
            inside = value if isinstance(value, dict) else {}
            lines += [(str(inner), f"{key}.{inner}", item) for inner, item in inside.items()]
            lines += [] if isinstance(value, dict) else [(str(key), str(key), value)]
        values, unknown = {}, {}
        for key, dotted, value in lines:
            name = self._translate((dotted if dotted in self.aliases else key).replace("-", "_"), notes, "")
            if name not in self.fields:
                unknown[repr(key)] = self.hints.of_name(dotted, "")
                continue
            if name in values:
                raise UserError(f"{path}: {name!r} is given twice, once as {key!r}: remove one")
            values[name] = self._convert(name, value, f"{path}: {name}")
        if unknown:
            raise UserError(f"{path}: {self.hints.message('unknown key', unknown)}")
        return values

    def _is_switch(self, name: str) -> bool:
        return self.types[name] in (bool, bool | None)

    def _is_list(self, name: str) -> bool:
        return typing.get_origin(self.types[name]) is tuple

    def _kind(self, name: str) -> type:
        """The type of a flag's value, or of each of its values."""
        return typing.get_args(self.types[name])[0] if self._is_list(name) else self.types[name]

    def _our_word(self, word: str, notes: list[str]) -> str:
        """`--old-name=value` to `--our_name=value`: dashes are underscores, aliases are translated with a note."""
        if not word.startswith("--"):
            return word
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        no = "no_" if name.startswith("no_") and name[3:] in self.aliases else ""  # of an alias that is a switch
        return "--" + no + self._translate(name.removeprefix(no), notes, f"--{no}") + equals + value

    def _translate(self, name: str, notes: list[str], prefix: str) -> str:
        ours, _, remark = self.aliases.get(name, name).partition(" ")
        if ours != name and "." not in name:  # a section's keys are as good as ours
            notes.append(f"{prefix}{name} is now {prefix}{ours} {remark}".rstrip())
        return ours

    def _num_values(self, name: str) -> float | None:
        """The maximal number of values of a flag; None where there is no such flag."""
        ours = name.removeprefix("no_") if name.removeprefix("no_") in self.fields else name
        if ours not in self.fields:
            return 1 if name in ("config", "stage") else None
        if self._is_switch(ours):
            return 0
        return None if ours != name else math.inf if self._is_list(ours) else 1

    def _convert(self, name: str, value, where: str):
        """A value from YAML or the command line, as the flag's type."""
        kind, choices = self._kind(name), self.fields[name].metadata["choices"]
        if self._is_switch(name):
            if isinstance(value, bool) or (value is None and kind is not bool):
                return value
            raise UserError(f"{where}: {value!r} is not true or false")
        if self._is_list(name):
            values = value if isinstance(value, list) else [value]
            return tuple(self._number(item, kind, where, self.fields[name].metadata["at_least"]) for item in values)
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
        if isinstance(converted, float) and not math.isfinite(converted):
            raise UserError(f"{where} {converted}: must be a finite number")
        if at_least is not None and not converted >= at_least:
            raise UserError(f"{where} {converted}: must be at least {at_least}")
        return converted
