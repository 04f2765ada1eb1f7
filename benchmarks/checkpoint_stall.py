"""How long a checkpoint holds up training: written in the background from a copy, or on the spot.

python benchmarks/checkpoint_stall.py

Trains ResNet-50-ASPP with LoRM on random batches on the CPU; modes take turns. "On the spot" is torch.save to a
temporary file, fsync and rename in the training thread, without a digest: what a careful script does.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import models
from models.foreground import find_foreground, foreground_of
from runs import checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="training steps for each checkpoint")
    args = parser.parse_args()
    model = models.build("res50_ASPP_lorm", layers=50, num_classes=21)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    images = torch.randint(0, 256, (2, 129, 129, 3), dtype=torch.uint8)
    pseudo = torch.randint(0, 21, (2, 129, 129), dtype=torch.uint8)

    found = find_foreground({"pseudo": pseudo}, size=model.backbone.feature_size(129, 129))
    foreground = foreground_of(found, torch.device("cpu"))

    def step() -> None:
        outputs = model(images, foreground)
        (outputs["logits"].square().mean() + 1e-6 * outputs["lorm"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    def content() -> dict:
        return {"step": 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}

    step()
    size = len(checkpoint.to_bytes(content()))
    with tempfile.TemporaryDirectory() as folder:
        path, writer = Path(folder) / "last.pt", checkpoint.Writer()

        def on_the_spot() -> None:
            scratch = path.with_suffix(".tmp")
            with scratch.open("wb") as file:
                torch.save(content(), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)

        def in_background() -> None:
            writer.save(content(), [path], {})

        modes = {"none": lambda: None, "on the spot": on_the_spot, "in background": in_background}
        held: dict[str, list[float]] = {name: [] for name in modes}
        total: dict[str, list[float]] = {name: [] for name in modes}
        for _ in range(args.repeats):
            for name, save in modes.items():
                began = time.perf_counter()
                save()
                held[name].append(time.perf_counter() - began)
                for _ in range(args.steps):
                    step()
                total[name].append(time.perf_counter() - began)
                writer.wait()
    copy = time.perf_counter()
    torch.empty(size, dtype=torch.uint8).copy_(torch.zeros(size, dtype=torch.uint8))
    copy = time.perf_counter() - copy
    print(f"checkpoint of {size / 2**20:.0f} MiB; a plain copy of it takes {copy:.2f} s; {args.steps} steps each")
    for name in modes:
        cost = [other - none for other, none in zip(total[name], total["none"], strict=True)]
        print(f"{name:14s} held {spread(held[name])} s; save and steps {spread(total[name])} s, {spread(cost)} s more")
    ratios = [spot / background for spot, background in zip(held["on the spot"], held["in background"], strict=True)]
    print(f"held on the spot / in background: {spread(ratios)}")


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
