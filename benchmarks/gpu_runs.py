"""The parts of benchmarks/gpu_check.py that train: whole runs of train.py, and single steps."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import utils
from benchmarks.gpu_parts import AMPS, Machine, expect
from benchmarks.our_step import make_trainer, random_batch
from data import demo
from distributed.group import Group
from flags import parse_flags

ROOT = Path(__file__).resolve().parent.parent
THREE_STEPS = ("--model_type", "deeplabv2", "--lr", "0.001", "--max_steps", "3")


def loader(machine: Machine) -> str:
    """Batches are the same with any number of workers, on the device as in memory, and show the files' pixels."""
    import cv2

    batches = {}
    for workers in (0, 2):
        cfg = parse_flags([*demo_flags(machine), "--workers", str(workers), "--no_augment", "--crop_size", "96"])
        train_loader = utils.get_loader(cfg, "train", Group(machine.device))
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


def ranks(machine: Machine) -> str:
    """Three steps of one process and of all, with the same global batch."""
    machine.need_two()
    words = [*THREE_STEPS, "--sync_bn", "on", "--total_batchsize", str(2 * machine.num_processes)]
    return _same_run(machine, train(machine, "one", *words), train(machine, "all", *words, in_all=True))


def deterministic_resume(machine: Machine) -> str:
    """Two runs with --deterministic have the same bits. So has a run that was stopped and resumed."""
    words = ["--max_steps", "6", "--deterministic", "--batchsize", "4"]
    process = _start(machine, "stopped", *words, "--resume", "auto")
    metrics = machine.folder / "log/stopped/metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.read_text().count("\n") >= 2):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.wait()
    runs = [train(machine, name, *words, "--resume", "auto") for name in ("whole", "again", "stopped")]
    whole, *others = map(_weights, runs)
    for other in others:
        unequal = [name for name, value in whole.items() if not torch.equal(value, other[name])]
        assert not unequal, f"{len(unequal)} of {len(whole)} tensors differ, such as {unequal[0]}"
    return "6 steps twice, and once stopped by SIGTERM and resumed: equal bit for bit"


def compiled(machine: Machine) -> str:
    """Three steps with --compile and without."""
    machine.need_gpu("tests/test_compile.py runs --compile on the CPU")
    words = [*THREE_STEPS, "--batchsize", "4"]
    return _same_run(machine, train(machine, "plain", *words), train(machine, "compiled", *words, "--compile"))


def demo_flags(machine: Machine) -> list[str]:
    root = machine.folder / "demo"
    demo.draw_dataset(root, 48, 8)
    words = ["--config", ROOT / "configs/demo.yaml", "--dataset_path", root, "--classes", root / "classes.txt"]
    return [*map(str, words)]


def _start(machine: Machine, name: str, *flags: str, in_all: bool = False) -> subprocess.Popen:
    """Start train.py on the demo, in float32 without TF32, in one process or in all."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={machine.num_processes}"]
    words = [
        *demo_flags(machine),
        "--logdir",
        str(machine.folder / "log"),
        "--name",
        name,
        "--device",
        machine.device.type,
    ]
    words += ["--amp", "none", "--log_interval", "1", "--crop_size", "65", "--workers", "1", *flags]
    command = [sys.executable, *(launch if in_all else []), "train.py", *words, *(["--distributed"] if in_all else [])]
    environment = os.environ | {"NVIDIA_TF32_OVERRIDE": "0"}
    log = (machine.folder / f"{name}.log").open("a")
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)


def train(machine: Machine, name: str, *flags: str, in_all: bool = False) -> Path:
    """Train to the end, and return the run's folder."""
    status = _start(machine, name, *flags, in_all=in_all).wait()
    assert status == 0, f"train.py ended with {status}: {(machine.folder / f'{name}.log').read_text()[-600:]}"
    return machine.folder / "log" / name


def _weights(run: Path) -> dict[str, Tensor]:
    return torch.load(run / "last.pt", weights_only=True, map_location="cpu")["model"]


def metrics(run: Path, name: str) -> list[float]:
    """Return a metric of each training step."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines if line["kind"] == "train"]


def _same_run(machine: Machine, one: Path, other: Path) -> str:
    """Compare three steps of two runs. Rounding grows from step to step, as batch norm amplifies it."""
    losses = [torch.tensor(metrics(run, "loss")) for run in (one, other)]
    assert len(losses[0]) == 3
    for number, tolerance in ((0, 1e-4), (2, 5e-3)):
        expect(f"loss of step {number + 1}", losses[1][number], losses[0][number], tolerance)
    weights = [torch.cat([value.double().flatten() for value in _weights(run).values()]) for run in (one, other)]
    return f"weights after 3 steps: relative error {expect('weights', *weights, 1e-3):.1e}"


def waits_and_memory(machine: Machine) -> str:
    """A step in which the CPU never waits for the GPU, and memory after 50 steps as after 5."""
    machine.need_gpu("tests/test_no_waits.py counts waits on the CPU")
    names = []
    for amp in AMPS:
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
    cfg = parse_flags([*words, "--warmup_epochs", "0", "--lr", "0.0001", "--total_batchsize", "0", *flags])
    torch.manual_seed(0)
    batches = [random_batch(cfg).pin_memory()]
    trainer = make_trainer(cfg, Group(machine.device))
    return partial(trainer.train_step, batches)


def cuda_graph(machine: Machine) -> str:
    """Three steps of two micro-batches with --cuda_graph and without."""
    machine.need_gpu("tests/test_captured.py replays recorded operations on the CPU")
    words = [*THREE_STEPS, "--batchsize", "4", "--accum_steps", "2"]
    run = train(machine, "captured", *words, "--cuda_graph")
    assert "--cuda_graph:" not in (machine.folder / "captured.log").read_text(), "the network was not captured"
    return _same_run(machine, train(machine, "launched", *words), run)


def block_choice(machine: Machine) -> str:
    """Three steps with --fused_blocks on and off."""
    words = [*THREE_STEPS, "--batchsize", "4"]
    runs = [train(machine, name, *words, "--fused_blocks", name) for name in ("on", "off")]
    return _same_run(machine, *runs)
