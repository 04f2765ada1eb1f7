"""What sharding of states over processes saves and costs: ZeRO-1 (optimizer) and FSDP2 (all), against plain DDP.

python benchmarks/sharding.py
python benchmarks/sharding.py --layers 18 --crop_size 33 --repeats 3    # in a minute

Gloo processes on the CPU; variants take turns on the same batches, each with its own model. The share of the states
in a process's memory is the estimate of benchmarks/memory.py for the recipe: 16 images of 465x465 per process.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import models
from benchmarks.memory import summarize
from distributed.group import Group
from losses.criterion import Criterion
from models.foreground import Foreground

VARIANTS = ("DDP", "ZeRO-1", "FSDP2")
NUM_CLASSES = 21
STEPS = 5  # before the weights are compared
SGD = {"lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-4}


def prepare(variant: str, layers: int, group: Group) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same start weights, and what to call and to step."""
    torch.manual_seed(0)
    model = models.build("res50_ASPP_lorm", layers=layers, num_classes=NUM_CLASSES).train()
    if variant == "FSDP2":
        mesh = init_device_mesh("cpu", (group.world_size,))
        backbone = model.backbone
        for layer in (backbone.layer1, backbone.layer2, backbone.layer3, backbone.layer4):
            for block in layer:
                fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, torch.optim.SGD(model.parameters(), **SGD)
    wrapper = group.wrap(model)
    if variant == "ZeRO-1":
        return wrapper, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **SGD)
    return wrapper, torch.optim.SGD(model.parameters(), **SGD)


def backward(model: nn.Module, images: Tensor, foreground: Foreground) -> None:
    outputs = model(images, foreground)
    (outputs["logits"].square().mean() + 1e-6 * outputs["lorm"]).backward()


def local_bytes(tensors) -> int:
    return sum((value.to_local() if isinstance(value, DTensor) else value).nbytes for value in tensors)


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[int]:
    """Bytes of parameters, gradients and momentum that this process holds between a backward pass and a step."""
    parameters = list(model.parameters())
    inner = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
    states = [value for state in inner.state.values() for value in state.values() if isinstance(value, Tensor)]
    return [local_bytes(values) for values in (parameters, (p.grad for p in parameters), states)]


def weights(model: nn.Module) -> list[Tensor]:
    values = [value.detach() for value in model.parameters()]
    return [value.full_tensor() if isinstance(value, DTensor) else value.clone() for value in values]


def work(rank: int, world_size: int, args, folder: str) -> None:
    """What one process does; rank 0 prints."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Grad strides do not match")  # of 1x1 kernels, for which they are the same
    store = f"file://{folder}/{world_size}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size, timeout=timedelta(minutes=5))
    group = Group(torch.device("cpu"), rank, rank, world_size, "gloo")
    ready = {variant: prepare(variant, args.layers, group) for variant in VARIANTS}
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    sizes, trained = {}, {}
    generator = torch.Generator().manual_seed(rank)
    shape = (args.batchsize, args.crop_size, args.crop_size)
    for number in range(STEPS + 1 + args.repeats):
        images = torch.randint(0, 256, (*shape, 3), dtype=torch.uint8, generator=generator)
        pseudo = torch.randint(0, NUM_CLASSES, shape, dtype=torch.uint8, generator=generator)
        for variant in (*VARIANTS[number % 3 :], *VARIANTS[: number % 3]):
            model, optimizer = ready[variant]
            foreground = getattr(model, "module", model).foreground(pseudo)
            dist.barrier()
            began = time.perf_counter()
            backward(model, images, foreground)
            if number == STEPS:  # with momentum
                sizes[variant] = [max(group.gather(size)) for size in held(model, optimizer)]
                trained[variant] = weights(model)
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
            if number > STEPS:
                seconds[variant].append(time.perf_counter() - began)
    if rank == 0:
        print(f"{world_size} processes; MiB of parameters, gradients and momentum in the process with most:")
        for variant in VARIANTS:
            ratios = [one / ddp for one, ddp in zip(seconds[variant], seconds["DDP"], strict=True)]
            apart = max(
                (one - ddp).abs().max().item() for one, ddp in zip(trained[variant], trained["DDP"], strict=True)
            )
            mib = [size / 2**20 for size in sizes[variant]]
            print(
                f"{variant:7s} {mib[0]:4.0f} {mib[1]:4.0f} {mib[2]:4.0f}, together {sum(mib):4.0f}; "
                f"{spread(seconds[variant])} s a step, {spread(ratios)} times DDP's; weights after {STEPS} steps "
                + (f"{apart:.1e} apart from DDP's" if apart else "equal to DDP's"),
                flush=True,
            )
    dist.destroy_process_group()


def shares(layers: int) -> None:
    """States as a share of a training process's memory, by the summary's estimate."""
    print(f"ResNet-{layers}, 16 images of 465x465 a process, estimated; all losses of the recipe:")
    criterion = Criterion({"seg": 1.0, "pseudo": 1.0, "lorm": 1.0, "ds": 1.0, "dc": 1.0}, 0.1)
    for amp, grad_checkpointing in (("none", False), ("bf16", False), ("none", True), ("bf16", True)):
        with torch.device("meta"):
            model = models.build(
                "res50_ASPP_lorm", layers=layers, num_classes=NUM_CLASSES, grad_checkpointing=grad_checkpointing
            )
        result = summarize(model, criterion, batchsize=16, crop_size=465, amp=amp)
        states, momentum = sum(result.states.values()), result.states["momentum"]
        print(
            f"--amp {amp}{' --grad_checkpointing' if grad_checkpointing else '':21s} {result.memory / 2**30:5.2f} GiB, "
            f"of which states {states / 2**20:.0f} MiB = {100 * states / result.memory:.1f} %, "
            f"momentum {momentum / 2**20:.0f} MiB = {100 * momentum / result.memory:.1f} %"
        )


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=50)
    parser.add_argument("--crop_size", type=int, default=65)
    parser.add_argument("--batchsize", type=int, default=2, help="images per process")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {args.batchsize} images of {args.crop_size}x{args.crop_size} a process")
    for world_size in args.processes:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(work, (world_size, args, folder), nprocs=world_size)
    shares(args.layers)


if __name__ == "__main__":
    main()
