"""The parts of benchmarks/gpu_check.py that measure: steps of ours and of peers, the loader, and several GPUs."""

import gc
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest import mock

import torch
import torch.nn.functional as F

import utils
from benchmarks import step
from benchmarks.gpu_parts import Machine
from benchmarks.gpu_runs import demo_flags, metrics, train
from distributed.group import Group
from distributed.precision import autocast, resolve
from flags import parse_flags
from losses import criterion as criterion_module
from losses.criterion import Criterion
from models.lorm import LoRM, find_foreground, foreground_mask
from models.memory import gpu_memory


def speed(machine: Machine) -> str:
    """A step of each way that is not compiled, in bf16 where the machine has it."""
    return _table(machine, resolve("auto", machine.device))


def speed_tf32(machine: Machine) -> str:
    """The same ways without autocast."""
    machine.need_gpu("TF32")
    return _table(machine, "none")


def compiled_speed(machine: Machine) -> str:
    """The compiled ways of the same table, in bf16."""
    machine.need_gpu("torch.compile takes minutes")
    return _table(machine, "bf16", compiled=True)


def slow_cpu(machine: Machine) -> str:
    """How much longer a step of res50_ASPP_lorm takes on one core that another process keeps busy."""
    machine.need_gpu("a step that waits for the CPU")
    torch.backends.cudnn.benchmark = True
    words: dict = {"amp": "bf16", "device": machine.device} | _size(machine)
    found = {}
    for name, graph in (("launched", False), ("captured", True)):
        run = step.ours("res50_ASPP_lorm", **words, graph=graph)
        found[name] = _measured(machine, lambda run=run: run)["ms"]
        cores = os.sched_getaffinity(0)
        pin({min(cores)})
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            found[f"{name}, slow"] = _measured(machine, lambda run=run: run)["ms"]
        finally:
            busy.kill()
            pin(cores)
        del run
    machine.figures.update(found)
    times = (f"{name} {found[f'{name}, slow'] / found[name]:.2f}" for name in ("launched", "captured"))
    return f"with a busy core, a step takes so many times as long: {', '.join(times)}"


def pin(cores: set[int]) -> None:
    """Let the process, with the threads of autograd, run on these cores only."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def choices(machine: Machine) -> str:
    """Forward and backward pass, in ms, of what has two ways: the pixel losses, and LoRM against torch's attention."""
    torch.backends.cudnn.benchmark = True
    batchsize, crop_size = _size(machine).values()
    batch, side = step.batch_of(batchsize, crop_size), -(-crop_size // 8)
    criterion = Criterion(dict.fromkeys(("seg", "pseudo", "ds", "dc"), 1.0), label_smooth=0.1)
    logits = torch.randn(batchsize, step.NUM_CLASSES, side, side, device=machine.device, requires_grad=True)
    divisors, here = criterion.counts(batch).tolist(), batch.to(machine.device)
    module = LoRM(2048).to(machine.device)
    x = torch.randn(batchsize, 2048, side, side, device=machine.device).to(memory_format=torch.channels_last)
    x.requires_grad_()
    foreground = find_foreground(batch.maps["pseudo"], size=(side, side))
    foreground = replace(batch, foreground=foreground).to(machine.device).foreground
    inside = foreground_mask(batch.maps["pseudo"], (side, side)).to(machine.device).flatten(1).unsqueeze(2)

    def pixel_losses() -> None:
        criterion({"logits": logits}, here, divisors)[0].backward()

    def lorm() -> None:
        with autocast("bf16", machine.device):
            total = module(x, foreground)["lorm"]
        total.backward()

    def attention() -> None:
        values = x.flatten(2).transpose(1, 2)  # (B, C, H, W) -> (B, H*W, C)
        with autocast("bf16", machine.device):
            maps = (conv(x).flatten(2).transpose(1, 2) for conv in (module.query_conv, module.key_conv))
            query, key = (F.normalize(values, dim=2) for values in maps)
            shifted = F.scaled_dot_product_attention(*(part.unsqueeze(1) for part in (query, key, values)), scale=1.0)
        ((values - module.gamma * shifted.squeeze(1)).square() * inside).sum().backward()

    ways = {"pixel losses": pixel_losses, "LoRM": lorm, "torch's attention": attention}
    found = {name: _measured(machine, lambda work=work: work)["ms"] for name, work in ways.items()}
    with mock.patch.object(criterion_module, "find_kernel", return_value=None):
        found["pixel losses in bands"] = _measured(machine, lambda: pixel_losses)["ms"]
    machine.figures.update(found)
    return ", ".join(f"{name} {ms:.2f}" for name, ms in found.items())


def _table(machine: Machine, amp: str, *, compiled: bool = False) -> str:
    """Measure the ways of a step, one after another. Return the time of our fastest deeplabv3 over torchvision's."""
    torch.backends.cudnn.benchmark = True  # as both training loops do
    options: dict = _size(machine) | {"device": machine.device, "amp": amp, "compiled": compiled}
    ways: dict[str, Callable[[], step.Step]] = {}
    for name, peer in step.PEERS.items():
        if importlib.util.find_spec(peer.package) and not (compiled and name != "torchvision"):
            if not compiled:
                ways[name] = partial(step.peer_loop, peer, **options)
            ways[f"{name}, channels-last"] = partial(step.peer_loop, peer, **options, channels_last=True)
    for name in ("deeplabv3", "res50_ASPP_lorm") if compiled else step.MODEL_TYPES:  # each compilation takes long
        ways[name] = partial(step.ours, name, **options, fused=False)
        if not compiled:
            ways[f"{name}, fused"] = partial(step.ours, name, **options)
        if machine.on_gpu:
            ways[f"{name}, graph"] = partial(step.ours, name, **options, fused=False, graph=True)
    found = {name: _measured(machine, make) for name, make in ways.items()}
    machine.figures[f"--amp {amp}{', compiled' * compiled}"] = found
    best, ours = (
        min(row["ms"] for name, row in found.items() if name.split(",")[0] == kind)
        for kind in ("torchvision", "deeplabv3")
    )
    return f"deeplabv3, --amp {amp}: {ours / best:.2f} of the time of torchvision's best"


def _size(machine: Machine) -> dict[str, int]:
    """Return a batch size that the card holds, and the size of a crop."""
    size = {"batchsize": 2, "crop_size": 33}
    if machine.on_gpu:
        _, memory = gpu_memory(machine.device)
        size = {"batchsize": 16 if memory > 38 else 8 if memory > 20 else 4, "crop_size": 465}
    machine.figures.update(size)
    return size


def _measured(machine: Machine, make: Callable[[], Callable[[], object]]) -> dict[str, float]:
    """Return figures of a step that make() returns.

    "ms": the time of a step. "cpu_ms": until the CPU has launched it. "launches": of kernels and graphs. "gib": the
    peak of allocated memory. "reserved": of memory that torch holds, with the memory of graphs.
    """
    calls, cuda = (5, torch.cuda) if machine.on_gpu else (1, None)
    run = make()
    for _ in range(2):
        run()
    machine.synchronize()
    start = time.perf_counter()
    run()
    found = {"cpu_ms": 1e3 * (time.perf_counter() - start), "launches": 0.0, "gib": 0.0, "reserved": 0.0}
    if cuda is not None:
        cuda.synchronize()
        cuda.empty_cache()  # what cuDNN's search has taken
        cuda.reset_peak_memory_stats()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            cuda.synchronize()
        found["launches"] = sum("Launch" in event.name for event in profile.events())
    found["ms"] = 1e3 / calls * statistics.median(_seconds(machine, run, calls) for _ in range(3))
    if cuda is not None:
        found |= {"gib": cuda.max_memory_allocated() / 2**30, "reserved": cuda.max_memory_reserved() / 2**30}
        del run
        gc.collect()
        cuda.empty_cache()
    return found


def _seconds(machine: Machine, work: Callable[[], object], calls: int) -> float:
    machine.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    machine.synchronize()
    return time.perf_counter() - start


def loader_rate(machine: Machine) -> str:
    """The loader's images per second: compare them with the time of a step in the part "speed"."""
    cfg = parse_flags([*demo_flags(machine), "--crop_size", "465" if machine.on_gpu else "65", "--repeat", "8"])
    train_loader = utils.get_loader(cfg, "train", Group(machine.device))
    train_loader.sampler.set_position(0, 0)
    batches = iter(train_loader)
    next(batches)
    counts: list[int] = []
    seconds = _seconds(machine, lambda: counts.extend(len(b.to(machine.device).image) for b in batches), 1)
    rate, workers = sum(counts) / seconds, train_loader.num_workers
    machine.figures.update(images_per_s=rate, workers=workers)
    return f"{rate:.0f} images/s of the demo with {workers} workers (steps: see speed)"


def scaling(machine: Machine) -> str:
    """Images a second of one process and of all, each with the same batch."""
    machine.need_two()
    words = ["--max_steps", "30" if machine.on_gpu else "6", "--val_epoch_frequency", "0", "--amp", "auto"]
    words += ["--crop_size", "465" if machine.on_gpu else "65", "--batchsize", "8" if machine.on_gpu else "2"]
    one, many = (
        statistics.median(metrics(train(machine, f"scaling_{in_all}", *words, in_all=in_all), "images_per_s")[2:])
        for in_all in (False, True)
    )
    machine.figures.update({"one": one, "all": many})
    size = machine.num_processes
    return f"{one:.1f} images/s on 1, {many:.1f} on {size}: {many / one / size:.0%} of linear scaling"
