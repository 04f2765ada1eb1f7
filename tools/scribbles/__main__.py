"""Write a scribble for each dense mask in a folder, drawn as a person would.

    python -m tools.scribbles simulate MyData/masks MyData/pascal_2012_scribble

`python -m tools.scribbles suggest` is `python -m tools.suggest`.

Exit status: 0: all done; 1: done except for the files it names; 2: an error stopped the program.
"""

import contextlib
import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

if not __package__:  # started as a file from another folder: python PATH/tools/scribbles
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from data.classes import read_classes
from data.images import label_png, read_label
from data.label_check import holds_only_255
from data.label_map import BINARY, LabelMap, read_label_map
from data.layout import find_labels
from flags.declare import flag
from flags.reader import FlagReader
from support import program
from support.errors import InputError, UserError
from support.files import write_atomic
from support.labels import IGNORE
from support.processes import work_on
from support.results import file_state, reserve
from support.terminal import say, warn
from tools.scribbles.simulate import Style, draw_scribble, import_extra

ABOUT = """Draw scribbles from dense masks, as a person would.

Each connected region of a class gets a stroke along its longest axis, which never leaves its class. The
same mask, flags, seed and name give the same scribble, whatever the other images and the number of processes.
If the masks hold only 0 and 255, 255 is class 1, as in train.py.
The defaults are fitted to ScribbleSup.
"""


@dataclass(frozen=True)
class SimulateFlags(Style):
    """Masks and scribbles."""

    command: str = flag(None, "what to do", is_argument=True, choices=("simulate",))
    masks: Path = flag(None, "folder of dense masks; 255 = ignore", is_argument=True)
    out: Path = flag(
        None, "folder for the scribbles, named as the masks; new, or of the same command", is_argument=True
    )
    list: Path | None = flag(None, "names of the masks to use, one a line [all]")
    seed: int = flag(0, "another number gives other strokes", ge=0, le=2**31)
    classes: str = flag("", "colours of the PNGs: voc, camvid, ..., or a FILE [voc]")
    workers: int = flag(-1, "processes; 0 draws in this process [number of cores]", ge=-1)


READER = FlagReader(SimulateFlags, "-m tools.scribbles", ABOUT, has_config=False)


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["suggest"]:
        from tools.suggest import __main__ as suggest  # imported here, since it imports torch

        return suggest.main(words[1:])
    args = SimulateFlags(**READER.command_line(argv).values)
    import_extra("skimage")  # before anything is written
    masks = list(find_labels(args.masks, args.list).items())
    label_map = read_label_map(BINARY) if _hold_only_255(mask for _, mask in masks) else None
    colours = read_classes(args.classes, None).colours
    simulate = functools.partial(_simulate, args=args, label_map=label_map, colours=colours)
    settings = {item.name: getattr(args, item.name) for item in dataclasses.fields(Style)}
    settings |= {"background": args.background_class, "seed": args.seed, "classes": args.classes}
    settings |= {"masks": str(args.masks.resolve())}
    settings |= {"label_map": BINARY} if label_map else {}
    options: dict = {"inputs": [args.masks], "files": {name: file_state(mask) for name, mask in masks}}
    options["paths"] = lambda name: [args.out / f"{name}.png"]
    reserve(args.out / ".made_from.json", settings, ["**/*"], "tools.scribbles", **options)
    results = work_on(simulate, masks, args.workers, "mask", "drawing")
    if label_map:
        say("masks hold only 0 and 255: 255 is read as class 1")
    counts = Counter(results)
    drawn, kept = counts.pop("drawn", 0), counts.pop("kept", 0)
    warn(*counts)  # the lines on masks without a scribble
    say(f"{args.out}: {drawn} scribble(s) drawn" + (f", {kept} kept (from an earlier start)" if kept else ""))
    if not drawn + kept:
        raise UserError(f"{args.masks}: no mask could be used: mend the files named above")
    return 1 if counts else 0


def _hold_only_255(masks: Iterable[Path]) -> bool:
    """Return whether the masks hold 0 and 255 only, so that 255 is the object, as train.py reads them.

    Reads masks until one has another value. Skips damaged ones, which _simulate() names.
    """
    present: set[int] = set()
    for mask in masks:
        with contextlib.suppress(InputError):
            present.update(np.unique(read_label(mask, IGNORE)).tolist())
        if present - {0, IGNORE}:
            return False
    return holds_only_255([present])


def _simulate(named: tuple[str, Path], args: SimulateFlags, label_map: LabelMap | None, colours: np.ndarray) -> str:
    """Write the scribble of a mask (name, file), unless there is one.

    colours: (256, 3) uint8. Returns "drawn", "kept", or a line that says why there is none.
    """
    name, mask = named
    target = args.out / f"{name}.png"
    if target.exists():  # reserve() has removed those whose masks have changed
        return "kept"
    try:
        scribble = draw_scribble(read_label(mask, IGNORE, label_map), args, args.seed, name)
        write_atomic(target, label_png(scribble, colours), parents=True)
    except InputError as error:  # others, such as a full disk, concern all masks
        return str(error)
    return "drawn"


if __name__ == "__main__":
    program.run_and_exit(main)
