"""Convert scribbles drawn by people, simulate scribbles from dense masks, and measure and compare scribbles.

    python -m tools.scribbles simulate MyData/masks MyData/pascal_2012_scribble
    python -m tools.scribbles stats MyData/pascal_2012_scribble --masks MyData/masks
    python -m tools.scribbles convert labelme annotated MyData

Exit status: 0: all done; 1: done except for the files it names; 2: an error stopped the program.
"""

import difflib
import sys
from pathlib import Path

if not __package__:  # started as a file from another folder: python PATH/data/scribbles
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from support import program, shell
from support.errors import UserError
from tools.scribbles import convert, simulate, stats

COMMANDS = {"simulate": simulate, "stats": stats, "convert": convert}


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    command = words[0] if words else "--help"
    if command in ("-h", "--help"):
        print(__doc__)
        for name in COMMANDS:
            print(f"to list the flags of {name}: {shell.python_command('-m', 'tools.scribbles', name, '--help')}")
        return 0
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(COMMANDS)}"
        raise UserError(f"no such command {command!r}: {hint}")
    return COMMANDS[command].main(words[1:])


if __name__ == "__main__":
    program.run_and_exit(main)
