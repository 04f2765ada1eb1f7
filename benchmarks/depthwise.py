"""Depthwise convolutions on the CPU, ours against torch's: the gradients of one, and a step of EfficientNet-Lite0.

python benchmarks/depthwise.py    # needs timm

The peer is torch's own backward pass. tests/test_depthwise.py compares the gradients.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import add_flags, measure, save, table
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import models
from models.layers.convolution import Conv2d
from models.layers.depthwise import depthwise_convolution

# EfficientNet-Lite0's at output stride 16 and crop 288: (channels, side of the input, kernel, stride, dilation)
CASES = {
    "5x5, dilation 2, 1152 x 18 x 18": (1152, 18, 5, 1, 2),
    "5x5, stride 2, 144 x 72 x 72": (144, 72, 5, 2, 1),
    "5x5, 672 x 18 x 18": (672, 18, 5, 1, 1),
    "3x3, stride 2, 96 x 144 x 144": (96, 144, 3, 2, 1),
    "3x3, 144 x 72 x 72": (144, 72, 3, 1, 1),
}
BATCH, CROP = 8, 288


def gradients(ours: bool, channels: int, side: int, size: int, stride: int, dilation: int, dtype: torch.dtype):
    """Return a function that computes both gradients of a depthwise convolution of BATCH maps."""
    torch.manual_seed(0)
    x = torch.randn(BATCH, channels, side, side).to(dtype).to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(channels, 1, size, size).to(dtype).requires_grad_()
    geometry = (stride, stride), (dilation * (size // 2),) * 2, (dilation, dilation)
    out = depthwise_convolution(x, weight, *geometry) if ours else F.conv2d(x, weight, None, *geometry, channels)
    grad = torch.randn_like(out)

    def work() -> list[torch.Tensor]:
        return [value.detach().sum() for value in torch.autograd.grad(out, (x, weight), grad, retain_graph=True)]

    return work


def step(ours: bool, dtype: torch.dtype):
    """Return a function that computes a forward and backward pass of the network with deeplabv3p_multi, 96 channels."""
    torch.manual_seed(0)
    model = models.build("deeplabv3p_multi", backbone="timm:tf_efficientnet_lite0", head_channels=96, num_classes=11)
    model = model.to(memory_format=torch.channels_last).train()
    if not ours:
        for module in model.modules():
            if isinstance(module, Conv2d) and module.groups > 1:
                module._conv_forward = partial(nn.Conv2d._conv_forward, module)
    images = torch.randint(0, 256, (BATCH, CROP, CROP, 3), dtype=torch.uint8)

    def work() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = model(images)["logits"]
        loss = logits.float().square().mean()
        loss.backward()
        return loss.item()

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, "depthwise")
    args = parser.parse_args()
    settings: dict = {"rounds": args.rounds, "threads": args.threads, "memory": False}
    everything = {}
    for dtype in (torch.bfloat16, torch.float32):
        for title, case in CASES.items():
            ways = {name: partial(gradients, name == "ours", *case, dtype) for name in ("torch", "ours")}
            everything[f"{title}, {dtype}"] = figures = measure(ways, calls=3, **settings)[0]
            print(table(figures, "torch", f"gradients: {title}, {str(dtype)[6:]}") + "\n")
        ways = {name: partial(step, name == "ours", dtype) for name in ("torch", "ours")}
        everything[f"step, {dtype}"] = figures = measure(ways, **settings)[0]
        print(table(figures, "torch", f"step, {str(dtype)[6:]}") + "\n")
    save(args.out, everything)


if __name__ == "__main__":
    main()
