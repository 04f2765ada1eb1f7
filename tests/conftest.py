"""What the tests share: a tiny drawn data set, the real samples, and training as a user starts it."""

import functools
import json
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import chaos
import pytest
import thin_networks
import torch
from chaos import free_port
from python_server import PythonServer, Started
from torch.autograd.graph import saved_tensors_hooks

import evaluate
import models
import train
from data.demo import draw_dataset
from distributed.group import Group
from flags import as_dict, parse_flags
from support.errors import UserError

REPO = Path(__file__).parent.parent
FAULTS = "tests/train_with_fault.py"  # a program, for start()
FLOAT64 = f"{FAULTS} float64 all"
SHARED_DATA = REPO.parent / "shared" / "data"

# Checkpoints are synced to the disk: for many small runs this takes minutes, in memory none.
if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 8 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

# The tests themselves may run under a launcher.
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "PET_", "SLURM_")
for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
    del os.environ[name]

# A model and crops small enough to train in a second.
TINY = {"dataset": "ScribblePseudoDsDc", "numclasses": 5, "layers": 18, "pretrained": "none", "device": "cpu"}
TINY |= {"crop_size": 33, "batchsize": 2, "epochs": 1, "lr": 0.01, "warmup_epochs": 0, "workers": 0, "log_interval": 1}
TINY |= {"amp": "none"}  # whatever this machine computes natively


DENSE = {"dataset": "Dense", "model_type": "res50_ASPP"}
ALONE = Group(torch.device("cpu"))

# The files that take longest come first: a worker without files waits for the other one.
SLOWEST = ("test_two_nodes", "test_docs", "test_distributed", "test_train", "test_faults", "test_resume", "test_export")


def pytest_collection_modifyitems(items) -> None:
    order = {name: number for number, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.fixture(scope="session")
def demo_root(tmp_path_factory) -> Path:
    """8 training and 3 validation images of the demo data."""
    root = tmp_path_factory.mktemp("data") / "demo"
    draw_dataset(root, num_train=8, num_val=3)
    return root


@pytest.fixture(scope="session")
def scribblesup() -> Path:
    return _real_data("scribblesup_sample")


@pytest.fixture(scope="session")
def camvid() -> Path:
    return _real_data("camvid")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item) -> None:
    """Build thin networks, here and in processes, unless the test is marked full_size; and reset logging."""
    thin_networks.use(item.get_closest_marker("full_size") is None)
    log = logging.getLogger("segtrain")
    log.handlers, log.propagate, log.level = [], True, logging.INFO  # for caplog


@functools.cache
def python_server() -> PythonServer:
    return PythonServer(REPO)


def pytest_unconfigure() -> None:
    if python_server.cache_info().currsize:
        python_server().close()


@pytest.fixture(scope="session")
def python() -> PythonServer:
    return python_server()


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 250 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=250m", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture(scope="session")
def browser() -> Iterator:
    """Chromium, by playwright's API."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (pip install -e '.[dev]')"
    )
    found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    if not found:
        pytest.skip("no chromium, chromium-browser or google-chrome in PATH")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found[0], args=["--no-sandbox"])
        yield browser
        browser.close()


def _real_data(name: str) -> Path:
    if not (SHARED_DATA / name).is_dir():
        pytest.skip(f"{SHARED_DATA / name} is not there")
    return SHARED_DATA / name


def flags(**values) -> list[str]:
    """Command-line flags of TINY, changed by `values`; None leaves a flag out."""
    words = []
    for name, value in (TINY | values).items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", str(value)]
    return words


def run_train(**values) -> Path:
    """Train in this process. Returns the newest run's folder."""
    train.main(flags(**values))
    return max(Path(values["logdir"]).iterdir(), key=lambda folder: folder.stat().st_mtime)


@pytest.fixture
def demo_flags(demo_root, tmp_path) -> Callable[..., list[str]]:
    """flags() of a run on the demo data, in tmp_path."""
    return functools.partial(flags, dataset_path=demo_root, logdir=tmp_path)


@pytest.fixture
def demo_run(demo_root, tmp_path) -> Callable[..., Path]:
    """run_train() on the demo data, in tmp_path."""
    return functools.partial(run_train, dataset_path=demo_root, logdir=tmp_path)


def using(checkpoint: Path, *words: object) -> list[str]:
    """Words of a program that uses a checkpoint, here."""
    return ["--checkpoint", str(checkpoint), "--device", "cpu", "--workers", "0", *map(str, words)]


def score(checkpoint: Path, folder: Path, *words: object) -> dict:
    """What evaluate.py writes to a JSON file, in this folder."""
    assert evaluate.main(using(checkpoint, "--json", folder / "scores.json", *words)) == 0
    return json.loads((folder / "scores.json").read_text())


def smooth_images(number: int, height: int, width: int) -> torch.Tensor:
    """Ones in which neighbours differ less than far-away pixels do, (B, H, W, 3) uint8."""
    noise = torch.rand(number, 3, 7, 9, generator=torch.Generator().manual_seed(0)) * 255
    values = torch.nn.functional.interpolate(noise, size=(height, width), mode="bicubic")
    return values.clamp(0, 255).byte().permute(0, 2, 3, 1)


def varied_model(model_type: str, num_classes: int, seed: int) -> torch.nn.Module:
    """A model of random weights, in eval mode, whose predictions vary from pixel to pixel."""
    torch.manual_seed(seed)
    model = models.build(model_type, layers=18, num_classes=num_classes)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0  # statistics of this one batch: no class then wins everywhere
        if isinstance(module, torch.nn.Conv2d) and (module.out_channels, module.kernel_size) == (num_classes, (1, 1)):
            torch.nn.init.normal_(module.weight, std=0.1)
    model.train()(smooth_images(4, 48, 48))
    return model.eval()


def random_checkpoint(path: Path, num_classes: int, **values) -> Path:
    """Write a checkpoint of a varied model. values: of train.py's flags."""
    model = varied_model("res50_ASPP", num_classes, seed=1)
    own = {"dataset": "Dense", "model_type": "res50_ASPP", "numclasses": num_classes, "dataset_path": "."}
    words = flags(**own | values)
    torch.save({"model": model.state_dict(), "config": as_dict(parse_flags(words))}, path)
    return path


def read_metrics(folder: Path, kind: str) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def assert_same_run(folder: Path, expected: Path) -> None:
    """Both runs ended with the same weights, optimizer, metrics and TensorBoard curves, bit for bit."""
    assert chaos.compare(expected, folder) == []


def start(words: list[str], cwd: Path, program: str = "train.py", **env) -> Started:
    """Start a program of the repository, or with "-m" a module, as a process of its own, as a launcher would."""
    name, *first = program.split()
    words = [name if name == "-m" else str(REPO / name), *first, *words]
    return python_server().start(words, cwd, os.environ | {name: str(value) for name, value in env.items()})


def start_group(
    world_size: int, words: list, cwd: Path, program: str = "train.py", ranks: Iterable[int] | None = None, **env
) -> list[Started]:
    """Start the processes of a group by hand, as torchrun would: RANK, WORLD_SIZE and the rest in the environment.

    words: of all processes, or a list of each one's. ranks: which to start, if not each once.
    """
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": world_size} | env
    own = words if isinstance(words[0], list) else [words] * world_size
    return [start(own[rank], cwd, program, RANK=rank, LOCAL_RANK=rank, **env) for rank in ranks or range(world_size)]


two_processes = functools.partial(start_group, 2)


def finish(processes: list, timeout: float = 120, status: int | None = None) -> list[tuple[int, str, str]]:
    """Exit status, stdout and stderr of each process. None may outlast `timeout` seconds, and all end with `status`."""
    try:
        results = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    ended = [(process.returncode, *output) for process, output in zip(processes, results, strict=True)]
    assert status is None or {result[0] for result in ended} == {status}, ended
    return ended


def succeed(processes: list, timeout: float = 120) -> list[str]:
    """stdout of each process. All end with status 0."""
    return [stdout for _, stdout, _ in finish(processes, timeout, status=0)]


def wait_until(condition: Callable[[], object], processes: list, seconds: float = 120) -> None:
    """Wait for what running processes bring about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert all(process.poll() is None for process in processes), [process.communicate() for process in processes]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether the process has not ended; one that no parent has waited for yet is a zombie."""
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def bytes_kept(model: torch.nn.Module, *inputs: object) -> list[int]:
    """Sizes of all that a forward pass keeps for the backward pass, except for the model's parameters and buffers."""
    own = {value.untyped_storage()._cdata for value in (*model.parameters(), *model.buffers())}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        storages[value.untyped_storage()._cdata] = value.untyped_storage()
        return value.detach()

    with saved_tensors_hooks(keep, lambda value: value):
        model(*inputs)
    return [storage.nbytes() for key, storage in storages.items() if key not in own]


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of each file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kill(processes: list) -> None:
    for process in processes:
        process.kill()
        process.wait()


def count_lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def errors_of(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("error")]


def refused(named: str):
    """The user's error is one line that has this text."""
    return pytest.raises(UserError, match=rf"\A.*{re.escape(named)}.*\Z")


def one_line_each(results, named: str) -> None:
    """Every process ended with status 2 and said `named` in one line, without a traceback."""
    for status, stdout, stderr in results:
        assert status == 2, (stdout, stderr)
        lines = errors_of(stderr)
        assert len(lines) == 1, stderr
        assert named in lines[0], stderr
        assert "Traceback" not in stderr
        assert "frame #" not in stderr  # nor a C++ one, of a store that went away too early
