"""The training steps that benchmarks/roofline.py counts: ours, torchvision's, and the losses in their plain form."""

import argparse
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor

from benchmarks.absent_gpu import CUDA, absent_gpu
from benchmarks.operations import Recorder
from benchmarks.our_step import our_step, pixel_kernel_on
from distributed.precision import DTYPES
from flags import parse_flags
from losses.criterion import Criterion
from support.batch import Batch


def ours(args: argparse.Namespace, recorder: Recorder, *flags: str, world_size: int = 1) -> None:
    """Record a training step of a run with these flags besides those of the command line, on one of the ranks."""
    words = ["--crop_size", str(args.crop_size), "--batchsize", str(args.batchsize), "--amp", args.amp]
    words += ["--numclasses", str(args.numclasses), "--pretrained", "none", "--layers", "50", "--fused_blocks", "on"]
    with our_step(parse_flags([*words, *flags]), recorder, world_size) as (step, state):
        recorder.hold([*state.raw_model.parameters(), *state.raw_model.buffers()])
        recorder.hold(values["momentum_buffer"] for values in state.optimizer.state.values())
        step()


def torchvision_step(args: argparse.Namespace, recorder: Recorder) -> None:
    """Record train_one_epoch's step of torchvision's references/segmentation: deeplabv3_resnet50, cross entropy."""
    recorder.check_copies = recorder.recording = False
    with absent_gpu(recorder):
        build = torchvision.models.segmentation.deeplabv3_resnet50
        model = build(weights=None, weights_backbone=None, num_classes=args.numclasses).train().to(CUDA)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
        scaler = torch.amp.GradScaler("cuda") if args.amp == "fp16" else None
        shape = (args.batchsize, args.crop_size, args.crop_size)
        images, targets = torch.zeros(args.batchsize, 3, *shape[1:]), torch.zeros(shape, dtype=torch.int64)

        def step() -> None:
            image, target = images.to(CUDA, non_blocking=True), targets.to(CUDA, non_blocking=True)
            with torch.autocast("cuda", dtype=DTYPES[args.amp], enabled=args.amp != "none"):
                loss = F.cross_entropy(model(image)["out"], target, ignore_index=255)
            optimizer.zero_grad()
            (loss if scaler is None else scaler.scale(loss)).backward()
            optimizer.step()

        step()  # makes the momentum
        optimizer.zero_grad()
        recorder.recording = True
        recorder.hold([*model.parameters(), *model.buffers()])
        recorder.hold(values["momentum_buffer"] for values in optimizer.state.values())
        step()


def losses_alone(args: argparse.Namespace, recorder: Recorder, plain: bool) -> None:
    """Record the four pixel losses from logits at stride 8 to their gradient: ours or in their plain form."""
    criterion = Criterion({"seg": 1.0, "pseudo": 1.0, "ds": 1.0, "dc": 1.0}, label_smooth=0.1)
    side = (args.crop_size + 7) // 8
    dtype = DTYPES[args.amp] or torch.float32
    with absent_gpu(recorder), pixel_kernel_on(recorder):
        logits = torch.empty(args.batchsize, args.numclasses, side, side, device=CUDA, dtype=dtype, requires_grad=True)
        shape = (args.batchsize, args.crop_size, args.crop_size)
        names = ("label", "pseudo", "distance_s", "distance_c")
        maps = {name: torch.empty(shape, dtype=torch.uint8, device=CUDA) for name in names}
        batch = Batch(torch.empty((*shape, 3), dtype=torch.uint8, device=CUDA), **maps)
        if plain:
            loss = plain_losses(logits, batch, 0.1)
        else:
            loss, _ = criterion({"logits": logits}, batch, [1.0] * len(criterion.names))
        loss.backward()


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


def _ours(*flags: str, world_size: int = 1) -> Callable[[argparse.Namespace, Recorder], None]:
    return lambda args, recorder: ours(args, recorder, *flags, world_size=world_size)


FIVE_LOSSES = ("--model_type", "res50_ASPP_lorm", "--dataset", "ScribblePseudoDsDc")
STEPS: dict[str, Callable[[argparse.Namespace, Recorder], None]] = {
    "res50_ASPP_lorm": _ours(*FIVE_LOSSES),
    "without_lorm": _ours(*FIVE_LOSSES, "--l_lorm", "0"),
    "deeplabv3": _ours("--model_type", "deeplabv3", "--dataset", "Dense"),
    "deeplabv3_not_fused": _ours("--model_type", "deeplabv3", "--dataset", "Dense", "--fused_blocks", "off"),
    "deeplabv3_of_8": _ours("--model_type", "deeplabv3", "--dataset", "Dense", world_size=8),
    "torchvision": torchvision_step,
    "losses": partial(losses_alone, plain=False),
    "plain_losses": partial(losses_alone, plain=True),
}
