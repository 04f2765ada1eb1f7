"""How long a training run takes until its validation mIoU on CamVid is 68.0: a row of benchmarks/SPEEDRUN.md.

python benchmarks/speedrun.py --dataset_path CAMVID --pretrained FILE [--seeds 0 1 2] [flags of train.py]

Trains with configs/camvid_lite0.yaml and these flags, once for each seed. A run ends at the first validation that
reaches the target, or at its own end. Prints the time from the start of the command to each validation, then the row,
with the minutes to the target.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.measure import commit, machine

ROOT = Path(__file__).resolve().parent.parent
TARGET = 0.68


def main() -> None:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style, allow_abbrev=False)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="[%(default)s]")
    args, flags = parser.parse_known_args()
    flags = ["--config", str(ROOT / "configs/camvid_lite0.yaml"), *flags]
    seconds = []
    for seed in args.seeds:
        with tempfile.TemporaryDirectory() as folder:
            found, lines = run([*flags, "--seed", str(seed), "--logdir", folder, "--name", "run"], Path(folder, "run"))
        text = ", ".join(f"{at:.0f} s {100 * miou:.2f}" for at, miou in lines)
        print(f"seed {seed}: {f'{found:.0f} s' if found else 'not reached'}; validations: {text}", flush=True)
        seconds.append(found)
    times = ", ".join(f"{found / 60:.1f}" if found else "not reached" for found in seconds)
    middle = f"{statistics.median(seconds) / 60:.1f}" if all(seconds) else "-"
    command = f"`python benchmarks/speedrun.py {' '.join(sys.argv[1:])}`"
    print(f"| {date.today().isoformat()} | {commit()} | {machine()} | {command} | {times} | {middle} |")


def run(flags: list[str], folder: Path) -> tuple[float, list[tuple[float, float]]]:
    """Train until the target. Return (seconds until then, or 0; (seconds, mIoU) of each validation)."""
    start, found = time.monotonic(), []
    process = subprocess.Popen([sys.executable, str(ROOT / "train.py"), *flags], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        is_over, reached = False, list[float]()
        while not (is_over or reached):
            time.sleep(0.2)
            is_over = process.poll() is not None  # before the last look at the file
            found += [(time.monotonic() - start, miou) for miou in read_scores(folder / "metrics.jsonl")[len(found) :]]
            reached = [at for at, miou in found if miou >= TARGET]
    finally:
        process.terminate()
        process.wait()
    assert reached or process.returncode == 0, f"train.py ended with {process.returncode}"
    return (reached[0] if reached else 0.0), found


def read_scores(file: Path) -> list[float]:
    """Return the mIoU of each validation so far. A line may be half written."""
    lines = file.read_text().split("\n")[:-1] if file.is_file() else []
    return [line["miou"] for line in map(json.loads, lines) if line["kind"] == "val"]


if __name__ == "__main__":
    main()
