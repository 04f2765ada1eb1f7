"""The parts of benchmarks/gpu_check.py that train: whole runs of train.py, single steps, and how fast they are."""

import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import utils
from benchmarks import step
from benchmarks.gpu_parts import AMPS, Machine, expect, relative_error
from benchmarks.our_step import make_trainer, random_batch
from data import demo
from distributed.group import Group
from distributed.precision import resolve
from flags import parse_flags
from losses.criterion import Criterion

ROOT = Path(__file__).resolve().parent.parent
THREE_STEPS = ("--model_type", "deeplabv2", "--lr", "0.001", "--max_steps", "3")


def loader(machine: Machine) -> str:
    """Batches are the same with any number of workers, on the device as in memory, and show the files' pixels."""
    import cv2

    batches = {}
    for workers in (0, 2):
        cfg = parse_flags([*_demo(machine), "--workers", str(workers), "--no_augment", "--crop_size", "96"])
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
    return _same_run(machine, _train(machine, "one", *words), _train(machine, "all", *words, in_all=True))


def deterministic_resume(machine: Machine) -> str:
    """Two runs with --deterministic have the same bits. So has a run that was stopped and resumed."""
    words = ["--max_steps", "6", "--deterministic", "--batchsize", "4"]
    process = _start(machine, "stopped", *words, "--resume", "auto")
    metrics = machine.folder / "log/stopped/metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.read_text().count("\n") >= 2):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.wait()
    runs = [_train(machine, name, *words, "--resume", "auto") for name in ("whole", "again", "stopped")]
    whole, *others = map(_weights, runs)
    for other in others:
        unequal = [name for name, value in whole.items() if not torch.equal(value, other[name])]
        assert not unequal, f"{len(unequal)} of {len(whole)} tensors differ, such as {unequal[0]}"
    return "6 steps twice, and once stopped by SIGTERM and resumed: equal bit for bit"


def compiled(machine: Machine) -> str:
    """Three steps with --compile and without."""
    machine.need_gpu("tests/test_compile.py runs --compile on the CPU")
    words = [*THREE_STEPS, "--batchsize", "4"]
    return _same_run(machine, _train(machine, "plain", *words), _train(machine, "compiled", *words, "--compile"))


def _demo(machine: Machine) -> list[str]:
    root = machine.folder / "demo"
    demo.draw_dataset(root, 48, 8)
    words = ["--config", ROOT / "configs/demo.yaml", "--dataset_path", root, "--classes", root / "classes.txt"]
    return [*map(str, words)]


def _start(machine: Machine, name: str, *flags: str, in_all: bool = False) -> subprocess.Popen:
    """Start train.py on the demo, in float32 without TF32, in one process or in all."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={machine.num_processes}"]
    words = [*_demo(machine), "--logdir", str(machine.folder / "log"), "--name", name, "--device", machine.device.type]
    words += ["--amp", "none", "--log_interval", "1", "--crop_size", "65", "--workers", "1", *flags]
    command = [sys.executable, *(launch if in_all else []), "train.py", *words, *(["--distributed"] if in_all else [])]
    environment = os.environ | {"NVIDIA_TF32_OVERRIDE": "0"}
    log = (machine.folder / f"{name}.log").open("a")
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)


def _train(machine: Machine, name: str, *flags: str, in_all: bool = False) -> Path:
    """Train to the end, and return the run's folder."""
    status = _start(machine, name, *flags, in_all=in_all).wait()
    assert status == 0, f"train.py ended with {status}: {(machine.folder / f'{name}.log').read_text()[-600:]}"
    return machine.folder / "log" / name


def _weights(run: Path) -> dict[str, Tensor]:
    return torch.load(run / "last.pt", weights_only=True, map_location="cpu")["model"]


def _metrics(run: Path, name: str) -> list[float]:
    """Return a metric of each training step."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines if line["kind"] == "train"]


def _same_run(machine: Machine, one: Path, other: Path) -> str:
    """Compare three steps of two runs. Rounding grows from step to step, as batch norm amplifies it."""
    losses = [torch.tensor(_metrics(run, "loss")) for run in (one, other)]
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

    def gradients() -> list[Tensor]:
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            model.zero_grad()
            expected = losses_and_gradients()
    torch.cuda.synchronize()
    outside = [grad.clone() for grad in gradients()]
    model.zero_grad()
    with torch.cuda.graph(graph, stream=stream):
        found = losses_and_gradients()
    graph.replay()
    torch.cuda.synchronize()
    expect("loss", found, expected, 1e-4)
    error = max(relative_error(*pair) for pair in zip(gradients(), outside, strict=True))
    assert error < 0.05, f"gradients: relative error {error:.2g}"
    return f"deeplabv3: loss and gradients, relative error at most {error:.1e}"


def speed(machine: Machine, *, compiled: bool = False) -> str:
    """A step of both models against torchvision's loop: time, and memory at the peak."""
    amps = ["none", "bf16"] if resolve("auto", machine.device) == "bf16" else ["none"]
    lines = []
    for amp in amps[-1:] if compiled else amps:
        found = {name: _measured(machine, make) for name, make in _ways(machine, amp, compiled).items()}
        machine.figures.update({f"{name}, --amp {amp}": measured for name, measured in found.items()})
        peer, ours = found["torchvision"], found["deeplabv3"]
        lines.append(f"--amp {amp}: {peer['ms'] / ours['ms']:.2f} times torchvision's speed")
        lines[-1] += f", {ours['gib'] / peer['gib']:.2f} of its memory" if machine.on_gpu else ""
    return f"deeplabv3{' with --compile' * compiled}, " + "; ".join(lines)


def compiled_speed(machine: Machine) -> str:
    """A compiled step of both models against torchvision's compiled loop."""
    machine.need_gpu("torch.compile takes minutes")
    return speed(machine, compiled=True)


def _ways(machine: Machine, amp: str, compiled: bool) -> dict[str, Callable[[], step.Step]]:
    """Return functions that build the steps, at a batch size that the card holds."""
    torch.backends.cudnn.benchmark = True  # as both training loops do
    size = {"batchsize": 2, "crop_size": 33}
    if machine.on_gpu:
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        size = {"batchsize": 16 if memory > 38 else 8 if memory > 20 else 4, "crop_size": 465}
    machine.figures.update(size)
    options: dict = size | {"device": machine.device, "amp": amp, "compiled": compiled}
    ours = {name: partial(step.ours, name, **options) for name in step.MODEL_TYPES}
    return {"torchvision": partial(step.torchvision_loop, **options)} | ours


def _measured(machine: Machine, make: Callable[[], step.Step]) -> dict[str, float]:
    """Return {"ms" of a step, "gib" at its peak}."""
    run, calls = make(), 5 if machine.on_gpu else 1
    for _ in range(2):
        run()
    if machine.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    ms = 1e3 / calls * statistics.median(_seconds(machine, run, calls) for _ in range(3))
    gib = torch.cuda.max_memory_allocated() / 2**30 if machine.on_gpu else 0.0
    del run
    gc.collect()
    if machine.on_gpu:
        torch.cuda.empty_cache()
    return {"ms": ms, "gib": gib}


def _seconds(machine: Machine, work: Callable[[], object], calls: int) -> float:
    machine.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    machine.synchronize()
    return time.perf_counter() - start


def loader_rate(machine: Machine) -> str:
    """The loader's images per second: compare them with the time of a step in the part "speed"."""
    cfg = parse_flags([*_demo(machine), "--crop_size", "465" if machine.on_gpu else "65", "--repeat", "8"])
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
        statistics.median(_metrics(_train(machine, f"scaling_{in_all}", *words, in_all=in_all), "images_per_s")[2:])
        for in_all in (False, True)
    )
    machine.figures.update({"one": one, "all": many})
    size = machine.num_processes
    return f"{one:.1f} images/s on 1, {many:.1f} on {size}: {many / one / size:.0%} of linear scaling"
