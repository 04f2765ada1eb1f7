"""Parse command lines, and explain each error in one line."""

import argparse
import difflib
import sys
from typing import Any, NoReturn

from support import shell
from support.errors import UserError


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UserError, suggests the nearest flag, and accepts no abbreviations.

    module: the program's name, such as "tools.check".
    """

    def __init__(self, module: str, description: str, epilog: str = ""):
        super().__init__(
            prog=f"python -m {__package__.removesuffix('tools')}{module}",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.module = module

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        for flag in (word.partition("=")[0] for word in words if word.startswith("--") and word != "--"):
            if flag not in known:
                near = difflib.get_close_matches(flag, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"to list all flags: {self._help_command()}"
                raise UserError(f"unknown flag {flag}: {hint}")
        values, unknown = self.parse_known_intermixed_args(words, namespace)  # flags may stand between arguments
        if unknown:
            raise UserError(f"unexpected argument {unknown[0]!r}: {self._help_command()}")
        return values

    def error(self, message: str) -> NoReturn:
        if "expected one argument" in message:
            message += " (a value that begins with '-' is written --flag='-value')"
        raise UserError(f"{message}: to list all flags: {self._help_command()}")

    def _help_command(self) -> str:
        return shell.python_command("-m", self.module, "--help")
