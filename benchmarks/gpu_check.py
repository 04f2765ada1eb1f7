"""Check segtrain's results on this machine's GPUs, and measure its speed: one command, no downloads.

python -m benchmarks.gpu_check                  # all GPUs of this machine; needs segtrain's own requirements only
python -m benchmarks.gpu_check --device cpu     # the same parts on the CPU, in small: to test this script

Each part runs in a process of its own, so that one that fails, even with an error of CUDA, does not stop the rest.
All of them take at most ten minutes: parts for which no time is left are skipped. Prints the parts, then a table of
the steps for benchmarks/RESULTS.md; SMP is a row of it if it is installed. Writes gpu_check.json: attach this file to
an issue as it is. The exit status is the number of failed parts; without a GPU it is 2.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import gpu_parts as parts
from benchmarks import gpu_runs as runs
from benchmarks import gpu_speed

ORDER = (
    *(parts.kernel, parts.losses, parts.fused_blocks, parts.batch_norm, parts.lorm, runs.loader, runs.ranks),
    *(runs.deterministic_resume, runs.compiled, runs.waits_and_memory, runs.cuda_graph, runs.block_choice),
    *(gpu_speed.speed, gpu_speed.slow_cpu, gpu_speed.choices, gpu_speed.compiled_speed, gpu_speed.speed_tf32),
    *(gpu_speed.loader_rate, gpu_speed.scaling),
)
PARTS: dict[str, Callable[[parts.Machine], str]] = {part.__name__: part for part in ORDER}
PART_SECONDS, ALL_SECONDS = 240, 600  # the most that a part may take, and all parts together
RESULT = "gpu_check: "  # begins a part's last line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="[%(default)s]")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="[%(default)s]")
    parser.add_argument("--here", help=argparse.SUPPRESS)  # the folder of one part, which then runs in this process
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no GPU: install its CUDA build and a driver, or use --device cpu")
        return 2
    if args.here:
        return run_here(args.parts[0], parts.Machine.of(args.device, Path(args.here)))
    try:
        args.out.write_text("")  # fail now, not after all parts
    except OSError as error:
        print(f"--out {args.out}: cannot be written ({error.strerror})", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # run_apart() then ends the part
    about = describe(args.device)
    print("\n".join(f"{name}: {value}" for name, value in about.items()) + "\n")
    results, end = {}, time.monotonic() + ALL_SECONDS
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for number, name in enumerate(args.parts, start=1):
            print(f"[{number}/{len(args.parts)}] {name} ...", end="\r", file=sys.stderr, flush=True)
            results[name] = run_apart(name, args.device, Path(folder), end - time.monotonic())
            print(f"{results[name]['status']:8} {name:22} {results[name]['seconds']:5.1f} s  {results[name]['text']}")
            args.out.write_text(json.dumps(about | {"parts": results}, indent=1) + "\n")
    print("\n".join(step_table(results)))
    failed = [name for name, result in results.items() if result["status"] == "FAILED"]
    print(
        f"\n{len(failed)} of {len(results)} parts failed{': ' * bool(failed)}{', '.join(failed)}; all of it: {args.out}"
    )
    return len(failed)


def step_table(results: dict[str, dict]) -> list[str]:
    """Return the lines of a Markdown table of the steps that the parts on speed measured."""
    keys = {"ms": "ms a step", "cpu_ms": "ms until launched", "launches": "launches"}
    keys |= {"gib": "GiB allocated", "reserved": "GiB reserved"}
    lines = [f"| | {' | '.join(keys.values())} |", "| --- " * (1 + len(keys)) + "|"]
    for part in ("speed", "compiled_speed", "speed_tf32"):
        for amp, ways in results.get(part, {}).get("figures", {}).items():
            for way, found in ways.items() if isinstance(ways, dict) else ():
                lines.append(f"| {way}, {amp} | {' | '.join(f'{found[key]:.1f}' for key in keys)} |")
    return lines if len(lines) > 2 else []


def run_apart(name: str, device: str, folder: Path, left: float) -> dict:
    """Run a part in a fresh process. Return its {"status", "text", "seconds", "figures", "output"}.

    left: seconds that all parts together may still take.
    """
    if left <= 0:
        return {"status": "skipped", "text": f"the parts before it took {ALL_SECONDS} s", "seconds": 0.0, "figures": {}}
    words = ["-m", "benchmarks.gpu_check", "--device", device, "--parts", name, "--here", str(folder)]
    start, seconds = time.monotonic(), min(left, PART_SECONDS)
    environment = dict(os.environ)
    if device == "cpu":
        environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    options = {"env": environment, "cwd": runs.ROOT, "start_new_session": True}
    part = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace", **options
    )
    try:
        output, status = "".join(part.communicate(timeout=seconds)), part.returncode
    except subprocess.TimeoutExpired:
        kill(part)
        output, status = "".join(part.communicate()) + f"\ndid not end within {seconds:.0f} s", 1
    finally:
        kill(part)
    lines = [line.removeprefix(RESULT) for line in output.splitlines() if line.startswith(RESULT)]
    ending = (output.strip().splitlines() or ["no output"])[-1]
    result = json.loads(lines[-1]) if lines else {"status": "FAILED", "text": f"status {status}: {ending}"[:200]}
    if result["status"] == "FAILED":
        result["output"] = output[-4000:]
    return result | {"seconds": round(time.monotonic() - start, 1)}


def kill(part: subprocess.Popen) -> None:
    """Kill a part, and the processes that it started, where the system has process groups."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(part.pid, signal.SIGKILL)
    else:
        part.kill()


def run_here(name: str, machine: parts.Machine) -> int:
    try:
        text, status = PARTS[name](machine), "ok"
    except parts.Skipped as reason:
        text, status = str(reason), "skipped"
    except Exception as error:
        traceback.print_exc()
        text, status = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200], "FAILED"
    print(f"{RESULT}{json.dumps({'status': status, 'text': text, 'figures': machine.figures})}", flush=True)
    return 0


def describe(device: str) -> dict:
    """Return what a figure depends on: versions, cards and driver."""
    about = {"python": platform.python_version(), "system": platform.platform(), "torch": torch.__version__}
    about["commit"] = output_of("git", "describe", "--always", "--dirty")
    about["triton"] = "not installed"
    with suppress(ImportError):
        import triton

        about["triton"] = triton.__version__
    if device == "cuda":
        about |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
        about["gpus"] = output_of(
            "nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv,noheader"
        )
    return about


def output_of(*command: str) -> str:
    """Return what a program prints, "unknown" if it is not installed."""
    try:
        return subprocess.run(command, cwd=runs.ROOT, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
