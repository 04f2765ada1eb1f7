"""Mean and standard deviation of each channel over the training images, for train.py's --image_stats.

    python -m tools.statistics Fields
    python -m tools.statistics Fields --dataset Folder --train_split val --output stats.json

Both are computed over all pixels of all images, in float64. Values that are not finite (NaN) are missing: they are left
out, and their number is printed. The file also names the type of the values, which all images must have.
"""

import json
import sys
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from pathlib import Path

if not __package__:  # started as a file from another folder: python PATH/tools/statistics.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from data.images import check_type, decoding, read_image
from data.images.rasters import open_raster, type_of
from data.layout import match_files
from support import program, shell
from support.errors import UserError
from support.files import write_atomic
from support.image_stats import FILE_NAME, RGB, ImageStats, ImageType
from support.labels import MAPS
from support.processes import work_on
from tools.arguments import Parser
from tools.check.guess import guess_flags
from tools.check.survey import Paths, find_split

BAND_VALUES = 2**22  # values that are in float64 at once


@dataclass(frozen=True)
class Moments:
    """Of the finite values of each channel: number, mean, and sum of squared differences from the mean, (C,) float64.

    missing: number of values that are not finite, over all channels.
    """

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    missing: int

    def merge(self, other: "Moments") -> "Moments":
        """Return the moments of both sets of values (Chan, Golub and LeVeque 1979: no cancellation)."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        difference = other.mean - self.mean
        squares = self.squares + other.squares + difference**2 * self.count * share
        return Moments(count, self.mean + difference * share, squares, self.missing + other.missing)


def moments(values: np.ndarray) -> Moments:
    """Return the Moments of an image or a part of it, (H, W, C)."""
    values = values.reshape(-1, values.shape[-1]).astype(np.float64)
    finite = np.isfinite(values)
    count = finite.sum(0)
    mean = np.where(finite, values, 0).sum(0) / np.maximum(count, 1)
    squares = (np.where(finite, values - mean, 0) ** 2).sum(0)
    return Moments(count.astype(np.float64), mean, squares, int(values.size - count.sum()))


def measure(path: Path, kind: ImageType) -> Moments:
    """Return the Moments of an image file. Raises UserError if it cannot be read or is not of this kind."""
    with decoding(path):
        if kind == RGB:  # as in training, from any picture of 8 bits
            pixels = read_image(path)
            shape, unit, rows = pixels.shape, 1, lambda top, bottom: pixels[top:bottom]
        else:
            raster = open_raster(path)
            check_type(path, type_of(raster), kind)
            shape, unit, rows = raster.shape, raster.unit, raster.rows
        step = max(unit, BAND_VALUES // (shape[1] * shape[2]))
        parts = (moments(rows(top, min(top + step, shape[0]))) for top in range(0, shape[0], step))
        return reduce(Moments.merge, parts)


def measure_all(paths: list[Path], workers: int) -> tuple[ImageStats, Moments]:
    """Return the statistics of image files, and the moments that they come from. The first file says which kind.

    workers: number of processes; 0 measures in this process. The result does not depend on it. Raises UserError for a
    file of another kind, and for a channel of one value.
    """
    with decoding(paths[0]):
        kind = type_of(open_raster(paths[0]))
    total = reduce(Moments.merge, work_on(partial(measure, kind=kind), paths, workers, "image", "measuring"))
    std = np.sqrt(total.squares / np.maximum(total.count, 1))
    for number in np.flatnonzero(std == 0):
        what = f"is {total.mean[number]:g} in every pixel" if total.count[number] else "has no finite value"
        raise UserError(f"channel {number} {what} of the {len(paths)} images: leave this channel out")
    return ImageStats(kind.dtype, tuple(total.mean.tolist()), tuple(std.tolist())), total


def main(argv: list[str] | None = None) -> None:
    args = parser().parse_args(argv)
    given = {name: getattr(args, name) for name in ("list_path", "image_path", "image_suffix", "train_split")}
    dataset, paths, _ = guess_flags(args.root, args.dataset, Paths(**given))
    name = paths.splits[0]
    split = find_split(args.root, dataset, paths, name)
    split = replace(split, folders={"image": split.folders["image"]})
    files = [found["image"][0] for _, found in match_files(split) if found["image"]]
    if not files:
        raise UserError(f"{split.folders['image']}: no images of the split {name} in it")
    stats, total = measure_all(files, args.workers)
    output = args.output or args.root / FILE_NAME
    about = {"unit": "the images' own", "images": len(files), "missing_values": total.missing}
    write_atomic(output, json.dumps(asdict(stats) | about, indent=1) + "\n", parents=True)
    print(f"{len(files)} images of the split {name}: {stats.kind}")
    for number, (mean, std) in enumerate(zip(stats.mean, stats.std, strict=True)):
        print(f"  channel {number:2}: mean {mean:.6g}, std {std:.6g}")
    if total.missing:
        print(f"{total.missing} values are not finite: left out here; training replaces them by the channel's mean")
    print(f"written: {output}")
    command = shell.python_command("-m", "tools.check", args.root, "--dataset", dataset)
    print(f"to train: run {command}; it prints the command, which needs {shell.quoted(['--image_stats', str(output)])}")


def parser() -> Parser:
    parser = Parser("tools.statistics", "Measure mean and standard deviation of each channel.")
    add = parser.add_argument
    add("root", type=Path, metavar="PATH", help="root of the data set, train.py's --dataset_path")
    add("--dataset", default="", choices=MAPS, help="as train.py's --dataset [guessed from the folders]")
    add("--train_split", default="", metavar="NAME", help="as train.py's --train_split [guessed from the folders]")
    add("--list_path", default="", metavar="DIR", help="folder, as train.py's --list_path")
    add("--image_path", default="", metavar="DIR", help="folder, as train.py's --image_path")
    add("--image_suffix", default="", metavar="TEXT", help="as train.py's --image_suffix [guessed from the names]")
    add("--output", type=Path, metavar="FILE", help=f"file to write [PATH/{FILE_NAME}]")
    add("--workers", type=int, default=-1, metavar="N", help="processes; 0 reads in this process [number of cores]")
    return parser


if __name__ == "__main__":
    program.run_and_exit(main)
