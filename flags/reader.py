"""Read flags from the command line and from YAML files.

Names are exact, without abbreviations; an unknown name is an error that names the nearest flag. A mapping in a YAML
file is a section: its keys are flags, and its name is free. --stage chooses a section of `stages` to override the rest.
"""

import argparse
import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from flags.declare import Flag, flags_of
from flags.other_trainers import changes_nothing, other_names
from support.errors import UserError
from support.shell import PACKAGE, document, located, python_command
from support.yaml_file import read_yaml

# Other trainers have names that reach 0.80 with flags that mean something else (freeze -> freeze_bn); tools have none.
MIN_SIMILARITY = 0.82
MAX_NEAR = 4  # flags that an error on an unknown name proposes
SWITCH = ("true", "false")


class ConfigFile(NamedTuple):
    """The file of --config and the stage of --stage ("" if not set)."""

    path: Path
    stage: str


class Parsed(NamedTuple):
    """What a command line or a YAML file says: {flag: value}, the --config file or None, and notes for the user."""

    values: dict
    config_file: ConfigFile | None
    notes: list[str]


class FlagReader:
    """A reader of the flags that the dataclass `declared` declares, for one program.

    program: what follows "python ", such as "train.py" or "-m tools.check". renamed: {other name: flag} that only this
    program accepts, besides those that the flags declare. also: declares more flags. has_config: whether there are
    --config and --stage. passes_on: whether unknown flags belong to another program: the value `others` has them, and
    all words behind.
    """

    readers: ClassVar[dict[str, "FlagReader"]] = {}  # for hints: which program has a flag

    def __init__(
        self,
        declared: type,
        program: str,
        description: str,
        renamed: Mapping[str, str] | None = None,
        *,
        also: type | None = None,
        has_config: bool = True,
        passes_on: bool = False,
    ):
        self.declared, self.program, self.description = declared, program, description
        self.has_config, self.passes_on = has_config, passes_on
        every = (flags_of(also) if also else {}) | flags_of(declared)
        self.arguments = [item for item in every.values() if item.is_argument]
        self.flags = {name: item for name, item in every.items() if not item.is_argument}
        same = {alias: item.name for item in self.flags.values() for alias in item.aliases.split()}
        noted = {alias: item.name for item in self.flags.values() for alias in item.renamed}
        self.renamed = {alias: note for item in self.flags.values() for alias, note in item.renamed.items()}
        self.renamed |= {alias: f"--{name} here" for alias, name in (renamed or {}).items()}
        others = (same | noted | dict(renamed or {})).items()
        self.aliases = {alias: name for alias, name in others if alias not in self.flags}
        switches_off = [f"no_{item.name}" for item in self.flags.values() if item.kind is bool]
        self.names = self.aliases | {name: name for name in (*self.flags, *switches_off)}  # for hints

    def command_line(self, argv: list[str] | None = None) -> Parsed:
        """Parse the words of a command line; None: sys.argv.

        Raises UserError on unknown flags, invalid values, and --stage without --config.
        """
        argv = sys.argv[1:] if argv is None else argv
        words, parser = self._translate_words(argv), self._parser()
        try:
            parsed, surplus = parser.parse_known_args(words)
        except argparse.ArgumentError as error:
            name = str(error.argument_name)
            action = parser._option_string_actions.get(name.replace("--no_", "--"))
            help = action.help if action else "it takes no value"
            dash = f" (a value that begins with '-' is written {name}='-value')" if "expected" in error.message else ""
            raise UserError(f"{name}: {error.message}{dash}: {help}".replace("%%", "%")) from None
        values, is_flag = vars(parsed), re.compile(r"--?[A-Za-z_]").match
        if (unknown := list(filter(is_flag, surplus))) and not self.passes_on:
            raise UserError(self._unknown_names("flag", unknown, "--"))
        arguments = self._arguments(list(takewhile(lambda word: not is_flag(word), surplus)))
        path, stage = values.pop("config", None), values.pop("stage", "")
        if path == "":
            raise UserError("--config is empty: name a FILE")
        if stage and not path:
            raise UserError(f"--stage {stage} without --config: add --config FILE")
        # Not in files: config.yaml of an earlier run may have an empty path.
        found = [(item, item.name.upper(), word) for item, word in arguments]
        found += [(self.flags[name], f"--{name}", value) for name, value in values.items()]
        for item, name, value in found:
            if (item.never_empty or item.kind is Path) and "" in (value if isinstance(value, list) else [value]):
                raise UserError(f"{name} is empty: give a value{'' if item.is_argument else ', or drop it'}")
        converted = {item.name: item.convert(value, name) for item, name, value in found}
        names = [_name(word[2:].partition("=")[0]).removeprefix("no_") for word in argv if word.startswith("--")]
        if self.passes_on:
            converted["others"] = tuple(surplus[len(arguments) :])
        return Parsed(converted, ConfigFile(Path(path), stage) if path else None, self._notes(names, "--"))

    def _arguments(self, words: list[str]) -> list[tuple[Flag, Any]]:
        """Return (argument, its word) of the words that belong to no flag. An optional argument gets one if all do.

        An argument that is a list gets all words.
        """
        required = [item for item in self.arguments if item.default is None]
        if missing := [item.name.upper() for item in required[len(words) :]]:
            command = python_command(*self.program.split(), "--help")
            raise UserError(f"the following arguments are required: {', '.join(missing)}: to list all flags: {command}")
        if words and self.arguments and self.arguments[0].is_list:
            return [(self.arguments[0], words)]
        declared = self.arguments if len(words) >= len(self.arguments) else required
        if len(words) > len(declared) and not self.passes_on:
            raise UserError(f"unexpected argument {words[len(declared)]!r}: flags are written --name value")
        return list(zip(declared, words, strict=False))

    def yaml_file(self, config_file: ConfigFile, *, of_run: bool = False) -> Parsed:
        """Parse a YAML file. The values of the chosen stage override the others.

        of_run: the file is the config.yaml of a run, perhaps of an earlier version; its unknown keys are left out.
        Raises UserError if the file cannot be read, or holds an unknown key, an invalid value or no such stage.
        """
        path, stage = config_file
        content = read_yaml(path, "--config ")
        if not isinstance(content, dict | None):
            raise UserError(f"--config {path}: expected lines 'flag: value', found a {type(content).__name__}")
        content = content or {}
        stages = content.pop("stages", None) or {}
        if not isinstance(stages, dict) or not all(isinstance(values, dict) for values in stages.values()):
            raise UserError(f"{path}: stages: expected a section of flags under each stage's name")
        stages = {str(name): values for name, values in stages.items()}
        if stage not in stages and (stage or stages):
            problem = f"--stage {stage}: not in" if stage else "--stage is not set, but there are stages in"
            raise UserError(f"{problem} {path}: it has {', '.join(stages) or 'none'}")
        unknown = [key for key in content if of_run and key not in self.flags]
        notes = [f"{path}: {key} is not a flag of this version: left out" for key in unknown]
        pairs = self._flatten({key: value for key, value in content.items() if key not in unknown})
        overrides = self._flatten(stages.get(stage, {}))
        values = self.merge(self._convert(pairs, path), self._convert(overrides, path))
        return Parsed(values, config_file, notes + self._notes([_name(key) for key, _ in pairs + overrides]))

    def merge(self, values: dict, overrides: dict) -> dict:
        """Return {flag: value} of both arguments; `overrides` takes precedence.

        A flag in `overrides` also discards from `values` the flag that declares to replace it: epochs discards
        max_steps.
        """
        discarded = {item.name for item in self.flags.values() if item.replaces in overrides}
        return {name: value for name, value in values.items() if name not in discarded} | overrides

    def _parser(self) -> argparse.ArgumentParser:
        """Return an ArgumentParser of all flags, whose values remain text (bool for switches)."""
        start = " ".join(["python", *(located(*self.program.split()) if PACKAGE else [self.program])])
        words = [item.name if item.default is None else f"[{item.name}]" for item in self.arguments]
        config = ["[--config FILE [--stage NAME]]"] if self.has_config else []
        listed = [f"  {item.name.upper():9} {item.help}" for item in self.arguments]
        parser = argparse.ArgumentParser(
            start,
            " ".join([start, *map(str.upper, words), *config, "[--flag value ...]"]),
            "\n".join([self.description, *listed]),
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=32),
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            exit_on_error=False,
        )
        parser._negative_number_matcher = re.compile(r"-[\d.]")  # argparse's own does not know -1e-05
        if self.has_config:
            parser.add_argument("--config", metavar="FILE", help="YAML file of flags; the command line overrides it")
            stage = "section of the file's `stages`; overrides the rest of it"
            parser.add_argument("--stage", metavar="NAME", help=stage)
        for heading, items in groupby(self.flags.values(), lambda item: item.group):
            group = parser.add_argument_group(heading)
            for item in items:
                help = item.help + ("; one of " + ", ".join(map(str, item.choices)) if item.choices else "")
                if "[" not in help and item.default is not False and item.default not in (None, ""):
                    help += f" [{' '.join(map(str, item.default)) if item.is_list else item.default}]"
                help = help.replace("%", "%%")
                if item.kind is bool:
                    group.add_argument(f"--{item.name}", action="store_true", help=help)
                    group.add_argument(
                        f"--no_{item.name}", dest=item.name, action="store_false", help=argparse.SUPPRESS
                    )
                else:
                    kind, nargs = item.kind.__name__.upper(), "+" if item.is_list else None
                    group.add_argument(f"--{item.name}", metavar=kind, nargs=nargs, help=help)
        return parser

    def _convert(self, pairs: list[tuple[Any, Any]], path: Path) -> dict:
        """Return {flag: value} of the keys and values of a YAML file. Raises UserError on unknown or repeated flags."""
        values: dict[str, Any] = {}
        unknown: list[str] = []
        for key, value in pairs:
            flag = self._flag(_name(key))
            if flag is None:
                unknown += [] if changes_nothing(_name(key), value) else [repr(str(key))]
                continue
            for text in (value if isinstance(value, list) else [value]) if flag.kind is not str else ():
                if re.fullmatch("[-+]?0[0-7]+", str(text)) and (octal := int(text, 8)) != int(text):
                    both = f"{octal} in YAML 1.1, {int(text)} in YAML 1.2"
                    raise UserError(f"{path}: {flag.name}: {text} is {both}: write it without leading zeros")
            converted = flag.convert(value, f"{path}: {flag.name}")
            if values.setdefault(flag.name, converted) != converted:
                keys = " and ".join(other for other, _ in pairs if self._flag(other) is flag)
                raise UserError(f"{path}: {flag.name!r} is given twice ({keys}), with two values: remove one")
        if unknown:
            raise UserError(f"{path}: {self._unknown_names('key', unknown, '')}")
        return values

    def _unknown_names(self, kind: str, unknown: list[str], prefix: str) -> str:
        """Return the error message on unknown flags or keys: what each is here, or the nearest flag."""
        known, others = [], []
        rows: dict[str, list[str]] = {}
        names = list(dict.fromkeys(word.partition("=")[0] for word in unknown))
        for name in names:
            bare = name.strip("-'").replace("-", "_")
            programs = [reader.program for reader in self.readers.values() if bare in reader.names and reader != self]
            alike = [own for own in self.names if own[0] == bare[:1]]  # bn_momentum is no typo of momentum
            cutoff = MIN_SIMILARITY if self.program in self.readers else 0.6
            near = difflib.get_close_matches(bare, alike, n=1, cutoff=cutoff) or self._sharing_words(bare)
            if bare in self.names and name != f"{prefix}{bare}":  # -batch_size
                known.append(f"{name}: did you mean {prefix}{bare}?")
            elif programs:
                known.append(f"{name}: a flag of {', '.join(programs)}")
            elif row := other_names().get(bare):
                rows.setdefault(row.here, []).append(name)
            elif near:
                known.append(f"{name}: did you mean {' or '.join(prefix + self.names[own] for own in near)}?")
            else:
                others.append(name)
        for here, its_names in rows.items():
            known.append(f"{', '.join(its_names)}: {'here ' if here.startswith('--') else ''}{here}")
        if others:
            known.append(
                f"{', '.join(others)}: see --help for all flags, {document('CHANGELOG.md')} for flags that were removed"
            )
        return f"unknown {kind}{'s' if len(names) > 1 else ''} {'; '.join(known)}"

    def _sharing_words(self, name: str) -> list[str]:
        """Return flags that have all words of a name, as crop_size has for crop, or no others, as amp for use_amp."""
        words, of_flags = set(name.split("_")), {flag: set(flag.split("_")) for flag in self.flags}
        return [flag for flag, parts in of_flags.items() if words <= parts or parts <= words][:MAX_NEAR]

    def _translate_words(self, argv: Sequence[str]) -> list[str]:
        """Return the command line's words with our names: `--alias=value` becomes `--flag=value`.

        A switch may have a value, as in YAML: `--flag false` becomes `--no_flag`.
        """
        words, translated = list(argv), []
        while words:
            word = words.pop(0)
            name, equals, value = word.removeprefix("--").partition("=")
            name = _name(name)
            bare = name.removeprefix("no_")
            if not word.startswith("--") or bare in ("", "config", "stage") or " " in name:  # flags in one value
                translated += [word] if word != "--" else []  # launchers pass it on
                continue
            is_negated = bare != name and bare in self.names
            name = bare if is_negated else name
            flag = self._flag(name)
            if not equals and words and words[0].lower() in SWITCH and (flag is None or flag.kind is bool):
                equals, value = "=", words.pop(0)
            if flag is None and changes_nothing(name, value):
                continue
            name = flag.name if flag else name
            if flag and flag.kind is bool and equals:
                if is_negated or value.lower() not in SWITCH:
                    raise UserError(f"{word.partition('=')[0]} {value}: give --{name} true or false, or no value")
                is_negated, equals, value = value.lower() == "false", "", ""
            translated.append(f"--{'no_' if is_negated else ''}{name}{equals}{value}")
        return translated

    def _flatten(self, content: dict) -> list[tuple[Any, Any]]:
        """Return the keys and values of a YAML mapping; a section contributes its own."""
        pairs: list[tuple[Any, Any]] = []
        for key, value in content.items():
            flag = self._flag(_name(key))
            if isinstance(value, dict) and flag and flag.takes_mapping:
                pairs.append((key, [f"{name}={_literal(item)}" for name, item in value.items()]))
            else:
                pairs += value.items() if isinstance(value, dict) else [(key, value)]
        return pairs

    def _flag(self, name: str) -> Flag | None:
        """Return the flag of this name or alias, or None."""
        return self.flags.get(self.aliases.get(name, name))

    def _notes(self, names: list[str], prefix: str = "") -> list[str]:
        """Return a note for each name that means something else in other trainers."""
        return [f"{prefix}{name}: {self.renamed[name]}" for name in names if name in self.renamed]


def _name(word: object) -> str:
    """Return a flag's name as it is declared: --batch-size is --batch_size."""
    return str(word).replace("-", "_")


def _literal(value: Any, *, is_inside: bool = False) -> str:
    """Return a value of YAML, all of whose scalars are text, as a Python literal; text outside of lists as it is."""
    if isinstance(value, list):
        return f"[{', '.join(_literal(item, is_inside=True) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_literal(item, is_inside=True)}' for key, item in value.items())}}}"
    is_number = re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|True|False|None", str(value))
    return repr(str(value)) if is_inside and not is_number else str(value)
