"""Time to the first batch when a run is resumed at 0, 50 and 99 per cent of an epoch of 10,000 images.

python benchmarks/resume_offset.py

Ours computes the rest of the epoch's order and reads the first batch. The other way, that of a loop with
`if step < first_step: continue`, reads and augments all images before it. Both run on the same loader, in turn.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import config
from data.demo import draw_dataset
from distributed.group import Group
from utils import get_loader

BATCH = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = make_list(Path(folder) / "data", args.images)
        cfg = config.parse(
            [
                "--dataset_path",
                str(root),
                "--numclasses",
                "5",
                "--crop_size",
                "97",
                "--batchsize",
                str(BATCH),
                "--workers",
                str(args.workers),
                "--device",
                "cpu",
            ]
        )
        began = time.perf_counter()
        get_loader(cfg, "train", Group(torch.device("cpu")))
        print(
            f"list of {args.images} images, 120x160, {args.workers} workers: read in "
            f"{time.perf_counter() - began:.2f} s"
        )
        print("offset   skipping indices, s         reading and skipping, s     ratio (median of pairs)")
        for percent in (0, 50, 99):
            batches = args.images * percent // 100 // BATCH
            pairs = []
            for _ in range(args.repeats):
                pairs.append(
                    (first_batch(cfg, batches, skip_indices=True), first_batch(cfg, batches, skip_indices=False))
                )
            print(
                f"{percent:3d} %    {spread([p[0] for p in pairs])}    {spread([p[1] for p in pairs])}    "
                f"{statistics.median(other / ours for ours, other in pairs):.1f}"
            )


def make_list(root: Path, num_images: int) -> Path:
    """A data set of many names for few files."""
    draw_dataset(root, num_train=16, num_val=1)
    names = [f"image_{number:05d}" for number in range(num_images)]
    for folder in ("JPEGImages", "pascal_2012_scribble", "bmp_pseudolabel"):
        files = sorted((root / folder).iterdir())[:16]
        for number, name in enumerate(names):
            source = files[number % len(files)]
            os.symlink(source, root / folder / f"{name}{source.suffix}")
    (root / "ImageSets/SegmentationAug/train.txt").write_text("\n".join(names))
    return root


def first_batch(cfg: config.Config, batches: int, *, skip_indices: bool) -> float:
    """Seconds from the loader's start to the batch after `batches` others; the workers start in that time, too."""
    loader = get_loader(cfg, "train", Group(torch.device("cpu")))
    began = time.perf_counter()
    loader.sampler.set_position(0, batches * BATCH if skip_indices else 0)
    next(islice(iter(loader), 0 if skip_indices else batches, None))
    return time.perf_counter() - began


def spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):7.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
    main()
