"""The rates of this machine's cores, for benchmarks/LIMITS.md: copies, matrix products and pointwise operations.

python benchmarks/limits.py    # about 2 minutes on one core

Rates are from the least time of several repeats: a limit is what the machine can do.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.measure import machine, save

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


def rates(all_threads: list[int]) -> dict[str, float]:
    """Measure memory bandwidth and the rate of matrix products."""
    figures = {}
    source = torch.zeros(256 * MIB, dtype=torch.uint8)
    target = torch.ones_like(source)
    for threads in all_threads:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="[1 2]")
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    figures = rates(args.threads)
    print("\n".join(f"{name}: {value:.4g}" for name, value in figures.items()))
    if args.out:
        save(args.out, figures)


if __name__ == "__main__":
    main()
