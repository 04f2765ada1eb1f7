"""Peak memory of evaluating one 2048x1024 image with 150 classes, and what of it is the model's own.

python benchmarks/evaluation_memory.py                      # ResNet-18, on the CPU
python benchmarks/evaluation_memory.py --layers 50 --device cuda

Each line is a process of its own that does the same work. The peak is the resident memory on the CPU, and that of
torch's allocator on CUDA.
"""

import argparse
import multiprocessing
import resource
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import models
from evaluation.predictor import Predictor

HEIGHT, WIDTH, CLASSES = 1024, 2048, 150
# What a way that holds full-size probabilities needs for them alone, in float32.
MAP_MIB = HEIGHT * WIDTH * CLASSES * 4 / 2**20

SETTINGS = {
    "model alone, whole image": None,
    "model alone, windows of 465": None,
    "whole image": {},
    "windows of 465": {"window": 465},
    "windows of 465, scales 0.5 1 2, flip": {"window": 465, "scales": (0.5, 1.0, 2.0), "flip": True},
}


def measure(name: str, layers: int, device: str, results) -> None:
    """Put (peak before, peak after, both in MiB, seconds) into the queue."""
    model = models.build("res50_ASPP", layers=layers, num_classes=CLASSES).eval()
    model = model.to(device).to(memory_format=torch.channels_last)
    image = torch.randint(0, 256, (1, HEIGHT, WIDTH, 3), dtype=torch.uint8, device=device)
    before, began = peak(device), time.perf_counter()
    with torch.inference_mode():
        settings = SETTINGS[name]
        if settings is not None:
            Predictor(model, **settings).labels(image)
        elif "windows" in name:
            for _ in range(4):
                model(image[:, :465, :465].expand(4, -1, -1, -1))
        else:
            model(image)
    if device != "cpu":
        torch.cuda.synchronize()
    results.put((before, peak(device), time.perf_counter() - began))


def peak(device: str) -> float:
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return torch.cuda.max_memory_allocated() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=18)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    print(f"ResNet-{args.layers}, {CLASSES} classes, {WIDTH}x{HEIGHT}, {args.device}, torch {torch.__version__}")
    print(f"one full-size map of probabilities: {MAP_MIB:.0f} MiB in float32; at scale 2, {4 * MAP_MIB:.0f} MiB")
    for name in SETTINGS:
        results = context.Queue()
        process = context.Process(target=measure, args=(name, args.layers, args.device, results))
        process.start()
        before, after, seconds = results.get()
        process.join()
        print(f"{name:40s} {after - before:6.0f} MiB more than before, {after:6.0f} in all; {seconds:.0f} s")


if __name__ == "__main__":
    main()
