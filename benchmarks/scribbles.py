"""Measure how close training from scribbles comes to training from dense masks, for several ways to draw.

python benchmarks/scribbles.py DATA --out DIR --pretrained FILE                        # styles x seeds: a day
python benchmarks/scribbles.py DATA --out DIR --pretrained FILE --styles equal --seeds 0
python benchmarks/scribbles.py DATA --out DIR --pretrained FILE --styles proportional --ways chain lorm entropy
python benchmarks/scribbles.py DATA --out DIR --pretrained FILE --styles proportional FOLDER

DATA has VOC's layout, with dense masks. The strokes are simulated from them, or read from FOLDER, which has a PNG file
for each training image; they are the same for every seed. All runs have the same number of steps, and are scored after
the last one, so validation chooses nothing. Each command is printed. Started again with the same data, weights, epochs
and flags, the script skips finished runs. --lanes N runs N at a time, each on one thread.
"""

import argparse
import json
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from data.classes import read_classes
from flags.auto_recipe import CRF_WEIGHT
from support.files import write_atomic
from tools.scribbles.pipeline import PSEUDO_FLAGS

ROOT = Path(__file__).resolve().parent.parent
LORM = "--model_type deeplabv3p_multi_lorm"


@dataclass(frozen=True)
class Way:
    """A way to train. flags: of train.py. teacher: the way whose model makes the pseudo-labels, "" for none."""

    title: str
    flags: str
    teacher: str = ""


STUDENT = "--dataset ScribblePseudo"
ENTROPY = f"{STUDENT}DsDc --l_crf {CRF_WEIGHT}"  # as the recipe chooses for STUDENT
WAYS = {
    "dense": Way("dense masks", "--dataset Dense"),
    "strokes": Way("strokes", "--dataset ScribbleOnly"),
    "no_crf": Way("strokes, no CRF loss", "--dataset ScribbleOnly --l_crf 0"),
    "chain_no_crf": Way("strokes and pseudo-labels, no CRF loss", f"{STUDENT} --l_crf 0", "no_crf"),
    "chain": Way("strokes and pseudo-labels", STUDENT, "strokes"),
    "chain_2": Way("pseudo-labels, once more", STUDENT, "chain"),
    "lorm": Way("pseudo-labels, LoRM of the foreground", f"{STUDENT} {LORM}", "strokes"),
    "lorm_all": Way("pseudo-labels, LoRM of all", f"{STUDENT} {LORM} --lorm_scope all", "strokes"),
    "entropy": Way("pseudo-labels, distance entropy", ENTROPY, "strokes"),
    "entropy_0": Way("pseudo-labels, distance entropy, --background 0", f"{ENTROPY} --background 0", "strokes"),
}
# Flags of tools.scribbles simulate. "proportional": half of the path through each region, 3 % of CamVid's pixels.
STYLES = {
    "proportional": "--length 0.5",
    "equal": "--max_length 60",
    "skip": "--max_length 60 --skip 0.75",
    "one": "--per_class 1",
    "border": "--wiggle 1 --width 1",
    "centre": "--wiggle 0 --length 0.5 --width 5",
    "short": "--length 0.25",
    "points": "--max_length 1",
}
TABLE = ("dense", "strokes", "chain")
NUM_CLASSES = 11
RECIPE = "--config configs/camvid_lite0.yaml --val_epoch_frequency 0"


class Bench:
    """All runs below args.out. done: {way-style-seed: the scores of validation}, kept in results.json."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.file = args, args.out / "results.json"
        args.out.mkdir(parents=True, exist_ok=True)
        note = args.out / "settings.json"
        settings = {name: str(getattr(args, name)) for name in ("data", "pretrained", "epochs", "flags")}
        if self.file.is_file() and (not note.is_file() or json.loads(note.read_text()) != settings):
            sys.exit(f"{args.out}: has results of other settings than {settings}: name another folder")
        write_atomic(note, json.dumps(settings, indent=1))
        self.done: dict[str, dict] = json.loads(self.file.read_text()) if self.file.is_file() else {}
        self.busy, self.lock = threading.Semaphore(args.lanes), threading.Lock()
        self.locks: dict[Path | str, threading.Lock] = {}

    def run(self, way: str, style: str, seed: int) -> None:
        """Train in a way and keep its scores, after the runs that it needs."""
        key = name_of(way, style, seed)
        with self._only_one(key):
            strokes = str(self.args.folders.get(style, ""))
            if key in self.done and (other := self.done[key].get("strokes", "")) != strokes:
                raise SystemExit(f"{self.args.out}: has results of {key} with strokes of {other}: name another folder")
            if key not in self.done:
                self._train(WAYS[way], key, style, seed)
                lines = (self.args.out / key / "metrics.jsonl").read_text().splitlines()
                values = [value for value in map(json.loads, lines) if value["kind"] == "val"][-1]
                with self.lock:
                    self.done[key] = {name: values[name] for name in ("miou", "iou", "acc")} | {"strokes": strokes}
                    write_atomic(self.file, json.dumps(self.done, indent=1, sort_keys=True))

    def _train(self, way: Way, key: str, style: str, seed: int) -> None:
        args, words = self.args, shlex.split(f"{RECIPE} {way.flags}")
        words += ["--dataset_path", args.data, "--pretrained", args.pretrained, "--logdir", args.out]
        words += ["--epochs", args.epochs, "--seed", seed, "--name", key, "--resume", "auto", *shlex.split(args.flags)]
        if way is not WAYS["dense"]:
            words += ["--train_path", self._strokes(style)]
        if way.teacher:
            words += ["--pseudo_path", self._pseudo(way.teacher, style, seed)]
        self._run("train.py", *words)

    def folder_of(self, style: str) -> Path:
        return self.args.folders.get(style, self.args.out / f"strokes-{style}")

    def _strokes(self, style: str) -> Path:
        """Return the folder of a style's strokes; simulate them if the style is no FOLDER."""
        folder = self.folder_of(style)
        if style in self.args.folders:
            return folder
        with self._only_one(folder):
            options = ["--background", "none", "--workers", 1, *STYLES[style].split()]
            options += ["--list", self.args.data / "ImageSets/Segmentation/train.txt"]
            self._run("-m", "tools.scribbles", "simulate", self.args.data / "SegmentationClass", folder, *options)
        return folder

    def _pseudo(self, teacher: str, style: str, seed: int) -> Path:
        self.run(teacher, style, seed)
        key = name_of(teacher, style, seed)
        words = ["--checkpoint", self.args.out / key / "last.pt", "--train_path", self._strokes(style)]
        out = self.args.out / f"pseudo-{key}"
        with self._only_one(out):
            self._run("pseudo.py", *words, *PSEUDO_FLAGS.split(), "--output", out)  # what is there already stays
        return out

    def _only_one(self, key: Path | str) -> threading.Lock:
        with self.lock:
            return self.locks.setdefault(key, threading.Lock())

    def _run(self, *words: object) -> None:
        command = [sys.executable, *map(str, words)]
        with self.busy, (self.args.out / "output.txt").open("a") as output:
            print(shlex.join(["python", *command[1:]]), flush=True)
            env = os.environ | {"OMP_NUM_THREADS": "1"}
            if subprocess.run(command, cwd=ROOT, env=env, stdout=output, stderr=output).returncode:
                raise SystemExit(f"the last command failed: see the end of {output.name}")


def name_of(way: str, style: str, seed: int) -> str:
    return f"{way}-{seed}" if way == "dense" else f"{way}-{style}-{seed}"


def score_table(bench: Bench, ways: Sequence[str], styles: Sequence[str], seeds: Sequence[int]) -> str:
    """Return a Markdown table: the mIoU of each way and style, and its ratio to that of dense masks."""
    lines = [f"| style | way | {' | '.join(f'seed {seed}' for seed in seeds)} | mean | spread | of dense |"]
    lines.append("| --- " * (len(seeds) + 5) + "|")
    dense = [100 * bench.done[f"dense-{seed}"]["miou"] for seed in seeds]
    rows = {(style, way): [100 * bench.done[name_of(way, style, seed)]["miou"] for seed in seeds]
            for style in styles for way in ways if way != "dense"}  # fmt: skip
    for (style, way), values in {("", "dense"): dense, **rows}.items():
        ratio = statistics.mean(value / full for value, full in zip(values, dense, strict=True))
        numbers = [*values, statistics.mean(values), max(values) - min(values)]
        cells = [style, WAYS[way].title, *(f"{number:.2f}" for number in numbers), f"{ratio:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def class_table(
    bench: Bench, ways: Sequence[str], styles: Sequence[str], seeds: Sequence[int], names: list[str]
) -> str:
    """Return a Markdown table: each class's IoU, accuracy and precision in %, means of the seeds."""
    lines = [f"| style | way | {' | '.join(names)} |", "| --- " * (len(names) + 2) + "|"]
    for style, way in [("", "dense"), *((style, way) for style in styles for way in ways if way != "dense")]:
        cells = []
        for number in range(len(names)):
            runs = [bench.done[name_of(way, style, seed)] for seed in seeds]
            pairs = [(run["iou"][number], run["acc"][number]) for run in runs]
            iou, acc = (100 * statistics.mean(values) for values in zip(*pairs, strict=True))
            precision = 100 * statistics.mean(1 / (1 / iou - 1 / acc + 1) if iou else 0 for iou, acc in pairs)
            cells.append(f"{iou:.0f} {acc:.0f} {precision:.0f}")
        lines.append(f"| {style} | {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pretrained", required=True, help="FILE of weights of tf_efficientnet_lite0, or none")
    parser.add_argument("--styles", nargs="+", default=["proportional", "equal", "skip", "one"], metavar="STYLE")
    parser.add_argument("--ways", nargs="+", default=TABLE, choices=WAYS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--lanes", type=int, default=2, choices=range(1, 65), metavar="N")
    parser.add_argument(
        "--flags", default="", help="further flags of train.py: --flags='--long_side 240 --crop_size 144'"
    )
    args = parser.parse_args()
    args.folders = {Path(style).name: Path(style).resolve() for style in args.styles if style not in STYLES}
    for folder in args.folders.values():
        if not folder.is_dir():
            parser.error(f"--styles {folder}: must be a folder of strokes or one of {', '.join(STYLES)}")
    args.styles = [style if style in STYLES else Path(style).name for style in args.styles]
    if len({*args.styles}) < len(args.styles):
        parser.error(f"--styles: two of {', '.join(args.styles)} have one name")
    args.data, args.out = args.data.resolve(), args.out.resolve()
    if args.pretrained != "none":
        args.pretrained = str(Path(args.pretrained).resolve())
    bench = Bench(args)
    runs = [("dense", "", seed) for seed in args.seeds]
    runs += [(way, style, seed) for seed in args.seeds for style in args.styles for way in args.ways if way != "dense"]
    with ThreadPoolExecutor(len(runs)) as pool:
        done = [pool.submit(bench.run, *run) for run in runs]
    for run in done:
        run.result()
    ways, styles, seeds, names = args.ways, args.styles, args.seeds, read_classes("camvid", NUM_CLASSES).names
    print(score_table(bench, ways, styles, seeds), class_table(bench, ways, styles, seeds, names), sep="\n\n")


if __name__ == "__main__":
    main()
