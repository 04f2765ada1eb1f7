"""A training step on the CPU: ours against torchvision's loop, SMP's model, and the release's five losses and LoRM.

python benchmarks/step.py    # the table of benchmarks/RESULTS.md

One process, a batch of random images and labels. A step is forward, losses, backward and SGD with momentum, without
the loader. The peers are torchvision's deeplabv3_resnet50 and SMP's DeepLabV3+, with cross entropy of full-size logits:
in contiguous float32, as in torchvision's references/segmentation/train.py, and with model and images in channels-last
order. SMP's head has separable convolutions: 92 instead of our 155 billion products for an image of 465. "plain" is our
model from separate modules, with losses and LoRM written as the release does: logits at full size, and all (H*W)^2
similarities. Our losses must equal plain's.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from dataclasses import replace

import models
from benchmarks.measure import add_flags, measure, save, table
from data.histogram import count_batch
from distributed.precision import DTYPES, autocast
from losses.criterion import Criterion
from models.captured import capture_network
from models.compiled import compile_blocks
from models.layers.convolution import Conv2d
from models.lorm import LoRM, find_foreground, foreground_mask
from models.memory import fuse_blocks
from models.segmenter import Segmenter
from support.batch import Batch
from training.optimizers import make_optimizer

MODEL_TYPES = ("deeplabv3", "deeplabv3p", "res50_ASPP_lorm")
OF_PEER = {"deeplabv3": "torchvision", "deeplabv3p": "SMP's DeepLabV3+"}
NUM_CLASSES = 21
CPU = torch.device("cpu")
SGD = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}
Step = Callable[[], list[float]]  # does a step; returns the first step's loss and norm of the gradient


def batch_of(batchsize: int, crop_size: int) -> Batch:
    """Return a batch of noise. Three quarters of the pseudo-label are background, and 3 % of the label are labelled."""
    torch.manual_seed(0)
    shape = (batchsize, crop_size, crop_size)
    pseudo = torch.zeros(shape, dtype=torch.uint8)
    pseudo[:, : crop_size // 2, : crop_size // 2] = torch.randint(1, NUM_CLASSES, (batchsize, 1, 1)).to(torch.uint8)
    label = torch.where(torch.rand(shape) < 0.03, pseudo, 255).to(torch.uint8)
    distances = {name: torch.randint(0, 256, shape, dtype=torch.uint8) for name in ("distance_s", "distance_c")}
    image = torch.randint(0, 256, (*shape, 3), dtype=torch.uint8)
    batch = Batch(image, label, pseudo, **distances)
    return replace(batch, counts=count_batch(batch))


def our_model(name: str) -> Segmenter:
    torch.manual_seed(1)
    model = models.build(name, layers=50, num_classes=NUM_CLASSES).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # both ways compute the same
    return model


def ours(
    name: str,
    amp: str,
    batchsize: int,
    crop_size: int,
    device: torch.device = CPU,
    *,
    fused: bool = True,
    compiled: bool = False,
    graph: bool = False,
) -> Step:
    """Return our step: what train.Trainer.train_step does in one process without accumulation.

    fused, compiled, graph: as --fused_blocks on, --compile and --cuda_graph.
    """
    batch, model = batch_of(batchsize, crop_size), our_model(name).to(device, memory_format=torch.channels_last)
    fuse_blocks(model, fused)
    if compiled:
        compile_blocks(model)
    if graph:
        capture_network(model, batch.image.to(device), DTYPES[amp])
        assert model.captured is not None, "the network was not captured"
    weights = dict.fromkeys(("seg", "pseudo", "lorm", "ds", "dc") if model.lorm else ("seg",), 1.0)
    smooth = 0.1 if model.lorm else 0.0
    criterion = Criterion(weights, label_smooth=smooth, lorm_terms=model.backbone.channels[-1])
    if model.lorm:
        size = model.backbone.feature_size(crop_size, crop_size)
        batch = replace(batch, foreground=find_foreground(batch.maps["pseudo"], size=size))
    here = batch.to(device)

    def forward() -> Tensor:
        divisors = criterion.counts(here).tolist()
        with autocast(amp, device):
            outputs = model(here.image, here.foreground)
        return criterion(outputs, here, divisors)[0]

    return step_of(model, forward, fused_update=device.type == "cuda", keeps_gradients=graph)


def torchvision_model() -> nn.Module:
    """Return deeplabv3_resnet50. Its layer4 has dilations 4, 4, 4, and ours 4, 8, 16."""
    import torchvision

    build = torchvision.models.segmentation.deeplabv3_resnet50
    return build(weights=None, weights_backbone=None, aux_loss=None, num_classes=NUM_CLASSES)


def smp_model() -> nn.Module:
    """Return segmentation_models.pytorch's DeepLabV3+ at output stride 8."""
    import segmentation_models_pytorch as smp

    options = {"encoder_weights": None, "encoder_output_stride": 8, "classes": NUM_CLASSES}
    return smp.DeepLabV3Plus("resnet50", **options)


class Peer(NamedTuple):
    package: str
    build: Callable[[], nn.Module]
    multiple: int  # image sides must be multiples of this; crops are rounded down, in the peer's favour


PEERS = {
    "torchvision": Peer("torchvision", torchvision_model, 1),
    "SMP's DeepLabV3+": Peer("segmentation_models_pytorch", smp_model, 8),
}


def peer_loop(
    peer: Peer,
    batchsize: int,
    crop_size: int,
    device: torch.device = CPU,
    amp: str = "none",
    *,
    channels_last: bool = False,
    compiled: bool = False,
) -> Step:
    """Return a step of a peer's model with torchvision's loop. channels_last: model and images are in this order."""
    batch = batch_of(batchsize, crop_size - crop_size % peer.multiple)
    image, label = normalised(batch.image, our_model("deeplabv3")), batch.maps["label"].long()
    order = torch.channels_last if channels_last else torch.contiguous_format
    model = peer.build().train().to(device, memory_format=order)
    if compiled:
        model.compile()
    image, label = image.to(device, memory_format=order), label.to(device)

    def forward() -> Tensor:
        with autocast(amp, device):
            outputs = model(image)
            return F.cross_entropy(outputs["out"] if isinstance(outputs, dict) else outputs, label, ignore_index=255)

    return step_of(model, forward)


def plain(name: str, batchsize: int, crop_size: int) -> Step:
    """Return a step of our model with separate modules, contiguous float32 and losses in their plain form."""
    batch, model = batch_of(batchsize, crop_size), our_model(name)
    fuse_blocks(model, False)
    for module in model.modules():
        if isinstance(module, Conv2d):
            module.__class__ = nn.Conv2d
    image, label = normalised(batch.image, model), batch.maps["label"].long()
    foreground = foreground_mask(batch.maps["pseudo"], model.backbone.feature_size(crop_size, crop_size))

    def forward() -> Tensor:
        features = model.backbone(image)
        logits = model.head(features)
        if model.lorm is not None:
            return plain_losses(logits, batch, 0.1) + plain_lorm(model.lorm, features[-1], foreground)
        full = F.interpolate(logits, size=label.shape[1:], mode="bilinear", align_corners=True)
        return F.cross_entropy(full, label, ignore_index=255)

    return step_of(model, forward)


def plain_losses(logits: Tensor, batch: Batch, smooth: float) -> Tensor:
    """Return the sum of the losses as one writes them down: logits at full size, each loss by itself."""
    full = F.interpolate(logits.float(), size=batch.image.shape[1:3], mode="bilinear", align_corners=True)
    loss = F.cross_entropy(full, batch.maps["label"].long(), ignore_index=255)
    loss = loss + F.cross_entropy(full, batch.maps["pseudo"].long(), ignore_index=255, label_smoothing=smooth)
    for name in ("distance_s", "distance_c"):
        probs = full.softmax(1)
        entropy = -(probs * torch.log(probs + 1e-8)).sum(1)
        weight = batch.maps[name].float() / 255
        loss = loss + (weight * entropy).sum() / (weight > 0).sum().clamp(min=1)
    return loss


def plain_lorm(lorm: LoRM, x: Tensor, foreground: Tensor) -> Tensor:
    """Return LoRM's loss over the foreground, through all (H*W)^2 similarities, as the release computes them."""
    query, key = (F.normalize(conv(x).flatten(2), dim=1) for conv in (lorm.query_conv, lorm.key_conv))
    inside, value = foreground.flatten(1), x.flatten(2)
    similarity = (query.transpose(1, 2) @ key).softmax(2) * inside.unsqueeze(2)
    rectified = lorm.gamma * (value @ similarity.transpose(1, 2))
    return ((value - rectified).square() * inside.unsqueeze(1)).sum() / (inside.sum() * x.shape[1])


def normalised(images: Tensor, model: Segmenter) -> Tensor:
    return ((images.permute(0, 3, 1, 2) - model.mean) / model.std).contiguous()


def step_of(
    model: nn.Module, forward: Callable[[], Tensor], *, fused_update: bool = False, keeps_gradients: bool = False
) -> Step:
    optimizer = make_optimizer("sgd", [{"params": list(model.parameters())}], fused=fused_update, **SGD)
    first: list[float] = []

    def step() -> list[float]:
        loss = forward()
        optimizer.zero_grad(set_to_none=not keeps_gradients)
        loss.backward()
        optimizer.step()
        if not first:
            norms = torch._foreach_norm([parameter.grad for parameter in model.parameters()])
            first.extend([loss.item(), torch.stack(norms).norm().item()])
        return first

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_types", nargs="+", default=MODEL_TYPES, choices=MODEL_TYPES, help="[all]")
    parser.add_argument("--batchsize", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--crop_size", type=int, default=193, help="[%(default)s]")
    parser.add_argument("--calls", type=int, default=3, help="steps of a measurement [%(default)s]")
    add_flags(parser, "step")
    args = parser.parse_args()
    size = (args.batchsize, args.crop_size)
    figures = {}
    for name in args.model_types:
        ways: dict[str, Callable[[], Step]] = {}
        if name in OF_PEER:
            peer, loop = OF_PEER[name], partial(peer_loop, PEERS[OF_PEER[name]], *size)
            ways[peer] = loop
            for amp in ("none", "bf16"):
                ways[f"{peer}, channels-last, {amp}"] = partial(loop, amp=amp, channels_last=True)
        ways["plain"] = partial(plain, name, *size)
        ways |= {f"ours, {amp}": partial(ours, name, amp, *size) for amp in ("none", "bf16")}
        figures[name], results = measure(ways, rounds=args.rounds, calls=args.calls, threads=args.threads)
        print(f"{name}, first step's loss and norm of the gradient: {results}")
        # Batch norm amplifies rounding: in image pooling it normalises two values a channel.
        for found, expected, tolerance in zip(results["ours, none"], results["plain"], (1e-4, 1e-2), strict=True):
            assert abs(found - expected) < tolerance * expected, results
        print(table(figures[name], baseline=next(iter(ways)), title=name))
    save(args.out, figures)


if __name__ == "__main__":
    main()
