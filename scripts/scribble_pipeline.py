"""Go from images and scribbles to a scored model; each step is a command of its own (docs/scribbles.md).

bash scripts/scribble_pipeline.sh VOC2012 log/scribbles --config configs/demo.yaml
bash scripts/scribble_pipeline.sh VOC2012 log/scribbles --rounds 1 --processes 2 --config configs/demo.yaml

The script prints each command. Started again, it continues where it was; only the score is computed anew.
"""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

if not __package__:  # started as a file
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import config
import program
import shell
from config.programs import PSEUDO
from data.arguments import Parser
from data.layout import LISTS, MASKS, SCRIBBLES, first_folder
from errors import STOPPED, UserError
from files import write_atomic

OWN = ("dataset", "dataset_path", "train_path", "pseudo_path", "logdir", "name", "resume")  # flags that the chain sets
OWN_PSEUDO = ("checkpoint", "output", "json", "overwrite")


class StepError(Exception):
    """A step failed or was stopped; its own last line says why. status: its exit status."""

    def __init__(self, status: int):
        self.status = status


def main(argv: list[str] | None = None) -> int:
    """Run all steps. Returns 0, or the exit status of the step that failed. argv: the words; None: sys.argv."""
    words = sys.argv[1:] if argv is None else argv
    args, flags = parser().parse_known_args(words)
    if not args.data.is_dir():
        raise UserError(f"{args.data}: no such folder: the first argument must be the data set's folder")
    for name in ("rounds", "processes"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: must be at least 1")
    data, work, scribbles = args.data.resolve(), args.work.resolve(), args.data.resolve() / SCRIBBLES
    own = next((word for word in flags if word.partition("=")[0].lstrip("-") in OWN), None)
    if own:
        raise UserError(f"{own}: the chain sets this flag of train.py itself: drop it")
    # Wrong flags are found before anything is done.
    cfg = config.parse([*flags, "--dataset_path", str(data)])
    own = next((name for name in PSEUDO.command_line(args.pseudo)[0] if name in OWN_PSEUDO), None)
    if own:
        raise UserError(f"--pseudo --{own}: the chain sets this flag of pseudo.py itself: drop it")
    claim(work, {"data": str(data), "simulate": args.simulate, "pseudo": args.pseudo, "flags": flags})

    def train(name: str, *more: object) -> None:
        own = ["--dataset_path", data, "--train_path", scribbles, "--logdir", work, "--name", name, "--resume", "auto"]
        run("train.py", *flags, *own, *more, processes=args.processes)

    try:
        if not scribbles.is_dir():
            scribbles = work / "strokes"
            masks, names = first_folder(data, "", *MASKS), first_folder(data, "", *LISTS) / "train.txt"
            run("data/scribbles/__main__.py", "simulate", masks, scribbles, "--list", names,
                "--background", cfg.background, *args.simulate)  # fmt: skip
        train("round_0", "--dataset", "ScribbleOnly")
        for number in range(1, args.rounds + 1):
            teacher, labels = work / f"round_{number - 1}" / "best.pt", work / f"pseudo_{number}"
            run("pseudo.py", "--checkpoint", teacher, "--output", labels, *args.pseudo, processes=args.processes)
            train(f"round_{number}", "--dataset", "ScribblePseudo", "--pseudo_path", labels)
        first, last = (work / f"round_{number}" / "best.pt" for number in (0, args.rounds))
        run("evaluate.py", "--checkpoint", last, "--compare", first, "--report", work / "report")
    except StepError as error:
        if error.status == STOPPED:
            print("stopped; run the same command again to continue", file=sys.stderr)
        return error.status
    return 0


def claim(work: Path, settings: dict) -> None:
    """Write the settings to WORK/chain.json, or check that they equal those in it.

    Raises UserError if they differ, because a folder has the results of one command only, or if the file is damaged.
    """
    note = work / "chain.json"
    try:
        saved = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else settings
    except ValueError:
        raise UserError(f"{note}: damaged: name another folder") from None
    differ = [name for name in settings if saved.get(name) != settings[name]]
    if differ:
        raise UserError(f"{work}: has results of other {' and '.join(differ)}, see {note}: name another folder")
    write_atomic(note, json.dumps(settings, indent=1), parents=True)


def run(program: str, *words: object, processes: int = 1) -> None:
    """Print a command and run it, on several processes by torchrun. Raises StepError if its exit status is not 0.

    A signal ends the command, which saves what it has done.
    """
    command = [str(shell.REPO / program), *map(str, words)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    start = [sys.executable, *(torchrun if processes > 1 else []), *command]
    print(f"$ {shell.quoted(start)}", flush=True)
    # Ctrl-C reaches the command by itself; subprocess.run would kill it after a quarter of a second.
    signal.signal(signal.SIGINT, _wait)
    with subprocess.Popen(start) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        status = process.wait()
    if status:
        raise StepError(status if status > 0 else 128 - status)


def _wait(*_: object) -> None:
    """Do nothing on a signal."""


def parser() -> Parser:
    parser = Parser(
        "scripts.scribble_pipeline", "Go from images and scribbles to a scored model.", "Other flags are train.py's."
    )
    add = parser.add_argument
    add("data", type=Path, metavar="DATA", help="folder of a data set in VOC's layout")
    add("work", type=Path, metavar="WORK", help="folder for all results")
    add(
        "--rounds",
        type=int,
        default=2,
        metavar="N",
        help="number of rounds: each makes pseudo-labels and trains a model on them",
    )
    add(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="processes of train.py and pseudo.py, started by torchrun: one for each GPU",
    )
    add(
        "--simulate",
        type=shlex.split,
        default=[],
        metavar="'FLAGS'",
        help="flags of data.scribbles simulate, which draws strokes if DATA has no pascal_2012_scribble [none]",
    )
    add(
        "--pseudo",
        type=shlex.split,
        default=[],
        metavar="'FLAGS'",
        help="flags of pseudo.py, such as '--scales 1 1.5 --flip' [none]",
    )
    return parser


if __name__ == "__main__":
    sys.exit(program.run(main))
