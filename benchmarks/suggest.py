"""Compare the mIoU for each number of strokes, drawn where tools.suggest says, on random objects, or at random pixels.

OMP_NUM_THREADS=1 python benchmarks/suggest.py CAMVID --out DIR --pretrained FILE --way suggested --seed 0

CAMVID has VOC's layout. FILE: ImageNet weights of timm's tf_efficientnet_lite0. "All strokes" are one on each object,
at most 60 pixels long (`tools.scribbles simulate --max_length 60`). A run begins with a random tenth of these strokes.
Each round adds the same number of strokes: on random objects, or at the suggested places in order of rank, or at random
pixels. At a place, a simulated annotator draws along the object, at most REACH pixels away. The annotator skips places
on ignored pixels and a random tenth of the others. Each round continues from the weights of the last one. At the end, a
model is also trained from the ImageNet weights on the final strokes. By default, images are scaled to half their size;
--flags and --round_flags replace the flags of training. If you start the script again, it skips finished runs.
"""

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from data.images import label_png, read_label
from support.files import write_atomic
from support.labels import IGNORE
from tools.scribbles.simulate import Style, draw_scribble, find_regions

ROOT = Path(__file__).resolve().parent.parent
STYLE = Style(background="none", max_length=60)
REACH = 40  # pixels
SHARE, ROUNDS, SKIPPED = 0.1, 4, 0.1
FLAGS = "--config configs/camvid_lite0.yaml --long_side 240 --crop_size 144"
ROUND_FLAGS = "--epochs 8 --lr 0.0005"
Strokes = dict[str, np.ndarray]  # {image: (H, W) uint8, 255 = no stroke}


class Bench:
    def __init__(self, args: argparse.Namespace):
        self.args, self.rng = args, np.random.default_rng(args.seed)
        aug = "Aug" if (args.data / "SegmentationClassAug").is_dir() else ""
        names = (args.data / f"ImageSets/Segmentation{aug}/train.txt").read_text().split()
        self.masks = {name: read_label(args.data / f"SegmentationClass{aug}/{name}.png", IGNORE) for name in names}
        self.every = {name: draw_scribble(mask, STYLE, 0, name) for name, mask in self.masks.items()}
        self.regions = {name: numbered_regions(mask) for name, mask in self.masks.items()}
        self.total = sum(len(self.objects(name, self.every[name])) for name in names)

    def objects(self, name: str, strokes: np.ndarray) -> set[int]:
        """Return the numbers of the objects that have a stroke."""
        return set(np.unique(self.regions[name][strokes != IGNORE]).tolist()) - {0}

    def random(self, strokes: Strokes, number: int) -> Strokes:
        """Add the strokes of so many random objects."""
        left = [
            (name, one)
            for name, before in strokes.items()
            for one in sorted(self.objects(name, self.every[name]) - self.objects(name, before))
        ]
        result = dict(strokes)
        for index in self.rng.permutation(len(left))[:number]:
            name, one = left[index]
            drawn = (self.regions[name] == one) & (self.every[name] != IGNORE)
            result[name] = np.where(drawn, self.every[name], result[name])
        return result

    def suggested(self, strokes: Strokes, number: int, checkpoint: Path, folder: Path) -> Strokes:
        """Add so many strokes at the places that tools.suggest ranks first."""
        words = ["--checkpoint", checkpoint, "--train_path", self.write(strokes, folder / "before")]
        words += ["--budget", 2 * number, "--output", folder / "next", "--workers", 0]
        self.call("-m", "tools.suggest", self.args.data, *words)
        with (folder / "next/next.csv").open() as file:
            places = [(row["image"], int(row["y"]), int(row["x"])) for row in csv.DictReader(file)]
        return self.draw(strokes, number, places)

    def anywhere(self, strokes: Strokes, number: int) -> Strokes:
        """Add so many strokes at random pixels of random images."""
        names = self.rng.choice([*strokes], 2 * number)
        return self.draw(strokes, number, [(name, *self.rng.integers(self.masks[name].shape)) for name in names])

    def draw(self, strokes: Strokes, number: int, places: list[tuple[str, int, int]]) -> Strokes:
        """Add so many strokes at the places (image, row, column), as far as the annotator does not skip them."""
        result, drawn = {name: before.copy() for name, before in strokes.items()}, 0
        for name, row, column in places:
            if drawn == number or self.masks[name][row, column] == IGNORE or self.rng.random() < SKIPPED:
                continue
            stroke = self.stroke_at(self.masks[name], row, column, f"{name} {row} {column}")
            result[name] = np.where(stroke != IGNORE, stroke, result[name])
            drawn += 1
        return result

    def stroke_at(self, mask: np.ndarray, row: int, column: int, name: str) -> np.ndarray:
        """Return a stroke along the part of an object near a place, (H, W) uint8."""
        box = np.s_[max(0, row - REACH) : row + REACH + 1, max(0, column - REACH) : column + REACH + 1]
        _, parts = cv2.connectedComponents((mask[box] == mask[row, column]).view(np.uint8), connectivity=8)
        alone = np.full_like(mask, IGNORE)
        alone[box][parts == parts[row - box[0].start, column - box[1].start]] = mask[row, column]
        return draw_scribble(alone, STYLE, self.args.seed, name)

    def write(self, strokes: Strokes, folder: Path) -> Path:
        for name, values in strokes.items():
            write_atomic(folder / f"{name}.png", label_png(values), parents=True)
        return folder

    def train(self, strokes: Strokes, name: str, *more: object) -> float:
        """Train on strokes. Return the validation mIoU after the last step, in percent."""
        folder = self.write(strokes, self.args.out / f"strokes-{name}")
        words = [*self.args.flags.split(), "--dataset", "ScribbleOnly", "--dataset_path", self.args.data]
        words += ["--train_path", folder, "--logdir", self.args.out, "--name", name, "--seed", self.args.seed]
        words += ["--val_epoch_frequency", 0, "--resume", "auto", "--workers", 0, *more]
        self.call("train.py", *words)
        lines = map(json.loads, (self.args.out / name / "metrics.jsonl").read_text().splitlines())
        return 100 * [line for line in lines if line["kind"] == "val"][-1]["miou"]

    def call(self, *words: object) -> None:
        subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def numbered_regions(mask: np.ndarray) -> np.ndarray:
    """Return the number of each pixel's region, from 1, (H, W) int32; 0: no region that may get a stroke."""
    number = np.zeros(mask.shape, np.int32)
    for index, (_, box, inside) in enumerate(find_regions(mask, STYLE.min_area), start=1):
        number[box][inside] = index
    return number


def file_or_none(text: str) -> Path | str:
    return text if text == "none" else Path(text).resolve()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=lambda path: Path(path).resolve())
    parser.add_argument("--out", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--pretrained", type=file_or_none, required=True, help="a file of weights, or none")
    parser.add_argument("--way", choices=("suggested", "random", "anywhere"), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--flags", default=FLAGS, help="of all runs")
    parser.add_argument("--round_flags", default=ROUND_FLAGS, help="of the runs of rounds")
    args = parser.parse_args()
    bench = Bench(args)
    number = round(SHARE * bench.total)
    none = {name: np.full_like(mask, IGNORE) for name, mask in bench.masks.items()}
    strokes, name = bench.random(none, number), f"begin-{args.seed}"
    miou = bench.train(strokes, name, "--pretrained", args.pretrained)
    for count in range(1, ROUNDS + 1):
        print(f"{args.way}, seed {args.seed}: {count * number} of {bench.total} strokes: mIoU {miou:.2f}", flush=True)
        last, name = args.out / name / "last.pt", f"{args.way}-{args.seed}-{count}"
        if args.way == "suggested":
            strokes = bench.suggested(strokes, number, last, args.out / f"round-{name}")
        else:
            strokes = (bench.random if args.way == "random" else bench.anywhere)(strokes, number)
        miou = bench.train(strokes, name, "--pretrained", last, *args.round_flags.split())
    print(
        f"{args.way}, seed {args.seed}: {(ROUNDS + 1) * number} of {bench.total} strokes: mIoU {miou:.2f}", flush=True
    )
    new = bench.train(strokes, f"{args.way}-{args.seed}-new", "--pretrained", args.pretrained)
    print(f"a new model from the last strokes: mIoU {new:.2f}")


if __name__ == "__main__":
    main()
