"""What the losses for sparse labels add to a training step: CPU time, memory, and the time of a loader process.

python benchmarks/sparse_losses.py                # both networks; the second one needs timm
python benchmarks/sparse_losses.py --rounds 5 --amp none

A step is a forward and backward pass with cross entropy on scribbles. What a loss adds is far less than a step's time
varies, so it is measured by itself: the loss and its gradient by the logits, and for consistency the teacher's pass.
"plain crf" is the gated CRF loss from all pairs at once, by F.unfold and autograd; its value and gradient must equal
ours. The memory that a loss adds to the peak of a step is counted, by benchmarks/memory.py.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from measure import add_flags, measure, save, table

import models
from benchmarks.memory import summarize
from benchmarks.roofline import DEVICES
from data.augment.jitter import ColourJitter
from data.augment.sparse import SparseTransform
from data.augment.transforms import TrainTransform
from data.loader import keep_freed_memory
from losses.criterion import Criterion
from losses.gated_crf import RADIUS, SIGMA_COLOUR, SIGMA_PLACE
from models.segmenter import Segmenter
from optimization.amp import autocast
from optimization.average import WeightAverage
from optimization.teacher import Teacher

BATCH, CROP, CLASSES = 8, 288, 11
NETWORKS: dict[str, dict] = {
    "res50_ASPP_lorm, ResNet-50": {"name": "res50_ASPP_lorm", "layers": 50},
    "deeplabv3p_multi, EfficientNet-Lite0": {
        "name": "deeplabv3p_multi", "backbone": "timm:tf_efficientnet_lite0", "head_channels": 96,
    },
}  # fmt: skip
WEIGHTS = {"crf": 0.1, "absent": 1.0, "consistency": 1.0}
WAYS = ("step", *WEIGHTS, "plain crf")
CPU = torch.device("cpu")
Work = Callable[[], tuple[float, Tensor | None]]  # returns the loss and its gradient by the logits


def build(network: str) -> Segmenter:
    torch.manual_seed(0)
    return models.build(**NETWORKS[network], num_classes=CLASSES).to(memory_format=torch.channels_last).train()


def make_batch() -> dict[str, Tensor]:
    """Return a batch of noise with scribbles on 3 % of the pixels, half of the classes in each image, no padding."""
    torch.manual_seed(0)
    shape = (BATCH, CROP, CROP)
    label = torch.randint(0, CLASSES // 2, shape, dtype=torch.uint8)
    label[torch.rand(shape) > 0.03] = 255
    image = torch.randint(0, 256, (*shape, 3), dtype=torch.uint8)
    present = (torch.arange(CLASSES) < CLASSES // 2).to(torch.uint8).expand(BATCH, -1)
    inside = torch.ones(shape, dtype=torch.uint8)
    return {"image": image, "strong": image, "label": label, "inside": inside, "present": present}


def prepare(network: str, way: str, amp: str) -> Work:
    """Return the function to measure: a step, or what a loss adds to it."""
    model, batch = build(network), make_batch()
    with torch.no_grad(), autocast(amp, CPU):
        values = model(batch["image"])["logits"].float()
    if way == "step":
        return partial(step, model, batch, amp)
    logits = values.contiguous().requires_grad_()
    if way == "plain crf":
        return partial(gradient_of, lambda: plain_crf(logits, batch["image"]), logits)
    criterion = Criterion({way: 1.0})
    divisors = criterion.counts(batch).tolist()
    teacher = Teacher(WeightAverage(model, 0.99), amp, 0.9, 0.0, 1) if way == "consistency" else None

    def loss() -> Tensor:
        found = teacher(batch["image"], 0, 0) if teacher else {}
        return criterion({"logits": logits}, batch | found, divisors)[0]

    return partial(gradient_of, loss, logits)


def step(model: Segmenter, batch: dict[str, Tensor], amp: str) -> tuple[float, None]:
    model.zero_grad()
    criterion = Criterion({"seg": 1.0})
    with autocast(amp, CPU):
        outputs = model(batch["strong"])
    loss, _ = criterion(outputs, batch, criterion.counts(batch).tolist())
    loss.backward()
    return loss.item(), None


def gradient_of(loss_of: Callable[[], Tensor], logits: Tensor) -> tuple[float, Tensor]:
    loss = loss_of()
    [gradient] = torch.autograd.grad(loss, logits)
    return loss.item(), gradient


def plain_crf(logits: Tensor, images: Tensor) -> Tensor:
    """Return the gated CRF loss from all (2 RADIUS + 1)^2 neighbours of each position at once, without padding."""
    num_images, _, height, width = logits.shape
    upsample = partial(F.interpolate, size=images.shape[1:3], mode="bilinear", align_corners=True)
    pixels = images.permute(0, 3, 1, 2).float() / 255
    zeros = torch.zeros(num_images, 4, height, width, requires_grad=True)
    seen = upsample(zeros) * torch.cat([pixels, torch.ones_like(pixels[:, :1])], 1)
    [sums] = torch.autograd.grad(seen.sum(), zeros)  # the transposed upsampling
    places = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")).float()
    features = torch.cat(
        [sums[:, :3] / sums[:, 3:] / SIGMA_COLOUR, (places / SIGMA_PLACE).expand(num_images, -1, -1, -1)], 1
    )
    probs = logits.softmax(1)

    def around(maps: Tensor) -> Tensor:  # (B, C, h, w) -> (B, C, neighbours, h w)
        return F.unfold(maps, 2 * RADIUS + 1, padding=RADIUS).unflatten(1, (maps.shape[1], -1))

    kernel = (-0.5 * (around(features) - features.flatten(2).unsqueeze(2)).square().sum(1)).exp()
    kernel = kernel * around(torch.ones_like(probs[:, :1])).squeeze(1)
    kernel[:, kernel.shape[1] // 2] = 0
    agree = (around(probs) * probs.flatten(2).unsqueeze(2)).sum(1)
    return (kernel * (1 - agree)).sum() / (num_images * height * width)


def check(results: dict[str, tuple[float, Tensor]]) -> None:
    """Raise AssertionError unless both forms of the CRF loss agree."""
    ours, plain = results["crf"], results["plain crf"]
    torch.testing.assert_close(ours[0], plain[0], rtol=1e-5, atol=0)
    error = float((ours[1] - plain[1]).abs().max() / plain[1].abs().max())
    print(f"crf: {ours[0]:.4f}, as the plain form; gradients differ by {error:.1e} of the largest")
    assert error < 1e-4, error


def added_memory(network: str, amp: str) -> dict[str, float]:
    """Return the MiB that each loss adds to the peak of a step, and the step's own, as counted."""
    peaks = {}
    for name, more in {"step": {}, **{name: {name: weight} for name, weight in WEIGHTS.items()}}.items():
        with torch.device("meta"):
            model = models.build(**NETWORKS[network], num_classes=CLASSES)
        result = summarize(model, Criterion({"seg": 1.0} | more), batchsize=BATCH, crop_size=CROP, amp=amp)
        peaks[name] = result.working / 2**20
    return {name: peak - (0 if name == "step" else peaks["step"]) for name, peak in peaks.items()}


def limits(network: str, amp: str, num_positions: int) -> dict[str, float]:
    """Return the least milliseconds of crf and consistency on one core, by bytes and by multiply-adds.

    crf: of each of 60 offsets, two products of a map with one more class than the logits are added to another (two
    reads, one write), if each comes from memory. consistency: the products of the teacher's pass.
    """
    device = DEVICES["cpu"]
    maps = 60 * 2 * 3 * (CLASSES + 1) * num_positions * 4
    with torch.device("meta"):
        model = models.build(**NETWORKS[network], num_classes=CLASSES)
    flops = BATCH * summarize(model, Criterion({"seg": 1.0}), batchsize=1, crop_size=CROP).flops
    peak = device.half if amp == "bf16" else device.float32
    return {"crf": maps / device.bandwidth / 1e6, "consistency": flops / peak / 1e9}


def loader_ms(sparse: bool, images: int = 200) -> float:
    """Return the CPU milliseconds of augmenting an image of 360x480, a median."""
    keep_freed_memory()  # as a loader process does
    transform = TrainTransform(CROP)
    if sparse:
        transform = SparseTransform(transform, CLASSES, ColourJitter())  # type: ignore[assignment]
    rng = np.random.default_rng(0)
    maps = {"image": rng.integers(0, 256, (360, 480, 3), dtype=np.uint8), "label": np.full((360, 480), 255, np.uint8)}
    seconds = []
    for _ in range(images):
        began = time.process_time()
        transform(transform.inputs(maps), rng)
        seconds.append(time.process_time() - began)
    return 1e3 * float(np.median(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--amp", choices=("none", "bf16"), default="bf16", help="[%(default)s]")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    add_flags(parser, "sparse_losses", rounds=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    raw: dict = {"loader, ms an image": {"plain": loader_ms(False), "sparse": loader_ms(True)}}
    print(raw)
    for network in args.networks:
        ways = {way: partial(prepare, network, way, args.amp) for way in WAYS}
        figures, results = measure(ways, rounds=args.rounds, threads=args.threads)
        check(results)
        print(table(figures, "step", network))
        num_positions = results["crf"][1][:, 0].numel()
        raw[network] = {"figures": figures, "added MiB, counted": added_memory(network, args.amp)}
        raw[network]["limits, ms"] = limits(network, args.amp, num_positions)
        print({name: values for name, values in raw[network].items() if name != "figures"}, flush=True)
    save(args.out, raw)


if __name__ == "__main__":
    main()
