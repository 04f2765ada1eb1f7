"""The parts of benchmarks/gpu_check.py: each returns a line of text, adds figures to a dict, and raises on a fault."""

import copy
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models.resnet import BasicBlock, Bottleneck

import config
import utils
from benchmarks import step
from benchmarks.our_step import make_trainer, random_batch
from benchmarks.peer_steps import plain_losses
from data import demo
from data.histogram import count_batch
from distributed.group import Group
from losses import kernel_choice
from losses.criterion import Criterion
from losses.pixel_pass import CrossEntropy, PixelPass
from models.foreground import find_foreground, foreground_mask
from models.layers import blocks
from models.layers.blocks import use_our_layers, with_less_memory
from models.layers.norm import BatchNorm2d, synchronize
from models.lorm import LoRM
from optimization.amp import autocast, resolve
from support.batch import Batch, Foreground

ROOT = Path(__file__).resolve().parent.parent
AMPS = ("none", "bf16", "fp16")
# The largest relative error of a value or gradient, in the 2-norm: float32 with TF32 products; bf16 and fp16.
TOLERANCE = {"none": 2e-3, "bf16": 0.04, "fp16": 0.01}


class Skipped(Exception):
    """The part needs what this machine does not have."""


@dataclass(frozen=True)
class Machine:
    """Where the parts run. num_processes: GPUs, or two processes on the CPU. folder: for files; parts share it."""

    device: torch.device
    num_processes: int
    folder: Path

    @classmethod
    def of(cls, kind: str, folder: Path) -> "Machine":
        return cls(torch.device(kind), torch.cuda.device_count() if kind == "cuda" else 2, folder)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def need_gpu(self, reason: str) -> None:
        if not self.on_gpu:
            raise Skipped(f"needs a GPU: {reason}")


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the relative error in the 2-norm."""
    expected = expected.detach().to(torch.float64)
    return ((found.detach().to(expected) - expected).norm() / expected.norm().clamp(min=1e-12)).item()


def expect(name: str, found: Tensor, expected: Tensor, tolerance: float) -> float:
    """Return the relative error. Raises AssertionError if it is above the tolerance."""
    error = relative_error(found, expected)
    assert error <= tolerance, f"{name}: relative error {error:.2g}, expected at most {tolerance:g}"
    return error


# Right


def kernel(machine: Machine, figures: dict) -> str:
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


def losses(machine: Machine, figures: dict) -> str:
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


def fused(machine: Machine, figures: dict) -> str:
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
                ours = with_less_memory(copy.deepcopy(theirs).float())
                use_our_layers(ours)
                ours, images = _channels_last(ours, x.float())
                with mock.patch.object(blocks, "suits", lambda *_, fits=fits: fits):
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


def batch_norm(machine: Machine, figures: dict) -> str:
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
        synchronize(ours.to(device))
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


def lorm(machine: Machine, figures: dict) -> str:
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


def loader(machine: Machine, figures: dict) -> str:
    """Batches are the same with any number of workers, on the device as in memory, and show the files' pixels."""
    import cv2

    group, batches = Group(machine.device), {}
    for workers in (0, 2):
        cfg = config.parse([*_demo(machine), "--workers", str(workers), "--no_augment", "--crop_size", "96"])
        train_loader = utils.get_loader(cfg, "train", group)
        train_loader.sampler.set_position(0, 0)
        batches[workers] = next(iter(train_loader))
    on_device = batches[2].to(machine.device)
    for name in ("image", *batches[0].maps):
        expected, found, moved = (getattr(batch, name) for batch in (batches[0], batches[2], on_device))
        assert torch.equal(found, expected), f"{name} differs between --workers 0 and 2"
        assert torch.equal(moved.cpu(), expected), f"{name} differs on the device"
    dataset, order = train_loader.dataset, train_loader.sampler.order(epoch=0)
    for place, index in enumerate(order[: cfg.batchsize]):
        image = cv2.cvtColor(cv2.imread(str(dataset.files[index]["image"])), cv2.COLOR_BGR2RGB)
        top, left = (image.shape[0] - 96) // 2, (image.shape[1] - 96) // 2
        expected = torch.from_numpy(image[top : top + 96, left : left + 96])
        assert torch.equal(batches[0].image[place], expected), f"image {place} is not the centre of its file"
    return f"{len(batches[0].image)} samples of the demo, with 0 and 2 workers"


def _demo(machine: Machine) -> list[str]:
    root = machine.folder / "demo"
    demo.draw_dataset(root, 48, 8)
    return [
        "--config",
        str(ROOT / "configs/demo.yaml"),
        "--dataset_path",
        str(root),
        "--classes",
        str(root / "classes.txt"),
    ]


def _start(machine: Machine, name: str, *flags: str, processes: int = 1) -> subprocess.Popen:
    """Start train.py on the demo, in float32 without TF32."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    words = [*_demo(machine), "--logdir", str(machine.folder / "log"), "--name", name, "--device", machine.device.type]
    words += ["--amp", "none", "--log_interval", "1", "--crop_size", "65", "--workers", "1", *flags]
    words += ["--distributed"] if processes > 1 else []
    environment = os.environ | {"NVIDIA_TF32_OVERRIDE": "0"}
    log = (machine.folder / f"{name}.log").open("a")
    return subprocess.Popen(
        [sys.executable, *launch, "train.py", *words], cwd=ROOT, env=environment, stdout=log, stderr=log
    )


def _train(machine: Machine, name: str, *flags: str, processes: int = 1) -> dict[str, Tensor]:
    """Train to the end, and return the weights."""
    status = _start(machine, name, *flags, processes=processes).wait()
    assert status == 0, f"train.py ended with {status}: {(machine.folder / f'{name}.log').read_text()[-600:]}"
    return _weights(machine, name)


def _weights(machine: Machine, name: str) -> dict[str, Tensor]:
    return torch.load(machine.folder / "log" / name / "last.pt", weights_only=True, map_location="cpu")["model"]


def _losses(machine: Machine, name: str) -> Tensor:
    lines = map(json.loads, (machine.folder / "log" / name / "metrics.jsonl").read_text().splitlines())
    return torch.tensor([line["loss"] for line in lines if line["kind"] == "train"])


def _same_run(machine: Machine, one: str, other: str) -> str:
    """Compare three steps of two runs. Rounding grows from step to step, as batch norm amplifies it."""
    losses = _losses(machine, one), _losses(machine, other)
    assert len(losses[0]) == 3
    for number, tolerance in ((0, 1e-4), (2, 5e-3)):
        expect(f"loss of step {number + 1}", losses[1][number], losses[0][number], tolerance)
    weights = [_weights(machine, name) for name in (one, other)]
    error = expect("weights", *(torch.cat([value.double().flatten() for value in x.values()]) for x in weights), 1e-3)
    return f"weights after 3 steps: relative error {error:.1e}"


def ranks(machine: Machine, figures: dict) -> str:
    """Three steps of one process and of all, with the same global batch."""
    size = machine.num_processes
    if size == 1:
        raise Skipped("needs two GPUs")
    words = ["--model_type", "deeplabv2", "--lr", "0.001", "--max_steps", "3", "--sync_bn", "on"]
    words += ["--total_batchsize", str(2 * size)]
    _train(machine, "one", *words)
    _train(machine, "all", *words, processes=size)
    return _same_run(machine, "one", "all")


def _expect_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    unequal = [name for name, value in one.items() if not torch.equal(value, other[name])]
    assert not unequal, f"{len(unequal)} of {len(one)} tensors differ, such as {unequal[0]}"


def deterministic(machine: Machine, figures: dict) -> str:
    """Two runs with --deterministic have the same bits; a run that was stopped and resumed has them, too."""
    words = ["--max_steps", "6", "--deterministic", "--batchsize", "4"]
    whole = _train(machine, "whole", *words)
    _expect_bits(whole, _train(machine, "again", *words))
    process = _start(machine, "stopped", *words, "--resume", "auto")
    metrics = machine.folder / "log/stopped/metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.read_text().count("\n") >= 2):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.wait()
    _expect_bits(whole, _train(machine, "stopped", *words, "--resume", "auto"))
    return "6 steps twice, and once stopped by SIGTERM and resumed: equal bit for bit"


def compiled(machine: Machine, figures: dict) -> str:
    """Three steps with --compile and without."""
    machine.need_gpu("tests/test_compile.py runs --compile on the CPU")
    words = ["--model_type", "deeplabv2", "--lr", "0.001", "--max_steps", "3", "--batchsize", "4"]
    _train(machine, "plain", *words)
    _train(machine, "compiled", *words, "--compile")
    return _same_run(machine, "plain", "compiled")


# No waits


def waits(machine: Machine, figures: dict) -> str:
    """A step in which the CPU never waits for the GPU, and memory after 50 steps as after 5."""
    machine.need_gpu("tests/test_no_waits.py counts waits on the CPU")
    names = []
    for amp in ("none", "bf16", "fp16"):
        for model_type, dataset in (("res50_ASPP_lorm", "ScribblePseudoDsDc"), ("deeplabv3", "Dense")):
            run = _real_step(machine, "--model_type", model_type, "--dataset", dataset, "--amp", amp)
            for _ in range(5):
                run()
            torch.cuda.synchronize()
            before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            torch.cuda.set_sync_debug_mode("error")
            try:
                for _ in range(45):
                    run()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
            grown = torch.cuda.memory_allocated() - before, torch.cuda.memory_reserved() - reserved
            assert max(grown) <= 2**20, f"{model_type}, --amp {amp}: memory grew by {grown} bytes in 45 steps"
            names.append(f"{model_type} {amp}")
    return f"no wait and no growth of memory in 45 steps of {', '.join(names)}"


def _real_step(machine: Machine, *flags: str) -> Callable[[], None]:
    words = ["--numclasses", "21", "--layers", "50", "--pretrained", "none", "--crop_size", "129", "--batchsize", "2"]
    cfg = config.parse([*words, "--warmup_epochs", "0", "--lr", "0.0001", "--total_batchsize", "0", *flags])
    torch.manual_seed(0)
    batches = [random_batch(cfg).pin_memory()]
    trainer = make_trainer(cfg, Group(machine.device))
    return partial(trainer.train_step, batches)


def cuda_graph(machine: Machine, figures: dict) -> str:
    """Forward pass, losses and backward pass, captured in a CUDA graph, compute what they do outside."""
    machine.need_gpu("a graph of CUDA")
    batch = step.batch_of(2, 129)
    model = step.our_model("deeplabv3").to(machine.device, memory_format=torch.channels_last)
    criterion = Criterion({"seg": 1.0})
    divisors, here = criterion.counts(batch).tolist(), batch.to(machine.device)

    def losses_and_gradients() -> Tensor:
        loss, _ = criterion(model(here.image), here, divisors)
        loss.backward()
        return loss.detach()

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            model.zero_grad()
            expected = losses_and_gradients()
    torch.cuda.synchronize()
    grads = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    with torch.cuda.graph(graph, stream=stream):
        found = losses_and_gradients()
    graph.replay()
    torch.cuda.synchronize()
    expect("loss", found, expected, 1e-4)
    captured = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    error = max(relative_error(*pair) for pair in zip(captured, grads, strict=True))
    assert error < 0.05, f"gradients: relative error {error:.2g}"
    return f"deeplabv3: loss and gradients, relative error at most {error:.1e}"


# Fast


def speed(machine: Machine, figures: dict) -> str:
    """A step of both models against torchvision's loop, and the share of the card's limit."""
    size, calls = _size_of_steps(machine)
    amps = [amp for amp in ("none", "bf16") if amp == "none" or resolve("auto", machine.device) == "bf16"]
    lines = []
    for amp in amps:
        limit = _matrix_rate(machine, torch.bfloat16 if amp == "bf16" else torch.float32)
        for name, make in _ways(amp, size).items():
            measured = _measured(machine, make, calls)
            measured["share"] = _flops(make) / measured["ms"] * 1e3 / limit
            figures[f"{name}, --amp {amp}"] = measured
        peer, ours = (figures[f"{name}, --amp {amp}"] for name in ("torchvision", "deeplabv3"))
        lines.append(f"--amp {amp}: {_ratios(machine, peer, ours)}")
        if machine.on_gpu:
            lines[-1] += f", {ours['share']:.0%} of the limit"
    return f"deeplabv3, {size['batchsize']} x {size['crop_size']}, " + "; ".join(lines)


def compiled_speed(machine: Machine, figures: dict) -> str:
    """A compiled step of both models against torchvision's compiled loop."""
    machine.need_gpu("torch.compile takes minutes")
    size, calls = _size_of_steps(machine)
    amp = resolve("auto", machine.device)
    for name, make in _ways(amp, size, compiled=True).items():
        figures[name] = _measured(machine, make, calls)
    return f"deeplabv3 with --compile, --amp {amp}: {_ratios(machine, figures['torchvision'], figures['deeplabv3'])}"


def _size_of_steps(machine: Machine) -> tuple[dict, int]:
    """Return batch size, crop size and device of the steps, and how many of them to measure at once."""
    torch.backends.cudnn.benchmark = True  # as both training loops do
    batchsize, crop_size, calls = 2, 33, 1
    if machine.on_gpu:
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        batchsize, crop_size, calls = 16 if memory > 38 else 8 if memory > 20 else 4, 465, 5
    return {"batchsize": batchsize, "crop_size": crop_size, "device": machine.device}, calls


def _ways(amp: str, size: dict, *, compiled: bool = False) -> dict[str, Callable[[], step.Step]]:
    models = ("deeplabv3", "res50_ASPP_lorm")
    ours = {name: partial(step.ours, name, amp, compiled=compiled, **size) for name in models}
    return {"torchvision": partial(step.torchvision_loop, amp=amp, compiled=compiled, **size)} | ours


def _ratios(machine: Machine, peer: dict, ours: dict) -> str:
    memory = f", {ours['gib'] / peer['gib']:.2f} of its memory" if machine.on_gpu else ""
    return f"{peer['ms'] / ours['ms']:.2f} times torchvision's speed{memory}"


def _flops(make: Callable[[], step.Step]) -> float:
    run = make()
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def _measured(machine: Machine, make: Callable[[], step.Step], calls: int) -> dict[str, float]:
    """Return {"ms" of a step, "gib" at its peak}."""
    run = make()
    for _ in range(2):
        run()
    if machine.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(3):
        _synchronize(machine)
        start = time.perf_counter()
        for _ in range(calls):
            run()
        _synchronize(machine)
        seconds.append((time.perf_counter() - start) / calls)
    median = statistics.median(seconds)
    gib = torch.cuda.max_memory_allocated() / 2**30 if machine.on_gpu else 0.0
    del run
    gc.collect()
    if machine.on_gpu:
        torch.cuda.empty_cache()
    return {"ms": 1e3 * median, "gib": gib}


def _matrix_rate(machine: Machine, dtype: torch.dtype) -> float:
    """Return the FLOP/s of a large matrix product, in TF32 for float32: the limit of a step."""
    side = 8192 if machine.on_gpu else 256
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    a = torch.randn(side, side, device=machine.device, dtype=dtype)
    torch.mm(a, a)
    _synchronize(machine)
    start = time.perf_counter()
    for _ in range(10):
        torch.mm(a, a)
    _synchronize(machine)
    torch.set_float32_matmul_precision(precision)
    return 10 * 2 * side**3 / (time.perf_counter() - start)


def _synchronize(machine: Machine) -> None:
    if machine.on_gpu:
        torch.cuda.synchronize()


def loader_rate(machine: Machine, figures: dict) -> str:
    """The loader's images per second: compare them with the time of a step in the part "speed"."""
    cfg = config.parse([*_demo(machine), "--crop_size", "465" if machine.on_gpu else "65", "--repeat", "8"])
    train_loader = utils.get_loader(cfg, "train", Group(machine.device))
    train_loader.sampler.set_position(0, 0)
    batches = iter(train_loader)
    next(batches)
    start, count = time.perf_counter(), 0
    for batch in batches:
        count += len(batch.to(machine.device).image)
    _synchronize(machine)
    rate = count / (time.perf_counter() - start)
    figures |= {"images_per_s": rate, "workers": train_loader.num_workers}
    return f"{rate:.0f} images/s of the demo with {train_loader.num_workers} workers (steps: see speed)"


def scaling(machine: Machine, figures: dict) -> str:
    """Images a second of one process and of all, each with the same batch."""
    size = machine.num_processes
    if size == 1:
        raise Skipped("needs two GPUs")
    words = ["--max_steps", "30" if machine.on_gpu else "6", "--val_epoch_frequency", "0", "--amp", "auto"]
    words += ["--crop_size", "465" if machine.on_gpu else "65", "--batchsize", "8" if machine.on_gpu else "2"]
    rates = []
    for processes in (1, size):
        _train(machine, f"scaling_{processes}", *words, "--workers", "4", processes=processes)
        lines = (machine.folder / f"log/scaling_{processes}/metrics.jsonl").read_text().splitlines()
        values = [json.loads(line) for line in lines]
        rates.append(statistics.median([value["images_per_s"] for value in values if value["kind"] == "train"][2:]))
    figures |= {"one": rates[0], "all": rates[1]}
    return f"{rates[0]:.1f} images/s on 1, {rates[1]:.1f} on {size}: {rates[1] / rates[0] / size:.0%} of linear scaling"


PARTS: dict[str, Callable[[Machine, dict], str]] = {
    "kernel": kernel,
    "losses": losses,
    "fused_blocks": fused,
    "batch_norm": batch_norm,
    "lorm": lorm,
    "loader": loader,
    "ranks": ranks,
    "deterministic_resume": deterministic,
    "compile": compiled,
    "waits_and_memory": waits,
    "cuda_graph": cuda_graph,
    "speed": speed,
    "compiled_speed": compiled_speed,
    "loader_rate": loader_rate,
    "scaling": scaling,
}
