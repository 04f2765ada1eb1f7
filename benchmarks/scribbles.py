"""Measure how close training from scribbles comes to training from dense masks, and what each method adds.

python benchmarks/scribbles.py DATA --out DIR --pretrained FILE                          # every way, three seeds: hours
python benchmarks/scribbles.py DATA --out DIR --pretrained FILE --ways dense strokes chain_1 --seeds 0
python benchmarks/scribbles.py DATA --out DIR --pretrained none                          # from random weights

DATA has VOC's layout, with dense masks. The strokes are simulated from them, half as long as a person's, so that they
label 3 % of CamVid's pixels as real scribbles do; they are the same for every seed. All runs have the same number of
steps, and are scored after the last one, so validation chooses nothing. Each command is printed. Started again with the
same data, weights, epochs and flags, the script skips finished runs. --lanes N runs N at a time, each on one thread.
"""

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from data.images import read_label
from evaluation.metrics import confusion_matrix, scores
from support.files import write_atomic
from support.labels import IGNORE

ROOT = Path(__file__).resolve().parent.parent
LORM = "--model_type deeplabv3p_multi_lorm"


@dataclass(frozen=True)
class Way:
    """A way to train. flags: of train.py. teacher: the way whose model makes the pseudo-labels. pseudo: of pseudo.py.

    simulate: flags of tools.scribbles simulate. base: the way that the gain is over.
    """

    title: str
    flags: str
    teacher: str = ""
    pseudo: str = ""
    simulate: str = ""
    base: str = "strokes"


STUDENT = "--dataset ScribblePseudo"
SHRUNK = {share: f"shrink_{share}" for share in (0.2, 0.5, 0.8, 1)}  # {share cut off each stroke: way}
WAYS = {
    "dense": Way("dense masks", "--dataset Dense"),
    "strokes": Way("strokes: partial cross entropy", "--dataset ScribbleOnly"),
    "spread": Way("pseudo-labels: spread from strokes alone", STUDENT, "none"),
    "chain_1": Way("pseudo-labels: spread from strokes and teacher", STUDENT, "strokes"),
    "chain_2": Way("pseudo-labels, once more", STUDENT, "chain_1", base="chain_1"),
    "lorm": Way("pseudo-labels + LoRM, foreground", f"{STUDENT} {LORM}", "strokes", base="chain_1"),
    "lorm_all": Way("pseudo-labels + LoRM, all", f"{STUDENT} {LORM} --lorm_scope all", "strokes", base="chain_1"),
    "entropy": Way("pseudo-labels + distance entropy", f"{STUDENT}DsDc", "strokes", base="chain_1"),
    "entropy_0": Way("... with --background 0", f"{STUDENT}DsDc --background 0", "strokes", base="chain_1"),
    **{
        way: Way(f"strokes shrunk by {share}", "--dataset ScribbleOnly", simulate=f"--shrink {share}")
        for share, way in SHRUNK.items()
    },
}  # fmt: skip
RECIPE = "--config configs/camvid_lite0.yaml --val_epoch_frequency 0"


def strokes_folder(out: Path, simulate: str) -> Path:
    """Return the folder of the strokes that tools.scribbles simulate draws with some flags."""
    return out / f"strokes{simulate.replace('--', '_').replace(' ', '_')}"


class Bench:
    """All runs below args.out. done: {way-seed: mIoU}, kept in results.json."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.file = args, args.out / "results.json"
        args.out.mkdir(parents=True, exist_ok=True)
        note = args.out / "settings.json"
        settings = {name: str(getattr(args, name)) for name in ("data", "pretrained", "epochs", "flags")}
        if self.file.is_file() and (not note.is_file() or json.loads(note.read_text()) != settings):
            sys.exit(f"{args.out}: has results of other settings than {settings}: name another folder")
        write_atomic(note, json.dumps(settings, indent=1))
        self.done: dict[str, float] = json.loads(self.file.read_text()) if self.file.is_file() else {}
        self.busy, self.lock = threading.Semaphore(args.lanes), threading.Lock()
        self.locks: dict[Path | str, threading.Lock] = {}

    def score(self, way: str, seed: int) -> float:
        """Return the mIoU of a way's last step, after the runs that it needs."""
        key = f"{way}-{seed}"
        with self._only_one(key):
            if key not in self.done:
                self._train(WAYS[way], key, seed)
                lines = (self.args.out / key / "metrics.jsonl").read_text().splitlines()
                values = [json.loads(line) for line in lines]
                with self.lock:
                    self.done[key] = [value["miou"] for value in values if value["kind"] == "val"][-1]
                    write_atomic(self.file, json.dumps(self.done, indent=1, sort_keys=True))
        return self.done[key]

    def _train(self, way: Way, key: str, seed: int) -> None:
        args, words = self.args, shlex.split(f"{RECIPE} {way.flags}")
        words += ["--dataset_path", args.data, "--pretrained", args.pretrained, "--logdir", args.out]
        words += ["--epochs", args.epochs, "--seed", seed, "--name", key, "--resume", "auto", *shlex.split(args.flags)]
        if way.title != WAYS["dense"].title:
            words += ["--train_path", self._strokes(way.simulate)]
        if way.teacher:
            words += ["--pseudo_path", self._pseudo(way, seed)]
        self._run("train.py", *words)

    def _strokes(self, flags: str) -> Path:
        folder = strokes_folder(self.args.out, flags)
        with self._only_one(folder):
            options = ["--background", "none", "--length", 0.5, "--workers", 1, *flags.split()]
            options += ["--list", self.args.data / "ImageSets/Segmentation/train.txt"]
            masks = self.args.data / "SegmentationClass"
            self._run("-m", "tools.scribbles", "simulate", masks, folder, *options)
        return folder

    def _pseudo(self, way: Way, seed: int) -> Path:
        out = self.args.out / f"pseudo-{way.teacher}{way.pseudo.replace('--', '_').replace(' ', '_')}-{seed}"
        words = ["--output", out, "--train_path", self._strokes(way.simulate)]
        if way.teacher == "none":
            words += ["--dataset_path", self.args.data, "--numclasses", 11, "--background", "none"]
        else:
            self.score(way.teacher, seed)
            words += ["--checkpoint", self.args.out / f"{way.teacher}-{seed}" / "last.pt"]
        with self._only_one(out):
            self._run("pseudo.py", *words, *way.pseudo.split())  # what is there already stays
        return out

    def _only_one(self, key: Path | str) -> threading.Lock:
        with self.lock:
            return self.locks.setdefault(key, threading.Lock())

    def _run(self, *words: object) -> None:
        command = [sys.executable, *map(str, words)]
        with self.busy, (self.args.out / "output.txt").open("a") as output:
            print(shlex.join(["python", *command[1:]]), flush=True)
            env = os.environ | {"OMP_NUM_THREADS": "1"}
            subprocess.run(command, cwd=ROOT, env=env, stdout=output, stderr=output, check=True)


def label_table(bench: Bench) -> str:
    """Return a Markdown table: the scores of all pseudo-labels on the training images."""
    lines = ["| pseudo-labels | mIoU of labelled pixels | labelled, % |", "| --- | --- | --- |"]
    for folder in sorted(bench.args.out.glob("pseudo-*")):
        confusion, labelled, pixels = torch.zeros(11, 11, dtype=torch.int64), 0, 0
        for file in folder.glob("*.png"):
            paths = file, bench.args.data / "SegmentationClass" / file.name
            label, mask = (torch.from_numpy(read_label(path, 11)) for path in paths)
            is_labelled = label != IGNORE
            labelled, pixels = labelled + int(is_labelled.sum()), pixels + label.numel()
            confusion += confusion_matrix(label[is_labelled], mask[is_labelled], 11)
        lines.append(f"| {folder.name} | {100 * scores(confusion)['miou']:.2f} | {100 * labelled / pixels:.2f} |")
    return "\n".join(lines)


def table(bench: Bench, ways: Sequence[str], seeds: Sequence[int]) -> str:
    """Return a Markdown table: the scores of each way, their ratio to dense masks, and what it adds to its base.

    A gain is bold if it exceeds the spread, highest minus lowest of several seeds, of both ways.
    """
    lines = [f"| way | {' | '.join(f'seed {seed}' for seed in seeds)} | mean | spread | of dense | gain |"]
    lines.append("| --- " * (len(seeds) + 5) + "|")
    for way in ways:
        base, dense, values = (
            [100 * bench.done.get(f"{name}-{seed}", math.nan) for seed in seeds]
            for name in (WAYS[way].base, "dense", way)
        )
        mean, gain = statistics.mean(values), statistics.mean(values) - statistics.mean(base)
        spread, base_spread = (max(scores) - min(scores) for scores in (values, base))
        mark = "**" if len(seeds) > 1 and abs(gain) > max(spread, base_spread) else ""
        ratio = statistics.mean(value / whole for value, whole in zip(values, dense, strict=True))
        cells = [WAYS[way].title, *(f"{value:.2f}" for value in values), f"{mean:.2f}", f"{spread:.2f}"]
        lines.append(f"| {' | '.join([*cells, f'{ratio:.3f}', f'{mark}{gain:+.2f}{mark}'])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pretrained", required=True, help="FILE of weights of tf_efficientnet_lite0, or none")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument(
        "--flags", default="", help="further flags of train.py: --flags='--long_side 240 --crop_size 144'"
    )
    args = parser.parse_args()
    args.data, args.out = args.data.resolve(), args.out.resolve()
    if args.pretrained != "none":
        args.pretrained = str(Path(args.pretrained).resolve())
    bench = Bench(args)
    with ThreadPoolExecutor(len(args.ways) * len(args.seeds)) as pool:
        done = [pool.submit(bench.score, way, seed) for seed in args.seeds for way in args.ways]
    for score in done:
        score.result()
    print(f"{table(bench, args.ways, args.seeds)}\n\n{label_table(bench)}")


if __name__ == "__main__":
    main()
