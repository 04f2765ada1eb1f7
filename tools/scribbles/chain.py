"""Run the steps of the scribble pipeline: other programs, one after the other."""

import itertools
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from flags import Config
from support import shell, signals
from support.errors import UserError
from support.files import write_atomic
from support.terminal import say, warn
from tools.compare_runs import read_run
from tools.scribbles.drawn_strokes import Pass, strokes_table

# Signals that stop the chain. Each needs a handler: without one, the chain would end while its command runs on.
STOP_SIGNALS = {*signals.SIGNALS, *(getattr(signal, name) for name in ("SIGHUP", "SIGQUIT") if hasattr(signal, name))}


@dataclass(frozen=True)
class Chain:
    """The steps, each of which runs other programs. Methods raise CalledProcessError if a program fails.

    data: the data set's folder. flags: train.py's words. cfg: their values. pseudo: words for pseudo.py alone. launch:
    words for pseudo.py, evaluate.py and tools.suggest. For the others, see the flags of pipeline.py.
    """

    data: Path
    flags: list[str]
    cfg: Config
    pseudo: list[str]
    launch: list[str]
    rounds: int
    processes: int
    budget: int

    def simulate(self, masks: Path, labels: list[Path], output: Path, words: list[str]) -> None:
        """Draw strokes from dense masks. labels: the masks, files in the folder `masks`."""
        listed = output.parent / "masks.txt"  # of mask names, because image names lack --label_suffix
        write_atomic(listed, "".join(f"{path.relative_to(masks).as_posix()}\n" for path in labels))
        words = ["--list", str(listed), "--background", self.cfg.background, *words]
        run("tools/scribbles/__main__.py", "simulate", masks, output, *words)

    def train_rounds(self, current: Pass, *start: object) -> None:
        """Train all rounds of a pass, and score the last model. start: more flags for train.py."""
        work, count = current.folder, self.rounds
        self.train(current, 0, "--dataset", "ScribbleOnly", *start)
        for number in range(1, count + 1):
            labels = work / f"pseudo_{number}"
            words = ["--checkpoint", work / f"round_{number - 1}" / "best.pt", "--train_path", current.scribbles]
            words += ["--output", labels, *self.launch, *self.pseudo]
            run("pseudo.py", *words, num_processes=self.processes)
            self.train(current, number, "--dataset", "ScribblePseudo", "--pseudo_path", labels, *start)
        words = ["--checkpoint", work / f"round_{count}" / "best.pt", "--report", work / "report"]
        run("evaluate.py", *words, "--json", work / "scores.json", *self.launch)
        scores = [read_run(work / f"round_{number}", "").score for number in range(count + 1)]
        best = scores.index(max(scores))
        if scores[best] > scores[-1]:
            warn(f"warning: round_{best} scored {scores[best]:.2%} in validation, and round_{count} {scores[-1]:.2%}: "
                 f"{work / f'round_{best}' / 'best.pt'} is the better model")  # fmt: skip

    def train(self, current: Pass, number: int, *more: object) -> None:
        """Train the model of a round."""
        folders = ["--dataset_path", self.data, "--train_path", current.scribbles]
        folders += ["--logdir", current.folder, "--name", f"round_{number}"]
        other = current.folder / f"round_{number}.2"
        if not other.is_dir():
            run("train.py", *self.flags, *folders, "--resume", "auto", *more, num_processes=self.processes)
        if other.is_dir():
            began = f"a train.py of an earlier, killed start still used round_{number}, so a second run began here"
            remedy = f"stop that train.py if it still runs, remove {other}, then repeat the command"
            raise UserError(f"{other}: {began}: {remedy}")

    def train_passes(self, first: Pass) -> None:
        """Train a pass for each time that the user drew, and suggest where to draw next."""
        passes, start = [first], list[object]()
        for number in itertools.count(1):
            current = passes[-1]
            last = current.folder / f"round_{self.rounds}" / "best.pt"
            if self.suggest(current, last, start):
                break
            following = Pass(first.folder / f"drawn_{number}")
            if not self.take_drawings(current, following):
                break
            passes, start = [*passes, following], ["--pretrained", last]
        say(*strokes_table(passes, self.cfg))
        if passes[-1].drawings():  # else tools.suggest found no place
            drawn = passes[-1].suggested / "labelme"
            say(f"places to draw at: {passes[-1].suggested / 'index.html'}")
            say(f"to draw: {shell.quoted(['labelme', str(drawn)])}", "then repeat this command")

    def suggest(self, current: Pass, last: Path, start: list[object]) -> bool:
        """Train a pass and suggest places, unless this is done. Return True if nobody can have drawn at the places yet.

        last: the checkpoint of its last round. start: see train_rounds().
        """
        budget = current.budget()  # of an earlier start
        if budget and not last.is_file():
            raise UserError(f"{last}: is missing, and training goes on from it, as {current.suggested} has places: set "
                            "--rounds as before, or restore the file")  # fmt: skip
        if (current.suggested / "next.csv").is_file():
            return False
        self.train_rounds(current, *start)
        words = ["--checkpoint", last, "--train_path", current.scribbles, "--budget", budget or self.budget]
        words += ["--output", current.suggested, *self.launch, "--log_level", "WARNING"]  # no advice on how to go on
        # If the folder is there, an earlier start was stopped, and the user may have drawn in its files.
        is_new = not current.suggested.is_dir()
        run("tools/suggest/__main__.py", self.data, *words)
        return is_new

    def take_drawings(self, current: Pass, following: Pass) -> bool:
        """Write the strokes of the next pass, unless this is done. Return False if the user drew nothing new."""
        if following.scribbles.is_dir():
            following.warn_of_late_drawings(current)
            return True
        taken, budget = current.drawings(), current.budget()
        words = ["labelme", current.suggested / "labelme", current.converted, "--scribbles"]
        shutil.rmtree(current.converted, ignore_errors=True)  # of a start before
        try:
            if current.has_shapes():  # tools.convert needs one
                run("tools/convert/__main__.py", *words, "--classes", current.suggested / "classes.txt")
        except subprocess.CalledProcessError as error:
            if error.returncode != 1:
                raise
            remedy = "mend these .json files, or remove them to keep the earlier strokes of their images"
            problem = f"{current.suggested / 'labelme'}: some files have the faults named above"
            raise UserError(f"{problem}: {remedy}; then repeat the command") from None
        if following.take_strokes(current, taken, self.cfg):
            return True
        if budget not in (None, self.budget):
            say(f"--budget {self.budget}: {current.suggested} keeps the places of an earlier start (--budget "
                f"{budget}); the new number applies to the next places")  # fmt: skip
        return False


def run(program: str, *words: object, num_processes: int = 1) -> None:
    """Print a command and run it, with torchrun if num_processes > 1. Raises CalledProcessError if it fails.

    If a signal comes, the command gets SIGTERM, saves what it has done, and KeyboardInterrupt goes on.
    """
    command = [sys.executable]
    if num_processes > 1:
        command += [str(shell.REPO / "scripts/launch.py"), "torch.distributed.run", "--standalone"]
        command += ["--nproc_per_node", str(num_processes)]
    command += shell.located(program, *words)
    say(f"$ {shell.quoted(command)}")
    with subprocess.Popen(command) as process:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            for number in STOP_SIGNALS:  # the command has to save now
                signal.signal(number, signal.SIG_IGN)
            process.terminate()
            process.wait()
            raise
    if status:
        raise subprocess.CalledProcessError(status if status > 0 else 128 - status, command)
