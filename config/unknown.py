"""What to say about the words of a command line and the keys of a YAML file that are wrong."""

import argparse
import difflib
import math
import re
from collections.abc import Callable
from pathlib import Path

from config.aliases import ALIASES
from config.foreign import FOREIGN, OF_TORCHRUN
from errors import UserError
from shell import python_command

# Typos of names up to 5 letters (--flop, --seeds) reach 0.75. Longer names of other trainers reach 0.80 with flags that
# mean something else (freeze -> freeze_bn), and typos of long names 0.84 (tests/test_foreign_flags.py has both).
CUTOFF, SHORT_CUTOFF, SHORT = 0.82, 0.75, 5
_NUMBER = re.compile(r"-\.?\d")


class Parser(argparse.ArgumentParser):
    """Raises UserError, and says what the flag takes."""

    def error(self, message):
        flag = message.removeprefix("argument ").partition(":")[0]
        action = self._option_string_actions.get(flag)
        raise UserError(
            f"{message.removeprefix('argument ')}" + (f": {action.help}".replace("%%", "%") if action else "")
        )


def find_unknown(words: list[str], num_values: Callable[[str], float | None]) -> list[str]:
    """The words that are neither flags nor values of flags; for an unknown flag its name, without values.

    num_values(name): the flag's maximal number of values; None where there is no such flag.
    """
    unknown: list[str] = []
    expected = 0.0
    for word in words:
        if word.startswith("-") and not _NUMBER.match(word):
            name, equals, _ = word.partition("=")
            known = num_values(name.removeprefix("--")) if name.startswith("--") else None
            if known is None and word != "--":
                unknown.append(name)
            expected = 0 if equals else math.inf if known is None else known
        elif expected:
            expected -= 1
        else:
            unknown.append(word)
    return unknown


class Hints:
    """Hints on unknown words for one program. names: the program's flags."""

    def __init__(self, names: list[str], program: str):
        self.names, self.program = names, program.removeprefix("python ")
        # Aliases of train.py, too, which other programs do not accept: the flag that they mean is known.
        self.aliases = {other: ours for other, ours in ALIASES.items() if ours.partition(" ")[0] in names}

    def message(self, kind: str, unknown: dict[str, str]) -> str:
        """One line about all unknown names. kind: "unknown flag" or "unknown key". unknown: {name: hint, or ""}."""
        by_hint: dict[str, list[str]] = {}
        for name, hint in unknown.items():
            by_hint.setdefault(hint, []).append(name)
        rest = by_hint.pop("", [])
        parts = [f"{', '.join(names)}: {hint}" for hint, names in by_hint.items()]
        if rest:
            parts.append(f"{', '.join(rest)}: to list all flags: {python_command(self.program, '--help')}")
        return f"{kind}{'s' if len(unknown) > 1 else ''} {'; '.join(parts)}"

    def of_words(self, words: list[str]) -> str:
        """The error message about unknown words of a command line."""
        flags = {word: self.of_name(word.lstrip("-"), "--") for word in words if word.startswith("-")}
        others = [f"unexpected argument {word!r}: {self._of_word(word)}" for word in words if not word.startswith("-")]
        return "; ".join([*others, *([self.message("unknown flag", flags)] if flags else [])])

    def of_name(self, name: str, prefix: str) -> str:
        """A hint on a name that is not a flag, or "". prefix: "--" on a command line, "" in a YAML file.

        A name may be SECTION.NAME.
        """
        name = name.replace("-", "_")
        names = [own for own in self.names if prefix or own not in ("config", "stage")]
        for part in dict.fromkeys((name, name.rpartition(".")[2], name.partition(".")[0])):
            if part in names or part in self.aliases:
                return f"did you mean {prefix}{self._our_name(part)}?"
            for sentence in FOREIGN.get(part, []) + FOREIGN.get(part.removeprefix("no_"), []):
                if set(re.findall(r"--(\w+)", sentence)) <= {*self.names, *OF_TORCHRUN}:
                    return sentence
        name = name.rpartition(".")[2]
        cutoff = SHORT_CUTOFF if len(name) <= SHORT else CUTOFF
        near = difflib.get_close_matches(name, [*names, *self.aliases], n=1, cutoff=cutoff)
        return f"did you mean {prefix}{self._our_name(near[0])}?" if near else ""

    def _our_name(self, name: str) -> str:
        return self.aliases.get(name, name).partition(" ")[0]

    def _of_word(self, word: str) -> str:
        """A hint on a word that is neither a flag nor a value of one."""
        setting = re.fullmatch(r"[+~]{0,2}([A-Za-z_][\w.]*)=.*", word)  # as Ultralytics and Hydra have them
        if setting:
            return self.of_name(setting[1], "--") or "flags are written --name value"
        flags = {".yaml": "config", ".yml": "config", ".pt": "checkpoint", ".pth": "checkpoint"}
        flag = flags.get(Path(word).suffix) or ("input" if Path(word).is_file() else "dataset_path")
        if flag == "dataset_path" and not Path(word).is_dir():
            return "flags start with --"
        ours = next((name for name in (flag, "input", "resume") if name in self.names), None)
        return f"did you mean --{ours} {word}?" if ours else "flags start with --"
