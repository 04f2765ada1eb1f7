"""What a process group costs, and what a second process brings: images a second of train.py.

python benchmarks/scaling.py

Each way trains the same model from the same seed, in turn, with one thread a process and no loader processes: plain, as
the one process of a group, and as two processes. The rate is the median over the lines of metrics.jsonl but the first,
which has the first step's preparations. Two processes need two idle cores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import add_flags, save, spread

REPO = Path(__file__).resolve().parent.parent
LINE = 5  # optimizer steps between two lines of metrics.jsonl
WAYS = {"plain": 0, "group of one": 1, "two processes": 2}  # processes in the group; 0: no group


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, "scaling")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps of a run [%(default)s]")
    parser.add_argument("--flags", default="", help="more flags of train.py, such as '--amp none'")
    args = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(args.rounds):
        for name, processes in WAYS.items():
            rates[name].append(images_per_second(processes, args.steps, args.threads, args.flags.split()))
            print(f"round {number + 1} of {args.rounds}: {name}: {rates[name][-1]:.2f} images/s", file=sys.stderr)
    print("| | images a second | over plain |\n| --- | --- | --- |")
    for name, values in rates.items():
        ratios = [value / plain for value, plain in zip(values, rates["plain"], strict=True)]
        print(f"| {name} | {spread(values)} | {spread(ratios, 3)} |")
    save(args.out, rates)


def images_per_second(processes: int, steps: int, threads: int, flags: list[str]) -> float:
    """Return the rate of one run of train.py, over all its processes. processes: 0 trains without a group."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable]
        if processes:
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
        command += ["train.py", "--config", "configs/demo.yaml", "--max_steps", str(steps), "--workers", "0"]
        command += ["--val_epoch_frequency", "0", "--log_interval", str(LINE), "--logdir", folder, "--name", "run"]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        subprocess.run([*command, *flags], cwd=REPO, env=environment, check=True, capture_output=True)
        lines = [json.loads(line) for line in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
    return statistics.median([line["images_per_s"] for line in lines if line["kind"] == "train"][1:])


if __name__ == "__main__":
    main()
