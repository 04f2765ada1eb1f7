"""Compare the recipe with the one of an older version: validation mIoU after the last step.

git worktree add OLD d24e74b
OMP_NUM_THREADS=1 python benchmarks/recipe.py CAMVID OLD --out DIR --pretrained FILE

CAMVID has VOC's layout. OLD: a checkout of the older version. FILE: ImageNet weights of timm's tf_efficientnet_lite0.
With one object against the rest, the score is the object's IoU. Both versions get the same flags: a small network and
the crops of --flags; they run in turn. Started again, the script skips finished runs.
"""

import argparse
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from data.demo import draw_dataset
from support.files import write_atomic

ROOT = Path(__file__).resolve().parent.parent
CAMVID = "--dataset Dense --numclasses 11 --background none"
RESNET = "--model_type res50_ASPP --layers 18 --pretrained none"
LITE0 = "--model_type deeplabv3p_multi --backbone timm:tf_efficientnet_lite0 --head_channels 96"
# {case: (number of images or 0 for all, flags)}; DEMO and STROKES are folders in --out, FILE is --pretrained.
CASES = {
    "50 images, random weights": (50, f"{CAMVID} {RESNET}"),
    "15 images, random weights": (15, f"{CAMVID} {RESNET}"),
    "50 images, ImageNet weights": (50, f"{CAMVID} {LITE0} --pretrained FILE"),
    "50 images, scribbles, random weights": (50, f"{CAMVID} {RESNET} --dataset ScribbleOnly --train_path STROKES"),
    "the demo, its five losses": (-1, "--dataset ScribblePseudoDsDc --numclasses 5 --layers 18 --pretrained none"),
    "CamVid, all 367 images, random weights": (0, f"{CAMVID} {RESNET}"),
}
OBJECTS = {"car": 8, "pole": 2, "pedestrian": 9}  # CamVid's class
for network, flags in (("random weights", RESNET), ("ImageNet weights", f"{LITE0} --pretrained FILE")):
    for number in (15, 50, 0):
        for name in OBJECTS:
            words = f"--dataset Dense --numclasses 2 --label_map MAPS/{name}.txt {flags}"
            CASES[f"{name} against the rest, {number or 'all'} images, {network}"] = number, words
CASES["15 images, ImageNet weights"] = 15, f"{CAMVID} {LITE0} --pretrained FILE"
CASES["CamVid, all 367 images, ImageNet weights"] = 0, f"{CAMVID} {LITE0} --pretrained FILE"
WAYS = ("before", "recipe")  # the older version, this version


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="CAMVID")
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--pretrained", default="none", metavar="FILE")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cases", default="", metavar="TEXT", help="only cases with this in their names, such as car")
    parser.add_argument("--flags", default="--long_side 96 --crop_size 65", help="for all runs")
    args = parser.parse_args(argv)
    args.data, args.old, args.out = args.data.resolve(), args.old.resolve(), args.out.resolve()
    prepare(args.data, args.out)
    file = args.out / "results.json"
    done = json.loads(file.read_text()) if file.is_file() else {}
    for seed in args.seeds:
        for number, case in enumerate(CASES):
            for way in WAYS if args.cases in case else ():
                key = f"{way}-{number}-{seed}"
                if key not in done:
                    done[key] = run(args, key, case, way, seed)
                    write_atomic(file, json.dumps(done, indent=1))
    print(table(done, args.seeds, args.cases))


def prepare(data: Path, out: Path) -> None:
    """Write the lists, the strokes and the demo into `out`."""
    names = (data / "ImageSets/Segmentation/train.txt").read_text().split()
    for number in (50, 15):
        folder = out / f"lists_{number}"
        folder.mkdir(parents=True, exist_ok=True)
        step = len(names) // number
        write_atomic(folder / "train.txt", "\n".join(names[::step][:number]) + "\n")
        write_atomic(folder / "val.txt", (data / "ImageSets/Segmentation/val.txt").read_text())
    (out / "maps").mkdir(exist_ok=True)
    for name, value in OBJECTS.items():
        write_atomic(out / "maps" / f"{name}.txt", f"{value} 1\n255 255\n* 0\n")
    draw_dataset(out / "demo")
    if not (out / "strokes").is_dir():
        words = ["simulate", data / "SegmentationClass", out / "strokes", "--background", "none", "--length", "0.5"]
        words += ["--list", out / "lists_50" / "train.txt", "--workers", "1"]
        subprocess.run([sys.executable, "-m", "tools.scribbles", *map(str, words)], cwd=ROOT, check=True)


def run(args: argparse.Namespace, name: str, case: str, way: str, seed: int) -> tuple[float, float, float]:
    """Train one way on one case. Return (mIoU or the object's IoU in percent, steps, minutes)."""
    number, flags = CASES[case]
    flags = flags.replace("FILE", args.pretrained).replace("STROKES", str(args.out / "strokes"))
    words, is_object = shlex.split(flags.replace("MAPS", str(args.out / "maps"))), "MAPS" in flags
    words += ["--dataset_path", str(args.out / "demo" if number < 0 else args.data), *shlex.split(args.flags)]
    words += ["--list_path", str(args.out / f"lists_{number}")] if number > 0 else []
    words += ["--name", name, "--logdir", str(args.out), "--seed", str(seed), "--val_epoch_frequency", "0"]
    words += ["--workers", "0"]
    folder = args.old if way == "before" else ROOT
    print(shlex.join(["python", "train.py", *words]), flush=True)
    shutil.rmtree(args.out / name, ignore_errors=True)  # of a run that did not end
    began = time.perf_counter()
    subprocess.run([sys.executable, "train.py", *words], cwd=folder, check=True, stderr=subprocess.DEVNULL)
    lines = (args.out / name / "metrics.jsonl").read_text().splitlines()
    last = [value for value in map(json.loads, lines) if value["kind"] == "val"][-1]
    score = (last["iou"][1] or 0.0) if is_object else last["miou"]
    return 100 * score, last["step"], (time.perf_counter() - began) / 60


def table(done: dict, seeds: list[int], part: str) -> str:
    """Return a Markdown table: mean score (least to most), steps and minutes of both ways on each case."""
    lines = ["| case | before | steps, min | recipe | steps, min |", "| --- | --- | --- | --- | --- |"]
    for number, case in enumerate(CASES):
        if part not in case:
            continue
        cells = [case]
        for way in WAYS:
            runs = [done[f"{way}-{number}-{seed}"] for seed in seeds]
            scores, minutes = [score for score, _, _ in runs], statistics.median(time for _, _, time in runs)
            cells.append(f"{statistics.mean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})")
            cells.append(f"{runs[0][1]}, {minutes:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
