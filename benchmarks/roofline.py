r"""Time and memory of a training step on a GPU that is not there, by counting. No figure here is a measurement.

python benchmarks/roofline.py                                   # H100, float32, batch 16, crop 465, 21 classes
python benchmarks/roofline.py --amp bf16 --steps res50_ASPP_lorm torchvision plain_losses
python benchmarks/roofline.py --gpu rtx4090 --batchsize 4 --kinds 12
python benchmarks/roofline.py --gpu cpu --batchsize 2 --crop_size 193    # one core: LIMITS.md

The step runs on tensors without values (benchmarks/absent_gpu.py). Each operation takes the longest of: its bytes by
the device's bandwidth, its FLOPs by the device's peak, and one call. It reads each operand once (batch norm in training
twice: for its sums, then for its values) and writes each result once, however often its kernel really does; peaks are
never reached. So the times are limits, to compare steps and to see what counts.

"Compiled" is the limit of fusion: in each run of pointwise operations, every operand made outside the run is read once,
and every result that is used outside the run is written once. Batch norm's sums end a run, and its values begin the
next; all other operations stand alone. Memory is as dispatched, without compilation.
"""

import argparse
import dataclasses
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.measure import save
from benchmarks.operations import Operation, Recorder
from benchmarks.peer_steps import STEPS


@dataclass(frozen=True)
class Device:
    """bandwidth in GB/s, peaks in TFLOP/s without sparsity, and microseconds of the CPU for one call."""

    bandwidth: float
    float32: float
    tf32: float
    half: float  # bf16 and fp16, sums in float32
    call_us: float = 4.0

    def seconds(self, flops: int, num_bytes: int, dtype: torch.dtype, tf32: bool) -> float:
        peak = {torch.float32: self.tf32 if tf32 else self.float32}.get(dtype, self.half)
        return max(num_bytes / self.bandwidth / 1e9, flops / peak / 1e12, self.call_us / 1e6)


# From NVIDIA's data sheets; "cpu": one core of the machine in RESULTS.md, measured by benchmarks/limits.py.
DEVICES = {
    "h100": Device(3350, 67, 494, 989),  # SXM
    "h200": Device(4800, 67, 494, 989),
    "a100": Device(2039, 19.5, 156, 312),  # SXM, 80 GB
    "rtx4090": Device(1008, 82.6, 82.6, 165.2),
    "cpu": Device(21, 0.092, 0.092, 0.2, 2.0),
}


def eager(operations: list[Operation], device: Device) -> dict[str, float]:
    """Return {kind: seconds}, each operation by itself."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for op in operations:
        seconds[op.kind] += device.seconds(op.flops, op.bytes, op.dtype, op.tf32)
    return dict(seconds)


def compiled(operations: list[Operation], device: Device) -> dict[str, float]:
    """Return {kind: seconds} with runs of pointwise operations fused into one ("pointwise and batch norm")."""
    last_read = {key: number for number, op in enumerate(operations) for key in op.reads}
    seconds: defaultdict[str, float] = defaultdict(float)
    run: list[Operation] = []

    def end_run(next_number: int) -> None:
        if run:
            made: set[int] = set()
            reads: dict[int, int] = {}
            writes: dict[int, int] = {}
            for op in run:
                reads |= {key: size for key, size in op.reads.items() if key not in made and key not in reads}
                made |= set(op.writes) - set(reads)
                writes |= op.writes
            # What existed before (in-place) and what is read later must be written; all else stays in registers.
            used = {*reads, *(key for key in writes if last_read.get(key, -1) >= next_number)}
            kept = {key: size for key, size in writes.items() if key in used}
            num_bytes = sum(reads.values()) + sum(kept.values())
            seconds["pointwise and batch norm"] += device.seconds(0, num_bytes, torch.float32, tf32=False)
            run.clear()

    for number, op in enumerate(operations):
        if op.reads_twice:
            run.append(dataclasses.replace(op, writes={}))  # its sums
            end_run(number)
            run.append(op)
        elif op.pointwise:
            run.append(op)
        else:
            end_run(number)
            seconds[op.kind] += device.seconds(op.flops, op.bytes, op.dtype, op.tf32)
    end_run(len(operations))
    return dict(seconds)


def report(name: str, recorder: Recorder, device: Device, num_kinds: int) -> dict:
    """Print a step's counts, and return them."""
    operations = recorder.operations
    times = {"eager": eager(operations, device), "compiled": compiled(operations, device)}
    figures = {
        "ms": {way: 1e3 * sum(seconds.values()) for way, seconds in times.items()},
        "ms_by_kind": {way: {kind: 1e3 * value for kind, value in times[way].items()} for way in times},
        "peak_gib": recorder.peak / 2**30,
        "tflop": sum(op.flops for op in operations) / 1e12,
        "tflop_useful": sum(op.useful for op in operations) / 1e12,
        "gib_moved": sum(op.bytes for op in operations) / 2**30,
        "calls": len(operations),
    }
    print(
        f"| {name} | {figures['ms']['eager']:.1f} | {figures['ms']['compiled']:.1f} | {figures['peak_gib']:.1f} "
        f"| {figures['tflop']:.3f} | {figures['tflop_useful']:.3f} | {figures['gib_moved']:.0f} | {figures['calls']} |"
    )
    for way in times if num_kinds else ():
        largest = sorted(times[way].items(), key=lambda item: -item[1])[:num_kinds]
        print(f"  {way}: " + ", ".join(f"{kind} {1e3 * value:.1f}" for kind, value in largest))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS), help="[all]")
    parser.add_argument("--gpu", choices=DEVICES, default="h100")
    parser.add_argument("--amp", choices=("none", "bf16", "fp16"), default="none")
    parser.add_argument("--batchsize", type=int, default=16)
    parser.add_argument("--crop_size", type=int, default=465)
    parser.add_argument("--numclasses", type=int, default=21)
    parser.add_argument("--kinds", type=int, default=8, help="print this many kinds of operations, 0: none")
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    device = DEVICES[args.gpu]
    print(
        f"A count, not a measurement: {args.gpu} ({device}), --amp {args.amp}, batch {args.batchsize}, crop "
        f"{args.crop_size}, {args.numclasses} classes\n\n"
        f"| step | ms, eager | ms, compiled | peak, GiB | TFLOP | without padding | GiB moved | calls |\n"
        f"{'| --- ' * 8}|"
    )
    figures = {}
    for name in args.steps:
        recorder = Recorder()
        STEPS[name](args, recorder)
        figures[name] = report(name, recorder, device, args.kinds)
    if args.out:
        save(args.out, figures)


if __name__ == "__main__":
    main()
