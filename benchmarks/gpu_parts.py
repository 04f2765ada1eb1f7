"""The parts of benchmarks/gpu_check.py that compare layers and losses with plain forms in float64.

A part returns a line of text, adds figures to those of the Machine, and raises an exception on a fault.
"""

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from benchmarks import step
from benchmarks.step import plain_losses
from data.histogram import count_batch
from distributed.precision import autocast
from losses import kernel_choice
from losses.criterion import Criterion
from losses.pixel_pass import CrossEntropy, PixelPass
from models.layers import blocks
from models.layers.blocks import use_our_layers
from models.layers.norm import BatchNorm2d, synchronize_batch_norm
from models.lorm import LoRM, find_foreground, foreground_mask
from support.batch import Batch, Foreground

AMPS = ("none", "bf16", "fp16")
# The largest relative error of a value or gradient, in the 2-norm: float32 with TF32 products; bf16 and fp16.
TOLERANCE = {"none": 2e-3, "bf16": 0.04, "fp16": 0.01}


class Skipped(Exception):
    """The part needs what this machine does not have."""


@dataclass(frozen=True)
class Machine:
    """Where a part runs. num_processes: GPUs, or two processes on the CPU. folder: for files; parts share it."""

    device: torch.device
    num_processes: int
    folder: Path
    figures: dict = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, folder: Path) -> "Machine":
        return cls(torch.device(kind), torch.cuda.device_count() if kind == "cuda" else 2, folder)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def need_gpu(self, reason: str) -> None:
        if not self.on_gpu:
            raise Skipped(f"needs a GPU: {reason}")

    def need_two(self) -> None:
        if self.num_processes == 1:
            raise Skipped("needs two GPUs")

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the relative error in the 2-norm."""
    expected = expected.detach().to(torch.float64)
    return ((found.detach().to(expected) - expected).norm() / expected.norm().clamp(min=1e-12)).item()


def expect(name: str, found: Tensor, expected: Tensor, tolerance: float) -> float:
    """Return the relative error. Raises AssertionError if it is above the tolerance."""
    error = relative_error(found, expected)
    assert error <= tolerance, f"{name}: relative error {error:.2g}, expected at most {tolerance:g}"
    return error


def kernel(machine: Machine) -> str:
    """The Triton kernel of the pixel losses against F.interpolate and autograd in float64."""
    from losses import pixel_kernel

    assert kernel_choice.tested_kernel(machine.device) is not None, "training would not use it: see the warning"
    sizes = [((3, 5), (17, 33)), ((1, 2), (7, 9))] + machine.on_gpu * [((59, 59), (465, 465))]
    worst = 0.0
    for num_classes in (2, 21, 150):
        for low, size in sizes:
            torch.manual_seed(0)
            logits = 4 * torch.randn(1, num_classes, *low, device=machine.device)
            label = torch.randint(0, num_classes + 1, (1, *size), device=machine.device)
            inside = label < num_classes
            slope = torch.rand(1, *size, device=machine.device)
            label = label.where(inside, 255).byte()
            targets = [CrossEntropy(label, slope * inside, smooth) for smooth in (0.0, 0.1)]
            found = PixelPass(logits, size, targets, slope).run(pixel_kernel.run)
            exact = logits.double().requires_grad_()
            full = F.interpolate(exact, size=size, mode="bilinear", align_corners=True)
            entropy = -(full.softmax(1) * full.log_softmax(1)).sum(1)
            total = (slope * entropy).sum()
            name = f"{num_classes} classes, {size[0]}x{size[1]}"
            for target, values in zip(targets, found.cross_entropies, strict=True):
                options = {"ignore_index": 255, "reduction": "none", "label_smoothing": target.smooth}
                expected = F.cross_entropy(full, label.long(), **options)
                total = total + (slope * expected).sum()
                worst = max(worst, expect(f"{name}: cross entropy", values * inside, expected, 1e-5))
            worst = max(worst, expect(f"{name}: entropy", found.entropy, entropy, 1e-5))
            total.backward()
            worst = max(worst, expect(f"{name}: gradient", found.gradient, exact.grad, TOLERANCE["none"]))
    return f"2, 21 and 150 classes: value and gradient, relative error at most {worst:.1e}"


def losses(machine: Machine) -> str:
    """The four losses by pixel, as training computes them, against their plain form in float64."""
    for num_classes in (2, 21, 150):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            torch.manual_seed(0)
            shape = (2, 65, 49)
            maps = {name: torch.randint(0, num_classes, shape, dtype=torch.uint8) for name in ("label", "pseudo")}
            maps["label"][torch.rand(shape) > 0.03] = 255
            maps |= {name: torch.randint(0, 256, shape, dtype=torch.uint8) for name in ("distance_s", "distance_c")}
            batch = Batch(torch.zeros(*shape, 3, dtype=torch.uint8), **maps)
            batch = replace(batch, counts=count_batch(batch))
            criterion = Criterion(dict.fromkeys(("seg", "pseudo", "ds", "dc"), 1.0), label_smooth=0.1)
            logits = torch.randn(2, num_classes, 9, 7).to(machine.device, dtype).requires_grad_()
            divisors = criterion.counts(batch).tolist()
            value, _ = criterion({"logits": logits}, batch.to(machine.device), divisors)
            value.backward()
            exact = logits.detach().cpu().double().requires_grad_()
            with mock.patch.object(Tensor, "float", Tensor.double):  # the plain form begins with float()
                expected = plain_losses(exact, batch, 0.1)
            expected.backward()
            name = f"{num_classes} classes, {dtype}"
            expect(f"{name}: value", value.cpu(), expected, 1e-4)
            expect(f"{name}: gradient", logits.grad.cpu(), exact.grad, 2e-3 if dtype == torch.float32 else 0.01)
    return "2, 21 and 150 classes in float32, bf16 and fp16: value and gradient"


def fused_blocks(machine: Machine) -> str:
    """The fused residual blocks against torchvision's in float64."""
    # With TF32, batch norm's gradients are off by 4 % at this size, in torch's modules, too.
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
    worst = 0.0
    for kind in (BasicBlock, Bottleneck):
        torch.manual_seed(0)
        width, inputs = 16, 24
        outputs = width * kind.expansion
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), nn.BatchNorm2d(outputs))
        theirs = kind(inputs, width, stride=2, downsample=shortcut).double().to(machine.device)
        x = torch.randn(2, inputs, 19, 23, dtype=torch.float64, device=machine.device)
        expected = _values_and_gradients(copy.deepcopy(theirs), x)
        for amp in AMPS:
            plain = _values_and_gradients(*_channels_last(copy.deepcopy(theirs).float(), x.float()), amp)
            for fits in (True, False):  # whether the block's last convolution is fused too
                ours, images = _channels_last(use_our_layers(copy.deepcopy(theirs).float()), x.float())
                with mock.patch.object(blocks, "saves_time", lambda *_, fits=fits: fits):
                    found = _values_and_gradients(ours, images, amp)
                for name, value in expected.items():
                    least = 1e-5 if amp == "none" else TOLERANCE[amp]
                    tolerance = max(least, 2 * relative_error(plain[name], value))
                    error = expect(f"{kind.__name__}, --amp {amp}: {name}", found[name], value, tolerance)
                    worst = max(worst, error if amp == "none" else 0.0)
    return f"float32: relative error at most {worst:.1e}; bf16, fp16: within the tolerance, or twice the modules' own"


def _channels_last(block: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
    return block.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)


def _values_and_gradients(block: nn.Module, x: Tensor, amp: str = "none") -> dict[str, Tensor]:
    x = x.detach().requires_grad_()
    with autocast(amp, x.device):
        result = block(x)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(result.shape, dtype=torch.float64, generator=generator).to(x)
    (result.to(x.dtype) * weights).sum().backward()
    assert x.grad is not None
    found = {"result": result.detach(), "gradient of x": x.grad}
    found |= {name: value for name, value in block.named_buffers() if value.is_floating_point()}
    return found | {f"gradient of {name}": parameter.grad for name, parameter in block.named_parameters()}


def batch_norm(machine: Machine) -> str:
    """Batch norm over all processes against nn.BatchNorm2d of the whole batch in float64."""
    size, store = machine.num_processes, machine.folder / "batch_norm_store"
    store.unlink(missing_ok=True)
    torch.multiprocessing.spawn(_batch_norm_of_a_rank, (size, machine.device.type, str(store)), nprocs=size)
    return f"over {size} process(es) in float32 and bf16: value, gradients and running statistics"


def _batch_norm_of_a_rank(rank: int, size: int, kind: str, store: str) -> None:
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if kind == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.02)):
        torch.manual_seed(0)
        theirs = nn.BatchNorm2d(8).double()
        nn.init.normal_(theirs.weight)
        ours = BatchNorm2d(8)
        ours.load_state_dict(theirs.state_dict())
        synchronize_batch_norm(ours.to(device), "on", device)
        whole = (3 * torch.randn(2 * size, 8, 7, 5) + 1).to(dtype)
        weights = torch.rand(whole.shape)
        x = whole.double().requires_grad_()
        (theirs(x) * weights).sum().backward()
        part = slice(2 * rank, 2 * rank + 2)
        mine = whole[part].to(device).contiguous(memory_format=torch.channels_last).requires_grad_()
        result = ours(mine)
        (result.float() * weights[part].to(device)).sum().backward()
        grads = torch.stack([ours.weight.grad, ours.bias.grad])
        torch.distributed.all_reduce(grads)
        expected = theirs.eval().train()(x)[part]
        for name, found, value in (
            ("result", result, expected),
            ("gradient of x", mine.grad, x.grad[part]),
            ("gradients of weight and bias", grads, torch.stack([theirs.weight.grad, theirs.bias.grad])),
            ("running variance", ours.running_var - 0.9, 0.1 * whole.double().var((0, 2, 3))),
        ):
            expect(f"{dtype}: {name}", found.cpu(), value, tolerance)
    torch.distributed.destroy_process_group()


def lorm(machine: Machine) -> str:
    """LoRM against the release's form, all (H*W)^2 similarities, in float64."""
    worst = dict.fromkeys(AMPS, 0.0)
    for amp in AMPS:
        torch.manual_seed(0)
        ours = LoRM(64).to(machine.device)
        theirs = copy.deepcopy(ours).double()
        pseudo = torch.randint(0, 3, (2, 33, 41), dtype=torch.uint8)
        x = torch.randn(2, 64, 9, 11, device=machine.device).to(memory_format=torch.channels_last).requires_grad_()
        positions, counts = find_foreground(pseudo, size=(9, 11))
        foreground = Foreground(positions.to(machine.device), counts)
        with autocast(amp, machine.device):
            found = ours(x, foreground)["lorm"]
        found.backward()
        exact = x.detach().double().requires_grad_()
        mask = foreground_mask(pseudo, (9, 11)).to(machine.device)
        expected = step.plain_lorm(theirs, exact, mask) * (mask.sum() * 64)
        expected.backward()
        named = {"value": (found, expected), "gradient of x": (x.grad, exact.grad)}
        for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            # Keys are normalised after their bias is added: its gradient is small, and a difference of large sums.
            if name != "key_conv.bias":
                named[f"gradient of {name}"] = (one.grad, other.grad)
        for name, pair in named.items():
            worst[amp] = max(worst[amp], expect(f"--amp {amp}: {name}", *pair, 2 * TOLERANCE[amp]))
    return "relative error at most " + ", ".join(f"{value:.1e} ({amp})" for amp, value in worst.items())
