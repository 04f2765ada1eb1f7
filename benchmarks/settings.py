"""What settings of a training step bring on the CPU: --amp bf16, --ema, SGD in one kernel, --sync_bn on.

python benchmarks/settings.py

Weights are those of res50_ASPP_lorm; the step is a forward and backward pass of deeplabv3 (ResNet-50), batch 2, crop
193. Results are checked: EMA's are equal, SGD's and batch norm's to float32's rounding, bf16's loss to 1 %.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from measure import add_flags, measure, save, table

import models
from models.layers.norm import BatchNorm2d
from optimization.amp import autocast
from optimization.average import WeightAverage
from optimization.optimizers import FusedSGD

SAMPLE = 10  # weights to compare
CPU = torch.device("cpu")
SGD_OPTIONS = {"lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-4}


def build(name: str) -> models.Segmenter:
    torch.manual_seed(0)
    return models.build(name, layers=50, num_classes=21).to(memory_format=torch.channels_last).train()


def step(amp: str) -> Callable[[], Tensor]:
    model, images = build("deeplabv3"), torch.randint(0, 256, (2, 193, 193, 3), dtype=torch.uint8)

    def work() -> Tensor:
        torch.manual_seed(0)  # dropout
        model.zero_grad()
        with autocast(amp, CPU):
            logits = model(images)["logits"]
        loss = logits.float().square().mean()
        loss.backward()
        return loss.detach()

    return work


def average(ours: bool) -> Callable[[], list[nn.Parameter]]:
    model = build("res50_ASPP_lorm")
    ema = WeightAverage(model, 0.999) if ours else AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    update = ema.update if isinstance(ema, WeightAverage) else ema.update_parameters

    def work() -> list[Tensor]:
        update(model)
        return list(ema.module.parameters())[:SAMPLE]

    return work


def sgd(kind: type[torch.optim.SGD]) -> Callable[[], list[Tensor]]:
    weights: list[Tensor] = list(build("res50_ASPP_lorm").parameters())
    optimizer = kind(weights, **SGD_OPTIONS)
    for weight in weights:
        weight.grad = torch.randn_like(weight)

    def work() -> list[Tensor]:
        optimizer.step()
        return weights[:SAMPLE]

    return work


def batch_norm(synchronized: bool) -> Callable[[], Tensor]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    norm = BatchNorm2d(256)
    norm.synchronized = synchronized
    x = torch.randn(2, 256, 49, 49).to(memory_format=torch.channels_last).requires_grad_()

    def work() -> Tensor:
        x.grad = None
        norm(x).square().mul(x.detach()).sum().backward()
        assert x.grad is not None
        return x.grad

    return work


PARTS: dict[str, tuple[dict, float]] = {  # {title: ({way: function}, relative tolerance)}
    "step": ({"--amp none": partial(step, "none"), "--amp bf16": partial(step, "bf16")}, 1e-2),
    "--ema": ({"AveragedModel": partial(average, False), "ours": partial(average, True)}, 0.0),
    "SGD": ({"SGD": partial(sgd, torch.optim.SGD), "one kernel": partial(sgd, FusedSGD)}, 1e-5),
    "batch norm": (
        {"BatchNorm2d": partial(batch_norm, False), "--sync_bn on": partial(batch_norm, True)},
        1e-3,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, "settings")
    args = parser.parse_args()
    raw = {}
    for title, (ways, tolerance) in PARTS.items():
        calls = 1 if title == "step" else 10
        figures, results = measure(ways, rounds=args.rounds, calls=calls, threads=args.threads, memory=False)
        baseline, other = ways
        torch.testing.assert_close(results[other], results[baseline], rtol=tolerance, atol=tolerance / 10)
        print(table(figures, baseline, title), end="\n\n")
        raw[title] = figures
    save(args.out, raw)


if __name__ == "__main__":
    main()
