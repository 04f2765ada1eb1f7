"""Go from images and scribbles to a scored model; each step is a command of its own (docs/scribbles.md).

bash scripts/scribble_pipeline.sh VOC2012 log/scribbles --config configs/demo.yaml
bash scripts/scribble_pipeline.sh VOC2012 log/scribbles --rounds 2 --processes 2 --config configs/demo.yaml

The script prints each command. Started again, it continues where it was; only the score is computed anew.
"""

import dataclasses
import hashlib
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

if not __package__:  # started as a file
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import config
from config.programs import PSEUDO
from config.shared import DataFlags, LaunchFlags
from data.layout import LISTS, MASKS, SCRIBBLES, first_folder
from support import program, shell
from support.errors import STOPPED, UserError
from support.files import sha256, write_atomic
from tools.arguments import Parser

OWN = ("dataset", "dataset_path", "train_path", "pseudo_path", "logdir", "name", "resume")  # flags that the chain sets
DATA = tuple(item.name for item in dataclasses.fields(DataFlags))
OWN_PSEUDO = ("checkpoint", "output", "json", "overwrite", "split", "train_path", *DATA)
LAUNCH = tuple(item.name for item in dataclasses.fields(LaunchFlags))
# Flags that do not change results, and may differ when the chain is started again.
FREE = (*OWN, *LAUNCH)
PASSED_ON = ("device", "workers", "log_level")  # flags of train.py that pseudo.py and evaluate.py get, too


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
    data, work = args.data.resolve(), args.work.resolve()
    cfg = read_flags(flags, args.pseudo, data)
    drawn = (data / SCRIBBLES).is_dir()
    if drawn and args.simulate:
        raise UserError(f"--simulate: {data / SCRIBBLES} has scribbles, so none are simulated: drop this flag")
    if not drawn and cfg.label_suffix:
        raise UserError(
            f"--label_suffix {cfg.label_suffix}: strokes are not simulated from masks with a suffix: rename the masks, "
            f"or put scribbles into {data / SCRIBBLES}"
        )
    scribbles = data / SCRIBBLES if drawn else work / "strokes"
    values = {name: value for name, value in config.as_dict(cfg).items() if name not in FREE}
    for name, path in (("train_path", scribbles), ("pseudo_path", work / "pseudo_N")):
        if getattr(cfg, name):
            print(f"{name} {getattr(cfg, name)} of --config: the chain trains on {path} instead", file=sys.stderr)
    claim(work, {"data": str(data), "scribbles": str(scribbles), **values})
    launch = [word for name in PASSED_ON if getattr(cfg, name) != config.FLAGS[name].default
              for word in (f"--{name}", getattr(cfg, name))]  # fmt: skip
    steps = Steps(args.processes)

    def train(name: str, labels: Path, *more: object) -> None:
        claim_labels(work, name, labels)
        own = ["--dataset_path", data, "--train_path", scribbles, "--logdir", work, "--name", name, "--resume", "auto"]
        steps.run("train.py", *flags, *own, *more, distributed=True)

    try:
        if not drawn:
            masks = first_folder(data, cfg.val_path, *MASKS)
            names = first_folder(data, cfg.list_path, *LISTS) / f"{cfg.train_split}.txt"
            steps.run("tools/scribbles/__main__.py", "simulate", masks, scribbles, "--list", names,
                      "--background", cfg.background, *args.simulate)  # fmt: skip
        train("round_0", scribbles, "--dataset", "ScribbleOnly")
        for number in range(1, args.rounds + 1):
            teacher, labels = work / f"round_{number - 1}" / "best.pt", work / f"pseudo_{number}"
            own = ["--checkpoint", teacher, "--output", labels]
            steps.run("pseudo.py", *own, *launch, *args.pseudo, distributed=True)
            train(f"round_{number}", labels, "--dataset", "ScribblePseudo", "--pseudo_path", labels)
        last = work / f"round_{args.rounds}" / "best.pt"
        steps.run("evaluate.py", "--checkpoint", last, "--report", work / "report", *launch)
    except StepError as error:
        if error.status == STOPPED:
            print("stopped; run the same command again to continue", file=sys.stderr)
        return error.status
    return 0


def read_flags(flags: list[str], pseudo: list[str], data: Path) -> config.Config:
    """Return the flags of train.py. pseudo: flags of pseudo.py. Raises UserError on a wrong flag of either program.

    So wrong flags are found before anything is done.
    """
    own = next((word for word in flags if word.startswith("--") and word.partition("=")[0][2:] in OWN), None)
    if own:
        raise UserError(f"{own}: the chain sets this flag of train.py itself: drop it")
    cfg = config.parse([*flags, "--dataset_path", str(data)])
    if cfg.label_map:
        raise UserError(f"--label_map {cfg.label_map}: pseudo-labels hold class numbers, which it would map again")
    try:
        names = PSEUDO.command_line(pseudo)[0]
    except UserError as error:
        raise UserError(f"--pseudo: {error}") from None
    own = next((name for name in names if name in OWN_PSEUDO), None)
    if own:
        raise UserError(f"--pseudo --{own}: the chain sets this flag of pseudo.py itself: drop it")
    return cfg


def claim(work: Path, settings: dict) -> None:
    """Write the settings to WORK/chain.json, or check that they equal those in it if WORK has a checkpoint.

    Raises UserError if they differ: a folder has the results of one command only.
    """
    note, settings = work / "chain.json", json.loads(json.dumps(settings))  # tuples become lists, as in the file
    saved = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else settings
    differ = [name for name in saved | settings if saved.get(name) != settings.get(name)]
    if differ and any(work.glob("round_*/*.pt")):
        raise UserError(f"{work}: has results of other {' and '.join(differ)}, see {note}: name another folder")
    write_atomic(note, json.dumps(settings, indent=1), parents=True)


def claim_labels(work: Path, name: str, labels: Path) -> None:
    """Write a digest of the PNGs in the folder `labels` to WORK/labels.json; if WORK/NAME has a checkpoint, check it.

    train.py would keep or continue a model that was trained on other labels. Raises UserError if they differ.
    """
    note, digest = work / "labels.json", hashlib.sha256()
    for path in sorted(labels.rglob("*.png")):
        digest.update(f"{path.relative_to(labels)} {sha256(path)}\n".encode())
    saved = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
    if saved.get(name) != digest.hexdigest() and any((work / name).glob("*.pt")):
        raise UserError(
            f"{labels}: has changed since {work / name} was trained on it: delete {name} and all that came after it "
            "(pseudo_N and round_N of later rounds), or name another folder"
        )
    write_atomic(note, json.dumps(saved | {name: digest.hexdigest()}, indent=1))


class Steps:
    """Runs commands one after another. A signal ends the running one, which saves what it has done.

    num_processes: of the distributed commands, started by torchrun.
    """

    def __init__(self, num_processes: int):
        self.num_processes, self.stopped = num_processes, False
        self.process: subprocess.Popen | None = None
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGTERM, self._stop)

    def run(self, program: str, *words: object, distributed: bool = False) -> None:
        """Print a command and run it. Raises StepError if a signal came, or if its exit status is not 0."""
        command = [str(shell.REPO / program), *map(str, words)]
        if distributed and self.num_processes > 1:
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(self.num_processes)]
            command = [*launch, *command]
        if self.stopped:
            raise StepError(STOPPED)
        print(f"$ {shell.quoted([sys.executable, *command])}", flush=True)
        with subprocess.Popen([sys.executable, *command]) as process:
            self.process = process
            if self.stopped:  # the signal came before _stop() could see this process
                process.terminate()
            status = process.wait()
        if status:  # torchrun ends with 1 after a signal
            raise StepError(STOPPED if self.stopped else status if status > 0 else 128 - status)

    def _stop(self, number: int, _frame: object) -> None:
        self.stopped = True
        if self.process and number == signal.SIGTERM:  # the terminal sends Ctrl-C to the command, too
            self.process.terminate()


def parser() -> Parser:
    parser = Parser(
        "scripts.scribble_pipeline", "Go from images and scribbles to a scored model.", "Other flags are train.py's."
    )
    add = parser.add_argument
    add("data", type=Path, metavar="DATA", help="folder of a data set in VOC's layout")
    add("work", type=Path, metavar="WORK", help="folder for all results")
    rounds = "number of rounds: each makes pseudo-labels and trains a model on them"
    add("--rounds", type=int, default=1, metavar="N", help=rounds)
    processes = "processes of train.py and pseudo.py, started by torchrun: one for each GPU"
    add("--processes", type=int, default=1, metavar="N", help=processes)
    simulate = "flags of tools.scribbles simulate, which draws strokes if DATA has no pascal_2012_scribble [none]"
    add("--simulate", type=shlex.split, default=[], metavar="'FLAGS'", help=simulate)
    pseudo = "flags of pseudo.py, such as '--scales 1 1.5 --flip' [none]"
    add("--pseudo", type=shlex.split, default=[], metavar="'FLAGS'", help=pseudo)
    return parser


if __name__ == "__main__":
    program.run_and_exit(main)
