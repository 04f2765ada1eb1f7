"""The pixel losses against the plain form, forward and backward: CPU time, and growth of the peak of resident memory.

python benchmarks/losses.py                  # all cases below, one thread
python benchmarks/losses.py --cases scribbles --threads 2

The plain form is what a PyTorch user writes: upsample the logits with F.interpolate, then F.cross_entropy, and the
entropy from softmax and log_softmax. Logits are 1/8 of the crop, labels random. Values and gradients must be equal to
1e-5 of the largest in float32, and to 1e-10 in float64, which is checked at a smaller crop.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from dataclasses import replace

from benchmarks.measure import add_flags, measure, ratios, save, spread, table
from losses.criterion import Criterion
from losses.upsampling import find_points
from support.batch import Batch

ALL = {"seg": 1.0, "pseudo": 1.0, "ds": 1.0, "dc": 1.0}
SMOOTH = 0.1
CASES = {  # name: (title, losses, batch, classes)
    "voc": ("cross entropy, smoothed cross entropy, two entropies; batch 4, 21 classes", ALL, 4, 21),
    "ade": ("the same, batch 2, 150 classes", ALL, 2, 150),
    "scribbles": ("cross entropy on scribbles, 3 % of pixels; batch 4, 21 classes", {"seg": 1.0}, 4, 21),
    "dense": ("smoothed cross entropy on dense labels; batch 4, 21 classes", {"pseudo": 1.0}, 4, 21),
}
Result = tuple[float, torch.Tensor]


def inputs(batchsize: int, num_classes: int, crop_size: int, dtype: torch.dtype) -> tuple[torch.Tensor, Batch]:
    """Logits, and maps: 3 % of "label" and 90 % of "pseudo" have a class."""
    generator = torch.Generator().manual_seed(0)
    low = (crop_size - 1) // 8 + 1
    logits = 3 * torch.randn(batchsize, num_classes, low, low, dtype=dtype, generator=generator)
    shape = (batchsize, crop_size, crop_size)
    maps = {}
    for name, share in (("label", 0.03), ("pseudo", 0.9)):
        maps[name] = torch.randint(0, num_classes, shape, dtype=torch.uint8, generator=generator)
        maps[name][torch.rand(shape, generator=generator) > share] = 255
    for name in ("distance_s", "distance_c"):
        maps[name] = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return logits, Batch(torch.zeros(*shape, 3, dtype=torch.uint8), **maps)


def plain_loss(logits: torch.Tensor, batch: Batch, names, divisor: float) -> torch.Tensor:
    full = F.interpolate(logits, size=batch.image.shape[1:3], mode="bilinear", align_corners=True)
    loss = torch.zeros((), dtype=logits.dtype)
    if "seg" in names:
        loss = loss + F.cross_entropy(full, batch.maps["label"].long(), ignore_index=255, reduction="sum") / divisor
    if "pseudo" in names:
        pseudo = batch.maps["pseudo"].long()
        value = F.cross_entropy(full, pseudo, ignore_index=255, reduction="sum", label_smoothing=SMOOTH)
        loss = loss + value / divisor
    if "ds" in names:
        entropy = -(F.softmax(full, dim=1) * F.log_softmax(full, dim=1)).sum(1)
        for name in ("distance_s", "distance_c"):
            loss = loss + (batch.maps[name].to(logits.dtype) / 255 * entropy).sum() / divisor
    return loss


def our_loss(logits: torch.Tensor, batch: Batch, names, divisor: float) -> torch.Tensor:
    if tuple(names) == ("seg",):
        batch = replace(batch, points=find_points(batch.maps["label"]))  # which the loader's workers do in a run
    criterion = Criterion(dict.fromkeys(names, 1.0), label_smooth=SMOOTH)
    return criterion({"logits": logits}, batch, [divisor] * len(names))[0]


def way(loss_of: Callable, case: str, crop_size: int, dtype: torch.dtype) -> Callable[[], Result]:
    """Prepare the inputs of a case; return the function that computes (loss, gradient by the logits)."""
    _, names, batchsize, num_classes = CASES[case]
    logits, batch = inputs(batchsize, num_classes, crop_size, dtype)

    def work() -> Result:
        leaf = logits.detach().requires_grad_()
        loss = loss_of(leaf, batch, names, 1000.0)
        loss.backward()
        assert leaf.grad is not None
        return loss.item(), leaf.grad

    return work


def difference(one: Result, other: Result) -> tuple[float, float]:
    """Return the relative difference of the losses, and the largest of the gradients over the largest gradient."""
    return abs(one[0] - other[0]) / abs(other[0]), float((one[1] - other[1]).abs().max() / other[1].abs().max())


def check(case: str, results: dict[str, Result]) -> None:
    exact = difference(*(way(loss_of, case, 129, torch.float64)() for loss_of in (our_loss, plain_loss)))
    same = difference(results["ours"], results["plain"])
    print(f"equal to the plain form: value and gradient to {same[0]:.1e} and {same[1]:.1e},", end=" ")
    print(f"in float64 to {exact[0]:.1e} and {exact[1]:.1e}")
    assert max(same) < 1e-5, same
    assert max(exact) < 1e-10, exact


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--crop_size", type=int, default=465)
    add_flags(parser, "losses")
    args = parser.parse_args()
    raw = {}
    for case in args.cases:
        title = CASES[case][0]
        ways = {
            name: partial(way, loss_of, case, args.crop_size, torch.float32)
            for name, loss_of in (("plain", plain_loss), ("ours", our_loss))
        }
        figures, results = measure(ways, rounds=args.rounds, calls=2, threads=args.threads)
        print(f"\n{title}; crop {args.crop_size}, {args.threads} thread(s)")
        print(table(figures, baseline="plain"))
        check(case, results)
        print(f"{spread(ratios(figures, 'plain', 'ours'))} times as fast by CPU time", flush=True)
        raw[title] = figures
    save(args.out, raw)


if __name__ == "__main__":
    main()
