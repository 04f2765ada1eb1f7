"""Read flags from the command line and from YAML files.

Names are exact, without abbreviations; an unknown name is an error that names the nearest flag. A mapping in a YAML
file is a section: its keys are flags too, and its name is free. --stage chooses one of the sections of `stages`; it
overrides the rest of the file.
"""

import argparse
import difflib
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from config.flags import flags_of
from support.errors import UserError
from support.shell import document

# Other trainers have names that reach 0.80 with flags that mean something else (freeze -> freeze_bn).
TYPO = 0.82


class ConfigFile(NamedTuple):
    """The file of --config and the stage of --stage ("" if not set)."""

    path: Path
    stage: str


class FlagReader:
    """A reader of the flags that the dataclass `declared` declares, for one program.

    takes_aliases: whether an alias of a flag is accepted. If not, an alias raises UserError with a hint.
    """

    def __init__(self, declared: type, program: str, description: str, *, takes_aliases: bool = False):
        self.declared, self.program, self.description = declared, program, description
        self.flags = flags_of(declared)
        pairs = [(alias, item.name) for item in self.flags.values() for alias in item.aliases.split()]
        aliases = {alias: name for alias, name in pairs if alias not in self.flags}
        self.aliases = aliases if takes_aliases else {}
        switches_off = [f"no_{item.name}" for item in self.flags.values() if item.kind is bool]
        self.names = aliases | {name: name for name in (*self.flags, *switches_off)}  # for hints

    def command_line(self, argv: list[str] | None = None) -> tuple[dict, ConfigFile | None, list[str]]:
        """Return ({flag: value} of the command line, the --config file or None, notes for the user).

        argv: the words; None: sys.argv. Raises UserError on unknown flags, invalid values, and --stage without
        --config.
        """
        notes: list[str] = []
        words = [self._translate_word(word, notes) for word in (sys.argv[1:] if argv is None else argv)]
        parser = self._parser()
        try:
            parsed, surplus = parser.parse_known_args(words)
        except argparse.ArgumentError as error:
            name = str(error.argument_name)
            action = parser._option_string_actions.get(name.replace("--no_", "--"))
            help = action.help if action else "it takes no value"
            raise UserError(f"{name}: {error.message}: {help}".replace("%%", "%")) from None
        values, unknown = vars(parsed), [word for word in surplus if re.match(r"--?[A-Za-z_]", word)]
        if unknown:
            raise UserError(self._unknown_names("flag", unknown, "--"))
        if surplus:
            raise UserError(f"unexpected argument {surplus[0]!r}: flags are written --name value")
        path, stage = values.pop("config", None), values.pop("stage", "")
        if stage and not path:
            raise UserError(f"--stage {stage} without --config: add --config FILE")
        converted = {name: self.flags[name].convert(value, f"--{name}") for name, value in values.items()}
        return converted, ConfigFile(Path(path), stage) if path else None, notes

    def yaml_file(self, config_file: ConfigFile, notes: list[str], *, of_run: bool = False) -> dict:
        """Return {flag: value} of a YAML file; values of the chosen stage override the others.

        of_run: it is the config.yaml of a run, perhaps of an earlier version, whose unknown keys are left out. Appends
        notes for the user to `notes`. Raises UserError if the file cannot be read, or holds an unknown key, an invalid
        value or no such stage.
        """
        path, stage = config_file
        try:
            content = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)
        except OSError as error:
            raise UserError(f"--config {path}: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"--config {path}: not YAML ({' '.join(str(error).split())})") from None
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
        for key in [key for key in content if of_run and key not in self.flags]:
            notes.append(f"{path}: {key} is not a flag of this version: left out")
            del content[key]
        return self.merge(self._section(content, path, notes), self._section(stages.get(stage, {}), path, notes))

    def merge(self, values: dict, overrides: dict) -> dict:
        """Return {flag: value} of both arguments; `overrides` takes precedence.

        A flag in `overrides` also discards from `values` the flag that declares to replace it: epochs discards
        max_steps.
        """
        discarded = {item.name for item in self.flags.values() if item.replaces in overrides}
        return {name: value for name, value in values.items() if name not in discarded} | overrides

    def _parser(self) -> argparse.ArgumentParser:
        """Return an ArgumentParser of all flags, whose values remain text (bool for switches)."""
        parser = argparse.ArgumentParser(
            f"python {self.program}",
            f"python {self.program} [--config FILE [--stage NAME]] [--flag value ...]",
            self.description,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32),
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            exit_on_error=False,
        )
        parser.add_argument("--config", metavar="FILE", help="YAML file of flags; the command line overrides it")
        parser.add_argument("--stage", metavar="NAME", help="section of the file's `stages`; overrides the rest of it")
        for heading, items in groupby(self.flags.values(), lambda item: item.group):
            group = parser.add_argument_group(heading)
            for item in items:
                help = item.help + ("; one of " + ", ".join(map(str, item.choices)) if item.choices else "")
                if "[" not in help and item.default is not False:
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

    def _section(self, content: dict, path: Path, notes: list[str]) -> dict:
        """Return {flag: value} of a YAML mapping and its sections. Raises UserError on unknown or repeated flags."""
        pairs: list[tuple[Any, Any]] = []
        for key, value in content.items():
            pairs += value.items() if isinstance(value, dict) else [(key, value)]
        values: dict[str, Any] = {}
        unknown: list[str] = []
        for key, value in pairs:
            name = self._translate(str(key).replace("-", "_"), notes, "")
            if name not in self.flags:
                unknown.append(repr(str(key)))
            elif name in values:
                raise UserError(f"{path}: {name!r} is given twice, once as {key!r}: remove one")
            else:
                values[name] = self.flags[name].convert(value, f"{path}: {name}")
        if unknown:
            raise UserError(f"{path}: {self._unknown_names('key', unknown, '')}")
        return values

    def _unknown_names(self, kind: str, unknown: list[str], prefix: str) -> str:
        """Return the error message on unknown flags or keys, with the nearest known ones."""
        near, others = [], []
        names = list(dict.fromkeys(word.partition("=")[0] for word in unknown))
        for name in names:
            bare = name.strip("-'").replace("-", "_")
            alike = [own for own in self.names if own[0] == bare[:1]]  # bn_momentum is no typo of momentum
            found = difflib.get_close_matches(bare, alike, n=1, cutoff=TYPO)
            near += [f"{name}: did you mean {prefix}{self.names[found[0]]}?"] if found else []
            others += [] if found else [name]
        if others:
            near.append(
                f"{', '.join(others)}: see --help for all flags, {document('docs/coming_from.md')} for names of other "
                f"trainers, {document('CHANGELOG.md')} for flags that were removed"
            )
        return f"unknown {kind}{'s' if len(names) > 1 else ''} {'; '.join(near)}"

    def _translate_word(self, word: str, notes: list[str]) -> str:
        """Replace an alias of a flag in a command-line word, with a note: `--alias=value` becomes `--flag=value`."""
        if not word.startswith("--"):
            return word
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        prefix = "--no_" if name.removeprefix("no_") in self.aliases and name.startswith("no_") else "--"
        return prefix + self._translate(name.removeprefix(prefix[2:]), notes, prefix) + equals + value

    def _translate(self, name: str, notes: list[str], prefix: str) -> str:
        """Return the flag that a name or alias stands for. For an alias, append a note to `notes`."""
        ours = self.aliases.get(name, name)
        if ours != name:
            meaning = re.split(r"; | \[", self.flags[ours].help)[0]
            notes.append(f"{prefix}{name} is now {prefix}{ours}" + ("" if prefix == "--no_" else f": {meaning}"))
        return ours


class _UniqueKeyLoader(yaml.SafeLoader):
    """A YAML loader that raises YAMLError on a duplicate key, where SafeLoader silently keeps the last value."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        for number, (key, _) in enumerate(node.value):
            if key.value in keys[:number]:
                raise yaml.YAMLError(f"{key.value!r} is given twice{key.start_mark}")
        return super().construct_mapping(node, deep)
