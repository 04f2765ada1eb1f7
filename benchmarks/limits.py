"""The limits in benchmarks/LIMITS.md: the rates of this machine's cores, and the work of a step. A line for each figure.

python benchmarks/limits.py                    # both parts, about 2 minutes on one core
python benchmarks/limits.py --parts rates

Rates are from the least time of several repeats: a limit is what the machine can do. FLOPs and bytes are counts
(benchmarks/operations.py).
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.measure import machine
from benchmarks.operations import Recorder
from benchmarks.peer_steps import STEPS

MIB = 2**20


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the least time of a call: CPU time on one thread, which other processes disturb least, else wall time."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    work()
    best = math.inf
    for _ in range(repeats):
        began = clock()
        work()
        best = min(best, clock() - began)
    return best


def rates(args: argparse.Namespace) -> dict[str, float]:
    """Measure memory bandwidth and the rate of matrix products."""
    figures = {}
    source = torch.zeros(256 * MIB, dtype=torch.uint8)
    target = torch.ones_like(source)
    for threads in args.threads:
        torch.set_num_threads(threads)
        copy = seconds(lambda: target.copy_(source))
        figures[f"copy, {threads} threads, GB/s read and written"] = 2 * source.nbytes / copy / 1e9
        for dtype in (torch.float32, torch.bfloat16):
            for side in (512, 1024, 2048, 4096):
                a, b = torch.randn(2, side, side).to(dtype)
                work = partial(torch.mm, a, b, out=torch.empty_like(a))
                name = f"mm {side}, {str(dtype).removeprefix('torch.')}, {threads} threads, GFLOP/s"
                figures[name] = 2 * side**3 / seconds(work, repeats=3) / 1e9
    torch.set_num_threads(1)
    in_cache = torch.zeros(2**16)
    for name, work in (("exp", in_cache.exp_), ("multiply", partial(in_cache.mul_, 1.0))):
        figures[f"{name}, float32, in cache, million/s"] = 2**16 / seconds(work, repeats=1000) / 1e6
    fresh = seconds(lambda: torch.full((64 * MIB,), 1.0))
    figures["first write to fresh memory, GB/s"] = 4 * 64 * MIB / fresh / 1e9
    return figures


class WithoutPadding(Recorder):
    """A Recorder that also counts the FLOPs of convolutions whose operand is not padding: `useful`."""

    useful = 0.0

    def record(self, func, args: tuple, kwargs: dict, result: Any) -> None:
        before = self.meter.flops
        super().record(func, args, kwargs, result)
        name = func._schema.name
        if name not in ("aten::convolution", "aten::convolution_backward"):
            return
        image, weight, rest = (*args[:2], args[3:]) if name == "aten::convolution" else (*args[1:3], args[4:])
        share = 1.0
        for axis, (stride, padding, dilation) in enumerate(zip(*rest[:3], strict=True), start=2):
            side, taps = image.shape[axis], weight.shape[axis]
            size = (side + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
            places = [out * stride - padding + tap * dilation for out in range(size) for tap in range(taps)]
            share *= sum(0 <= place < side for place in places) / len(places)
        self.useful += share * (self.meter.flops - before)


def step(args: argparse.Namespace) -> dict[str, float]:
    """Count the FLOPs of a training step: of convolutions, of these without padding, and of matrix products."""
    figures = {}
    for name in ("deeplabv3", "res50_ASPP_lorm"):
        for batchsize, crop in ((2, 193), (16, 465)):
            recorder = WithoutPadding()
            sizes = argparse.Namespace(batchsize=batchsize, crop_size=crop, numclasses=21, amp="none")
            STEPS[name](sizes, recorder)
            title = f"{name}, batch {batchsize}, crop {crop}"
            for kind in ("convolutions", "matrix products"):
                flops = sum(op.flops for op in recorder.operations if op.kind == kind)
                figures[f"{title}: {kind}, GFLOP"] = flops / 1e9
            figures[f"{title}: convolutions without padding, GFLOP"] = recorder.useful / 1e9
            figures[f"{title}: moved, GiB"] = sum(op.bytes for op in recorder.operations) / 2**30
    return figures


PARTS = {"rates": rates, "step": step}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="[all]")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="for rates [1 2]")
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    figures: dict[str, float] = {}
    for name in args.parts:
        part = PARTS[name](args)
        figures |= part
        for figure, value in part.items():
            print(f"{figure}: {value:.4g}", flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"machine": machine(), "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
