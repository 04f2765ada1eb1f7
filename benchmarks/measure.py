"""Measure ways of doing the same work, in turn (A, B, A, B, ...), each measurement in a fresh process.

A benchmark gives `measure` one picklable function for each way (at module level, or a functools.partial of one). Called
in the fresh process, it prepares the inputs and returns the function to measure:

    def plain(num_classes): ...; return lambda: loss_and_gradient(inputs)

    if __name__ == "__main__":
        figures, results = measure({"plain": partial(plain, 21), "ours": partial(ours, 21)}, rounds=5)
        print(table(figures, baseline="plain"))
        save(Path("benchmarks/raw/losses.json"), {"21 classes": figures})

Linux only: memory is read from /proc.
"""

import argparse
import ctypes
import gc
import json
import multiprocessing
import os
import pickle
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

Way = Callable[[], Callable[[], Any]]
Figures = dict[str, list[dict[str, float]]]  # {way: one dict a round, of "cpu_s", "wall_s", "memory_mib"}

RAW = Path(__file__).resolve().parent / "raw"


def measure(
    ways: dict[str, Way], *, rounds: int = 5, calls: int = 1, warm_up: int = 1, threads: int = 1, memory: bool = True
) -> tuple[Figures, dict[str, Any]]:
    """Return (figures of each way, one dict a round; what each way's function returned in the first round).

    A round calls the function `warm_up` times, then `calls` times on the clock; seconds are of one call. "cpu_s" is the
    process's CPU time with its children's, "wall_s" the time on the wall. "memory_mib" is the growth of the peak of
    resident memory in one more call; memory=False leaves it out. What the functions return must be
    picklable.
    """
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)  # read when the child imports torch
    figures: Figures = {name: [] for name in ways}
    results: dict[str, Any] = {}
    context = multiprocessing.get_context("spawn")
    for number in range(rounds):
        for name, way in ways.items():
            here, there = context.Pipe(duplex=False)
            child = context.Process(target=_measure_here, args=(there, way, calls, warm_up, threads, memory))
            child.start()
            there.close()
            try:
                result, round_figures = here.recv()
            except EOFError:
                child.join()
                raise RuntimeError(f"{name}: round {number + 1} failed with status {child.exitcode}") from None
            child.join()
            figures[name].append(round_figures)
            if number == 0:
                results[name] = pickle.loads(result)
            text = ", ".join(f"{key} {value:.3f}" for key, value in round_figures.items())
            print(f"round {number + 1} of {rounds}: {name}: {text}", file=sys.stderr, flush=True)
    return figures, results


def _measure_here(pipe, way: Way, calls: int, warm_up: int, threads: int, memory: bool) -> None:
    work = way()
    if "cv2" in sys.modules:  # OpenCV does not read OMP_NUM_THREADS; 0 means that the caller's thread does the work
        sys.modules["cv2"].setNumThreads(threads if threads > 1 else 0)
    result: Any = None
    for _ in range(warm_up):
        result = work()
    cpu, wall = _cpu_seconds(), time.perf_counter()
    for _ in range(calls):
        result = work()
    figures = {"cpu_s": (_cpu_seconds() - cpu) / calls, "wall_s": (time.perf_counter() - wall) / calls}
    pickled = pickle.dumps(result)  # not by the pipe: it would pass tensors as handles, which end with this process
    if memory:
        del result
        figures["memory_mib"] = memory_growth(work) / 2**20
    pipe.send((pickled, figures))


def memory_growth(work: Callable[[], Any]) -> int:
    """Return by how many bytes resident memory grows at its peak in a call of work(), in this process alone."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else the call would reuse what earlier calls have freed
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = _status_bytes("VmRSS")
    result = work()
    peak = _status_bytes("VmHWM")
    del result
    return peak - before


def ratios(figures: Figures, above: str, below: str, key: str = "cpu_s") -> list[float]:
    """Return the ratio of two ways in each round: `above` over `below`."""
    return [one[key] / other[key] for one, other in zip(figures[above], figures[below], strict=True)]


def spread(values: list[float], digits: int = 2) -> str:
    """Return "median (least to most)"."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def table(figures: Figures, baseline: str, title: str = "") -> str:
    """Return a Markdown table with one row a way: medians with least and most, and the baseline's CPU time over it.

    The last column is the way's memory over the baseline's.
    """
    columns = ("CPU, s", "wall, s", "memory, MiB", f"{baseline} / it", f"memory, it / {baseline}")
    lines = [f"| {title} | {' | '.join(columns)} |", "| --- " * 6 + "|"]
    for name, rounds in figures.items():
        memory = memory_ratio = "-"
        if all(one.get("memory_mib") for one in [*rounds, *figures[baseline]]):
            memory = spread([one["memory_mib"] for one in rounds], 0)
            memory_ratio = spread(ratios(figures, name, baseline, "memory_mib"))
        seconds = [spread([one[key] for one in rounds], 3) for key in ("cpu_s", "wall_s")]
        lines.append(
            f"| {name} | {seconds[0]} | {seconds[1]} | {memory} | {spread(ratios(figures, baseline, name))} "
            f"| {memory_ratio} |"
        )
    return "\n".join(lines)


def save(path: Path, figures: dict[str, Any]) -> None:
    """Write raw figures to a JSON file, with the command, the date, the commit and the machine."""
    about = {"command": " ".join(sys.argv), "date": date.today().isoformat(), "commit": commit()}
    about |= {"machine": machine(), "threads": os.environ.get("OMP_NUM_THREADS", "")}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about | {"figures": figures}, indent=1) + "\n")


def commit() -> str:
    """Return the commit of this repository, with "-dirty" if files have changed."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=RAW.parent, capture_output=True, text=True).stdout.strip()


def machine() -> str:
    """Return this machine in words: its CPU and number of cores, Python's and torch's versions."""
    import torch  # imported here: a benchmark of the start must not pay for it

    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name")]
    cpu = names[0] if names else platform.machine()
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"


def add_flags(parser: argparse.ArgumentParser, name: str, rounds: int = 5) -> None:
    """Add the flags that benchmarks share: --rounds, --threads and --out, the JSON file."""
    parser.add_argument("--rounds", type=int, default=rounds, help="measurements of each way [%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--out", type=Path, default=RAW / f"{name}.json", help="raw figures [%(default)s]")


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")
