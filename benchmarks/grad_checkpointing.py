"""What gradient checkpointing saves and costs: estimated at the recipe, measured at a smaller size on the CPU.

python benchmarks/grad_checkpointing.py
python benchmarks/grad_checkpointing.py --model_type res50_ASPP --crop_size 129    # another model

Memory: the peak that resident memory grew by in a fresh process that trains for two steps, besides the summary's
estimate (benchmarks/memory.py) of the same. Time: steps with and without in turn.
"""

import argparse
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import models
from benchmarks.memory import Summary, summarize
from losses.criterion import Criterion
from models.foreground import find_foreground, foreground_of

NUM_CLASSES = 21


def make_criterion(model_type: str) -> Criterion:
    weights = {"seg": 1.0, "pseudo": 1.0, "ds": 1.0, "dc": 1.0}
    return Criterion(weights | ({"lorm": 1.0} if models.MODELS[model_type].has_lorm else {}), 0.1)


def estimate(args, grad_checkpointing: bool, batchsize: int, crop_size: int, amp: str) -> Summary:
    options = {"layers": args.layers, "num_classes": NUM_CLASSES, "grad_checkpointing": grad_checkpointing}
    with torch.device("meta"):
        model = models.build(args.model_type, **options)
    return summarize(model, make_criterion(args.model_type), batchsize=batchsize, crop_size=crop_size, amp=amp)


def trainer(args, grad_checkpointing: bool) -> Callable[[], None]:
    """A function that trains for one step."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = models.build(
        args.model_type, layers=args.layers, num_classes=NUM_CLASSES, grad_checkpointing=grad_checkpointing
    ).train()
    model = model.to(memory_format=torch.channels_last)
    criterion = make_criterion(args.model_type)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)
    label = torch.randint(0, NUM_CLASSES, (args.batchsize, args.crop_size, args.crop_size), dtype=torch.uint8)
    batch = dict.fromkeys(("label", "pseudo", "distance_s", "distance_c"), label)
    batch["image"] = torch.randint(0, 256, (*label.shape, 3), dtype=torch.uint8)
    counts, size = [float(label.numel())] * len(criterion.names), model.backbone.feature_size(*label.shape[1:])
    foreground = foreground_of(find_foreground({"pseudo": label}, size=size), label.device)

    def step() -> None:
        outputs = model(batch["image"], foreground)
        criterion(outputs, batch, counts)[0].backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(args, grad_checkpointing: bool, results) -> None:
    """Put into the queue by how many MiB the peak of this process's memory grew in two steps."""
    step = trainer(args, grad_checkpointing)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    step()
    results.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_type", default="res50_ASPP_lorm", choices=models.MODELS)
    parser.add_argument("--layers", type=int, default=50)
    parser.add_argument("--batchsize", type=int, default=2)
    parser.add_argument("--crop_size", type=int, default=233)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    print(f"{args.model_type}, ResNet-{args.layers}, torch {torch.__version__}, {args.threads} thread(s)")
    print("16 images of 465x465, estimated:")
    for amp in ("none", "bf16"):
        without, using = (estimate(args, on, 16, 465, amp) for on in (False, True))
        print(
            f"--amp {amp}: kept for the backward pass {without.kept / 2**30:.2f} GiB, with checkpointing "
            f"{using.kept / 2**30:.2f}; "
            f"in all {without.memory / 2**30:.2f} and {using.memory / 2**30:.2f} "
            f"({using.memory / without.memory:.2f} times), "
            f"FLOPs of a step {using.train_flops / without.train_flops:.2f} times"
        )
    print(f"{args.batchsize} images of {args.crop_size}x{args.crop_size}, measured:")
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # what is freed goes back, and the peak is that of live tensors
    context = multiprocessing.get_context("spawn")
    for on in (False, True):
        results = context.Queue()
        process = context.Process(target=measure, args=(args, on, results))
        process.start()
        grown = results.get()
        process.join()
        guess = estimate(args, on, args.batchsize, args.crop_size, "none")
        low, high = (
            (size - guess.states["weights"]) / 2**20
            for size in (guess.memory - guess.states["gradients"], guess.memory)
        )
        print(
            f"{'with' if on else 'without':8s} {grown:6.0f} MiB more than before training; estimated {high:.0f}, "
            f"without the gradients, which come as activations go, {low:.0f}"
        )
    ways = {on: trainer(args, on) for on in (False, True)}
    seconds: dict[bool, list[float]] = {on: [] for on in ways}
    for number in range(args.repeats + 1):
        for on, step in ways.items():
            began = time.perf_counter()
            step()
            if number:  # the first warms up
                seconds[on].append(time.perf_counter() - began)
    ratios = [using / without for using, without in zip(seconds[True], seconds[False], strict=True)]
    print(f"{spread(seconds[False])} s a step, with checkpointing {spread(seconds[True])}: {spread(ratios)} times")


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
