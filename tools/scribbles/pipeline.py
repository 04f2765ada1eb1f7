"""Go from images and scribbles to a scored model; each step is a command of its own (docs/scribbles.md).

bash scripts/scribble_pipeline.sh MyScribbles log/scribbles
bash scripts/scribble_pipeline.sh MyScribbles log/scribbles --rounds 2 --processes 2 --epochs 100
bash scripts/scribble_pipeline.sh MyScribbles log/scribbles --budget 50    # repeat it after each time you drew

The script prints each command. Started again, it continues where it was; only the score is computed anew.
"""

import dataclasses
import hashlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

if not __package__:  # started as a file
    sys.path[0] = str(Path(__file__).resolve().parents[2])

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of an import; program.run() handles it

from data.classes import read_classes
from data.images import read_label
from data.label_check import MAX_LABELS_READ
from data.layout import MASKS, SCRIBBLES, Split, find_split, first_folder
from flags import Config, as_dict, as_words, parse_flags, without_defaults
from flags.auto_recipe import RECIPE_FLAGS
from flags.declare import flag
from flags.programs import PSEUDO
from flags.reader import FlagReader
from flags.shared import DataFlags, LaunchFlags
from support import program, shell
from support.errors import STOPPED, UserError
from support.files import check_place, lock_file, sha256
from support.labels import BACKGROUND, IGNORE
from support.progress import progress_bar
from support.results import reserve
from support.terminal import warn
from support.user_code import is_code
from tools.check.rules import DENSE_STROKES
from tools.scribbles.__main__ import READER as SIMULATE
from tools.scribbles.chain import STOP_SIGNALS, Chain
from tools.scribbles.drawn_strokes import PATHS, Pass
from tools.suggest.labelme import check_names

OWN = ("dataset", "dataset_path", "train_path", "pseudo_path", "logdir", "name", "resume")  # flags that the chain sets
DATA = tuple(item.name for item in dataclasses.fields(DataFlags))
OWN_SIMULATE = ("background", "list")
OWN_PSEUDO = ("checkpoint", "output", "json", "overwrite", "split", "train_path", *DATA)
# Flags that do not change results, and may differ when the chain is started again.
FREE = (*OWN, *(item.name for item in dataclasses.fields(LaunchFlags)))
PSEUDO_FLAGS = "--scales 1 1.5 --flip"
PASSED_ON = ("device", "workers", "log_level")  # flags of train.py that pseudo.py and evaluate.py get, too


@dataclass(frozen=True)
class PipelineFlags:
    """Chain."""

    data: Path = flag(None, "folder of a data set in VOC's layout", is_argument=True)
    out: Path = flag(None, "folder for all results", is_argument=True)
    rounds: int = flag(1, "number of rounds: each makes pseudo-labels and trains a model on them", ge=1)
    processes: int = flag(1, "processes of train.py and pseudo.py, started by torchrun: give one for each GPU", ge=1)
    simulate: str = flag(
        "", "'FLAGS' of tools.scribbles simulate, which draws strokes if DATA has no pascal_2012_scribble [none]"
    )
    budget: int = flag(
        0, "number of places to suggest for new strokes at the end [none]; draw there and repeat the command", ge=0
    )
    pseudo: str = flag(PSEUDO_FLAGS, "'FLAGS' of pseudo.py, as in --pseudo='--flip'; several scales make better labels")

    others: tuple[str, ...] = ()  # not a flag: the words for train.py


ABOUT = "Train and score a model from images and scribbles. All other flags go to train.py."
READER = FlagReader(PipelineFlags, "-m tools.scribbles.pipeline", ABOUT, has_config=False, passes_on=True)


def main(argv: list[str] | None = None) -> int:
    """Run all steps. Return 0, or the exit status of the step that failed. argv: the words, or None for sys.argv."""
    args = PipelineFlags(**READER.command_line(argv).values)
    if not args.data.is_dir():
        raise UserError(f"{args.data}: no such folder: the first argument must be the data set's folder")
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, signal.default_int_handler)  # as Ctrl-C
    try:
        run_steps(args)
    except (subprocess.CalledProcessError, KeyboardInterrupt) as error:
        status = error.returncode if isinstance(error, subprocess.CalledProcessError) else STOPPED
        if status == STOPPED:
            warn("stopped; to continue, run scribble_pipeline again as before")
        elif 128 < status <= 192:
            ended = f"the last command was ended by signal {status - 128}"
            warn(f"{ended} (9: perhaps out of memory); to continue, run scribble_pipeline again as before")
        return status
    return 0


def run_steps(args: PipelineFlags) -> None:
    """Check the input, then run all steps. Raises UserError on wrong input, CalledProcessError if a step fails."""
    data, work = args.data.resolve(), args.out.resolve()
    flags, cfg = read_flags(list(args.others), data)
    if args.budget and cfg.classes:
        check_names(read_classes(cfg.classes, cfg.numclasses).names, cfg.classes)
    simulate = read_words(args, "simulate", SIMULATE, OWN_SIMULATE, "simulate", "MASKS", "OUT")
    pseudo = read_words(args, "pseudo", PSEUDO, OWN_PSEUDO)
    drawn, masks = (data / SCRIBBLES).is_dir(), first_folder(data, cfg.val_path, *MASKS)
    if drawn and simulate:
        raise UserError(f"--simulate: {data / SCRIBBLES} has scribbles, so none are simulated: drop this flag")
    if not drawn and not masks.is_dir():
        raise UserError(f"{data}: has neither {SCRIBBLES}, with strokes, nor {masks.name}, with dense masks to draw "
                        f"strokes from: {shell.document('docs/scribbles.md')} describes the folders")  # fmt: skip
    folder = data / SCRIBBLES if drawn else masks
    # The lock holds until this function ends.
    labels, _lock = reserve_folder(data, work, folder, masks, cfg, {"simulate": simulate, "pseudo": pseudo})
    launch = as_words(without_defaults({name: getattr(cfg, name) for name in PASSED_ON}))
    launch += ["--model_type", cfg.model_type] if is_code(cfg.model_type) else []  # no checkpoint runs code by itself
    first = Pass(work, folder if drawn else None)
    chain = Chain(data, flags, cfg, pseudo, launch, args.rounds, args.processes, args.budget)
    if not drawn:
        chain.simulate(masks, labels, first.scribbles, simulate)
    if args.budget:
        chain.train_passes(first)
    else:
        chain.train_rounds(first)


def reserve_folder(
    data: Path, work: Path, folder: Path, masks: Path, cfg: Config, words: dict[str, list[str]]
) -> tuple[list[Path], BinaryIO]:
    """Reserve `work` for this chain. Return the sorted label files of the training images, and a locked file in `work`.

    folder: of the strokes, or of the masks to draw them from. masks: the folder of dense masks. words: the flags of
    other programs. Raises UserError if files, strokes or the number of classes are missing, if another pipeline works
    in `work`, or if `work` has results of other flags or data.
    """
    given, paths = cfg.given, {name: getattr(cfg, name) for name in PATHS}
    train, val = (
        find_split(data, "Dense", split, {"label": str(place)}, **paths)
        for split, place in ((cfg.train_split, folder), (cfg.val_split, masks))
    )
    drawn = folder == data / SCRIBBLES
    if not given & {"numclasses", "classes"}:
        check = shell.python_command("-m", "tools.check", data, "--dataset", "ScribbleOnly" if drawn else "Dense")
        raise UserError(f"{data / 'classes.txt'}: no such file: list the class names there, one per line, or "
                        f"set --numclasses (to count them: {check})")  # fmt: skip
    labels = sorted({files["label"] for files in train.files})
    if drawn:
        check_strokes(folder, labels)
    settings = {name: value for name, value in as_dict(cfg).items() if name not in FREE} | {
        "data": str(data),
        "scribbles": _digest(train, "label"),
        "validation masks": _digest(val, "label"),
        "images": [_digest(split, "image") for split in (train, val)],
        "lists": [sha256(split.list_file) for split in (train, val) if split.list_file],
        "class names": sha256(Path(cfg.classes)) if Path(cfg.classes).is_file() else cfg.classes,
        # The recipe leaves these alone, even where they have their default value.
        "given flags": sorted(given & RECIPE_FLAGS),
        **words,
    }
    # A new folder in `data` is fine, also if the images lie in `data` itself (--image_path .).
    inputs = [place for place in (*train.folders.values(), masks, data) if place.resolve() != data or work == data]
    check_place(work, "OUT", inputs)
    lock = lock_file(work / "chain.lock")  # first: a second pipeline must not change chain.json
    if not lock:
        raise UserError(f"{work}: another scribble_pipeline works there: wait until it ends, or name another folder")
    # train.py would keep models of other labels or flags, and their scores.
    reserve(work / "chain.json", settings, ["round_*/*.pt"], "scripts/scribble_pipeline.sh", inputs=inputs)
    return labels, lock


def _digest(split: Split, kind: str) -> str:
    """Return a digest of the names and contents of a split's images or labels."""
    files, folder = sorted({files[kind] for files in split.files}), split.folders[kind]
    bar = progress_bar(files, total=len(files), title=f"reading {folder.name}", unit="file")
    lines = "".join(f"{path.relative_to(folder).as_posix()} {sha256(path)}\n" for path in bar)
    return hashlib.sha256(lines.encode()).hexdigest()


def read_words(args: PipelineFlags, name: str, reader: FlagReader, own: Collection[str], *start: str) -> list[str]:
    """Return the words of --simulate or --pseudo, the flags of a reader's program.

    Raises UserError on a wrong one, or on one in `own`, which the chain sets. start: the program's arguments.
    """
    text = getattr(args, name)
    try:
        words = shlex.split(text)
    except ValueError as error:  # of quotes
        raise UserError(f"--{name}={text!r}: {str(error).lower()}: correct the quotes and backslashes in it") from None
    try:
        values = reader.command_line([*start, *words]).values
    except UserError as error:
        raise UserError(f"--{name}: {error}") from None
    refuse([f"--{flag}" for flag in values if flag in reader.flags], own, reader.program, f"--{name} ")
    return words


def refuse(words: Iterable[str], names: Collection[str], program: str, start: str = "") -> None:
    """Raise UserError if one of the words is a flag in `names`, which the chain sets. start: begins the message."""
    if word := next((word for word in words if word[:2] == "--" and word.partition("=")[0][2:] in names), None):
        raise UserError(f"{start}{word}: the pipeline sets this flag of {program.removeprefix('-m ')} itself: drop it")


def check_strokes(folder: Path, labels: list[Path]) -> None:
    """Raise UserError if no label of a folder has a stroke. Print a warning if the first ones are mostly labelled."""

    def labelled_share(path: Path) -> float:
        return float((read_label(path, IGNORE) != IGNORE).mean())

    shares = [labelled_share(path) for path in labels[:MAX_LABELS_READ]]
    if not any(shares) and not any(map(labelled_share, labels)):
        raise UserError(f"{folder}: no image has a stroke: draw some")
    if sum(shares) > DENSE_STROKES * len(shares):
        warn(f"warning: {folder}: in the first {len(shares)} images, more than half of the pixels are labelled: a "
             "pixel without a stroke must be 255")  # fmt: skip


def read_flags(flags: list[str], data: Path) -> tuple[list[str], Config]:
    """Return the flags of train.py, with those of the data set's classes.txt, and the Config, with --background chosen.

    Raises UserError on a wrong flag, so that it is found before anything is done.
    """
    refuse(flags, OWN, "train.py")
    cfg, file = parse_flags([*flags, "--dataset_path", str(data)]), data / "classes.txt"
    given, number = cfg.given, cfg.numclasses
    if cfg.classes and "numclasses" not in given:
        number = len(read_classes(cfg.classes, None).names)
    found: dict[str, Any] = {"numclasses": number} if cfg.classes else {}
    if file.is_file():
        found = {"numclasses": len(read_classes(str(file), None).names), "classes": file}
        if given & set(found) and number != found["numclasses"]:
            problem = f"{file}: has {found['numclasses']} classes, but --classes or --numclasses say {number}"
            raise UserError(f"{problem}: drop these flags, or correct the file")
    if found:
        flags = [*as_words({name: value for name, value in found.items() if name not in given}), *flags]
        cfg = parse_flags([*flags, "--dataset_path", str(data)])
    if cfg.classes and "background" not in given:  # as train.py's recipe will choose
        first_class = read_classes(cfg.classes, cfg.numclasses).names[0]
        cfg = dataclasses.replace(cfg, background="0" if first_class.lower() in BACKGROUND else "none")
    if cfg.label_map:
        raise UserError(f"--label_map {cfg.label_map}: pseudo-labels hold class numbers, which it would map again: "
                        "drop it, and write strokes and masks as class numbers")  # fmt: skip
    return flags, cfg


if __name__ == "__main__":
    program.run_and_exit(main)
