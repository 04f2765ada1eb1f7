"""Hints on unknown flags, keys and words."""

import difflib
import functools
import re
from collections.abc import Iterable
from pathlib import Path

from support.shell import python_command

# Typos of names up to 5 letters (--flop, --seeds) reach 0.75. Longer names of other trainers reach 0.80 with flags that
# mean something else (freeze -> freeze_bn), and typos of long names 0.84 (tests/test_foreign_flags.py has both).
CUTOFF, SHORT_CUTOFF, SHORT = 0.82, 0.75, 5
TORCHRUN_FLAGS = {"nproc_per_node", "nnodes"}  # that foreign.txt mentions


@functools.cache
def foreign_flags() -> dict[str, list[str]]:
    """Return {flag of another trainer: sentences on what to use here}, from foreign.txt."""
    text = Path(__file__).with_name("foreign.txt").read_text(encoding="utf-8")
    entries = re.findall(r"((?:^[^#\s].*\n)+)((?:^ .*\n)+)", text, re.MULTILINE)  # names, then indented sentences
    return {name: re.findall(r"\S.*", sentences) for names, sentences in entries for name in names.split()}


class Hints:
    """Hints on unknown names for one program. names: the program's flags. aliases: {another name: the flag}."""

    def __init__(self, names: list[str], aliases: dict[str, str], program: str):
        self.names, self.aliases, self.program = names, aliases, program

    def for_words(self, words: list[str], flags: Iterable[str]) -> str:
        """Return the error message on a command line's unexpected words and unknown flags, with a hint on each."""
        parts = [f"unexpected argument {word!r}: {self._for_word(word)}" for word in words]
        if flags:
            parts.append(self.message("unknown flag", {name: self.for_name(name.lstrip("-"), "--") for name in flags}))
        return "; ".join(parts)

    def message(self, kind: str, unknown: dict[str, str]) -> str:
        """Return the error message on unknown names. kind: "unknown flag" or "unknown key".

        unknown: {name: hint, or ""}.
        """
        hints = list(dict.fromkeys(unknown.values()))
        parts = [", ".join(name for name in unknown if unknown[name] == hint) + f": {hint}" for hint in hints if hint]
        if "" in hints:
            names = ", ".join(name for name in unknown if not unknown[name])
            parts.append(f"{names}: to list all flags: {python_command(self.program, '--help')}")
        return f"{kind}{'s' if len(unknown) > 1 else ''} {'; '.join(parts)}"

    def for_name(self, name: str, prefix: str) -> str:
        """Return a hint on an unknown name or SECTION.NAME, or "".

        prefix: "--" on a command line, "" in a YAML file.
        """
        name = name.replace("-", "_")
        section, _, key = name.rpartition(".")
        names = [own for own in self.names if prefix or own not in ("config", "stage")]
        for part in (name, key, section.partition(".")[0]):
            if part in names or part in self.aliases:
                return f"did you mean {prefix}{self.aliases.get(part, part)}?"
            for sentence in foreign_flags().get(part, ()):
                if set(re.findall(r"--(\w+)", sentence)) <= {*self.names, *TORCHRUN_FLAGS}:
                    return sentence
        if key in foreign_flags():
            return ""
        cutoff = SHORT_CUTOFF if len(key) <= SHORT else CUTOFF
        alike = [own for own in (*names, *self.aliases) if own[0] == key[:1]]  # bn_momentum is no typo of momentum
        near = difflib.get_close_matches(key, alike, n=1, cutoff=cutoff)
        return f"did you mean {prefix}{self.aliases.get(near[0], near[0])}?" if near else ""

    def _for_word(self, word: str) -> str:
        """Return a hint on a command-line word that is neither a flag nor a flag's value."""
        setting = re.fullmatch(r"[+~]{0,2}([A-Za-z_][\w.]*)=.*", word)  # the syntax of Ultralytics and Hydra
        if setting:
            return self.for_name(setting[1], "--") or "flags are written --name value"
        flags = {".yaml": "config", ".yml": "config", ".pt": "checkpoint", ".pth": "checkpoint"}
        flag = flags.get(Path(word).suffix) or ("input" if Path(word).is_file() else "dataset_path")
        if flag == "dataset_path" and not Path(word).is_dir():
            return "flags start with --"
        ours = next((name for name in (flag, "input", "resume") if name in self.names), None)
        return f"did you mean --{ours} {word}?" if ours else "flags start with --"
