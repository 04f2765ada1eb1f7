"""Kill a run by SIGKILL at random moments, resume it each time, and compare what it ends with, bit for bit, with an
unbroken run.

python tests/chaos.py                             # 20 kills of one process: about 6 minutes on two CPU cores
python tests/chaos.py --processes 2               # the same for two; each kill hits rank 0, rank 1 or both
python tests/chaos.py --kills 100 -- --model_type deeplabv3 --save_step_frequency 1    # train.py's flags after --

Exit status: 0 if all is equal, 1 if not. Needs only the CPU; the demo data are drawn.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
FLAGS = "--config configs/demo.yaml --device cpu --crop_size 65 --batchsize 4 --epochs 4 --val_epoch_frequency 2"
FLAGS += " --workers 1 --log_interval 3 --save_step_frequency 2 --ema 0.9 --dist_timeout 25"
# The limit for the other ranks to end when one was killed: they wait until --dist_timeout for a rank that never joined.
END_SECONDS = 40


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("flags", nargs="*", help="flags of train.py, after --")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        differences = kill_and_compare(args, Path(folder), random.Random(args.seed))
    print(
        "\n".join(differences)
        or f"{args.kills} kills of {args.processes} process(es): weights, optimizer, metrics and TensorBoard "
        "are those of the unbroken run, bit for bit, with every step once"
    )
    return 1 if differences else 0


def kill_and_compare(args: argparse.Namespace, logdir: Path, chance: random.Random) -> list[str]:
    """Do an unbroken run and one that is killed and resumed. List what differs, or what went wrong."""
    flags = [*FLAGS.split(), "--logdir", str(logdir), *args.flags]
    began = time.monotonic()
    processes = start([*flags, "--name", "whole"], args.processes, logdir)
    while not last_step(logdir / "whole") and all(process.poll() is None for process in processes):
        time.sleep(0.02)
    startup = time.monotonic() - began
    if any(process.wait() for process in processes):
        return [f"the unbroken run failed: {(logdir / 'stderr').read_text()}"]
    training = time.monotonic() - began - startup
    print(f"unbroken: {startup:.1f} s to the first line of metrics, {training:.1f} s from there")

    last = last_step(logdir / "whole")
    flags += ["--name", "killed", "--resume", "auto"]
    targets = sorted(chance.uniform(0, last - 8) for _ in range(args.kills))
    for target in tqdm(targets, desc="kills", file=sys.stdout, mininterval=5):
        processes = start(flags, args.processes, logdir)
        if chance.random() < 0.25:
            time.sleep(chance.uniform(0, startup))
        else:
            while last_step(logdir / "killed") < target and processes[0].poll() is None:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 3 * training / last))
        if problem := kill(processes, chance.choice([processes, *([process] for process in processes)])):
            return [problem]
        tqdm.write(f"killed at step {last_step(logdir / 'killed')} or after")
    if any(process.wait() for process in start(flags, args.processes, logdir)):
        return [f"the last resumption failed: {(logdir / 'stderr').read_text()}"]
    return compare(logdir / "whole", logdir / "killed")


def kill(processes: list[subprocess.Popen], victims: list[subprocess.Popen]) -> str:
    """Kill some of a run's processes, and wait until all have ended. Return what is wrong, or ""."""
    ended = [process.poll() for process in processes]
    for victim in victims:
        victim.send_signal(signal.SIGKILL)
    for rank, process in enumerate(processes):
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return f"rank {rank} still runs {END_SECONDS} s after another was killed"
    if any(status is not None for status in ended):
        return f"the run ended by itself before a kill: {ended}: use more --epochs, or fewer --kills"
    return ""


def start(flags: list[str], num_processes: int, logdir: Path) -> list[subprocess.Popen]:
    """Start the processes of a run as a launcher would, with one thread each. Their errors go to logdir/stderr."""
    group = ["--distributed", "--dist_url", f"tcp://127.0.0.1:{free_port()}", "--world_size", str(num_processes)]
    with (logdir / "stderr").open("w") as stderr:
        return [
            subprocess.Popen(
                [sys.executable, "train.py", *flags, *([] if num_processes == 1 else [*group, "--rank", str(rank)])],
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
            for rank in range(num_processes)
        ]


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def last_step(folder: Path) -> int:
    """The step of the last whole line of metrics, 0 if there is none."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def compare(whole: Path, other: Path) -> list[str]:
    """List what differs between two runs' last.pt, best.pt, metrics and TensorBoard curves, except for rates."""
    differences = []
    for name in ("last.pt", "best.pt"):
        contents = [torch.load(folder / name, weights_only=True) for folder in (whole, other)]
        for content in contents:
            content.pop("config")  # names another folder
        differences += [f"{name}: {path} differs" for path in unequal(*contents)]

    lines = [[json.loads(line) for line in (folder / "metrics.jsonl").open()] for folder in (whole, other)]
    for line in [*lines[0], *lines[1]]:
        line.pop("images_per_s", None)
    if lines[0] != lines[1]:
        odd = next((one for one, two in zip(*lines, strict=False) if one != two), "their number")
        differences.append(f"metrics.jsonl differs in {odd}")
    for folder, written in zip((whole, other), lines, strict=True):
        for tag, kind in (("train/loss", "train"), ("val/miou", "val")):
            board = EventAccumulator(str(folder)).Reload()
            steps = [event.step for event in board.Scalars(tag)]
            expected = [line["step"] for line in written if line["kind"] == kind]
            if steps != expected or max(Counter(expected).values()) > 1:
                differences.append(f"{folder.name}: TensorBoard's {tag} has steps {steps}, metrics.jsonl {expected}")
    return differences


def unequal(one, other, path: str = "") -> list[str]:
    """The places where two nested structures of tensors and plain values differ."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return [] if torch.equal(one, other) else [path]
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [place for key in one for place in unequal(one[key], other[key], f"{path}/{key}")]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [place for number, pair in pairs for place in unequal(*pair, f"{path}/{number}")]
    return [] if one == other else [path]


if __name__ == "__main__":
    sys.exit(main())
