"""Draw the curve of scribble length against mIoU from the results of benchmarks/scribbles.py.

python benchmarks/scribbles.py DATA --out DIR --pretrained FILE --ways dense strokes shrink_{0.2,0.5,0.8,1}
python benchmarks/scribble_curve.py DIR --output docs/images/scribble_shrink.png

Each point is the mean mIoU over the seeds, and its bar spans the lowest to the highest seed. The dashed line is
training from dense masks. Needs matplotlib (pip install matplotlib).
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from scribbles import SHRUNK, WAYS, strokes_folder

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from support.labels import IGNORE

POINTS = {0: "strokes"} | SHRUNK  # {share cut off each stroke: way}


def read_scores(file: Path) -> dict[str, list[float]]:
    """Return {way: [mIoU in %, one for each seed]} of results.json."""
    scores: dict[str, list[float]] = {}
    for key, miou in json.loads(file.read_text()).items():
        scores.setdefault(key.rpartition("-")[0], []).append(100 * miou)
    return scores


def labelled(folder: Path) -> float:
    """Return the share of the pixels that have a label, in %, of all scribbles of a folder."""
    sums = np.zeros(2)
    for path in folder.glob("*.png"):
        with Image.open(path) as image:
            scribble = np.asarray(image)
        sums += (scribble != IGNORE).sum(), scribble.size
    return 100 * sums[0] / sums[1]


def draw(scores: dict[str, list[float]], shares: dict[float, float], output: Path) -> None:
    """Draw the curve. shares: {share cut off: labelled pixels in %}, of the points to draw."""
    ways = {shrunk: scores[way] for shrunk, way in POINTS.items() if way in scores and shrunk in shares}
    means = {shrunk: statistics.mean(values) for shrunk, values in ways.items()}
    below = [means[shrunk] - min(values) for shrunk, values in ways.items()]
    above = [max(values) - means[shrunk] for shrunk, values in ways.items()]
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.errorbar(list(ways), list(means.values()), yerr=[below, above], marker="o", capsize=4, label="strokes alone")
    if "dense" in scores:
        dense = statistics.mean(scores["dense"])
        axes.axhline(dense, linestyle="--", color="black", label=f"dense masks: {dense:.1f}")
    for shrunk, mean in means.items():
        axes.annotate(f"{mean:.1f}", (shrunk, mean), (6, 6), textcoords="offset points")
    axes.set_xticks(list(ways), [f"{shrunk:g}\n{shares[shrunk]:.2f} %" for shrunk in ways])
    axes.set(xlabel="share cut off each stroke (1: a point), and labelled pixels", ylabel="validation mIoU, %")
    axes.margins(x=0.08)  # room for the last number
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(output, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR", help="--out of benchmarks/scribbles.py")
    parser.add_argument("--output", type=Path, required=True, help="picture to write, such as curve.png or curve.svg")
    args = parser.parse_args()
    folders = {shrunk: strokes_folder(args.folder, WAYS[way].simulate) for shrunk, way in POINTS.items()}
    shares = {shrunk: labelled(folder) for shrunk, folder in folders.items() if folder.is_dir()}
    draw(read_scores(args.folder / "results.json"), shares, args.output)


if __name__ == "__main__":
    main()
