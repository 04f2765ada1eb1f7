"""Print the estimated GPU memory of a training process, by model, crop, batch and precision, as a Markdown table.

python -m benchmarks.memory_table

Estimates of benchmarks/memory.py for 21 classes: weights, gradients, momentum and activations, without what CUDA's
libraries take. Each cell has float32 / --amp bf16, in GiB.
"""

import torch

import models
from benchmarks.memory import summarize
from losses.criterion import Criterion

DENSE = {"seg": 1.0}
CDSP = {"seg": 1.0, "pseudo": 1.0, "lorm": 1.0, "ds": 1.0, "dc": 1.0}
MODELS = (("res50_ASPP", DENSE, (18, 50, 101)), ("res50_ASPP_lorm", CDSP, (50,)), ("deeplabv3p", DENSE, (50, 101)))
CROPS = (321, 465, 769)
BATCHES = (1, 4, 16)


def gib(name: str, layers: int, terms: dict[str, float], crop_size: int, batchsize: int, amp: str) -> float:
    with torch.device("meta"):
        model = models.build(name, layers=layers, num_classes=21)
    summary = summarize(model, Criterion(terms), batchsize=batchsize, crop_size=crop_size, amp=amp)
    return summary.memory / 2**30


def main() -> None:
    print("| `--model_type` | `--layers` | `--crop_size` | " + " | ".join(f"batch {size}" for size in BATCHES) + " |")
    print("| --- | --- | --- | " + " | ".join("---" for _ in BATCHES) + " |")
    for name, terms, depths in MODELS:
        for layers in depths:
            for crop in CROPS:
                cells = [
                    " / ".join(f"{gib(name, layers, terms, crop, size, amp):.1f}" for amp in ("none", "bf16"))
                    for size in BATCHES
                ]
                print(f"| `{name}` | {layers} | {crop} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
