"""However two processes are started, the same config ends with the same weights, bit for bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import REPO, assert_same_run, flags, free_port, python_server, start, start_group, succeed

pytestmark = [pytest.mark.slow, pytest.mark.full_size]  # two of its tests start new interpreters
TRAIN = str(REPO / "train.py")


@pytest.fixture(scope="module")
def values(demo_root):
    """Two steps: the second begins with what the processes made of the first."""
    return {"dataset_path": str(demo_root), "epochs": 1, "seed": 3}


@pytest.fixture(scope="module")
def expected(values, tmp_path_factory):
    """The run's folder when both processes are started by hand."""
    logdir = tmp_path_factory.mktemp("by_hand")
    succeed(start_group(2, flags(**values, logdir=logdir, name="x"), logdir))
    return logdir / "x"


def program(command: list[str], cwd: Path, **env) -> list[subprocess.Popen]:
    env = os.environ | {"NUM_GPUS": "2", "OMP_NUM_THREADS": "1"} | python_server().env | env
    return [subprocess.Popen(command, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)]


def module(words: list[str], cwd: Path, **env) -> list:
    """python -m, with words after it."""
    return [start(words, cwd, "-m", OMP_NUM_THREADS=1, **env)]


def launch_with_dashes(words, cwd):
    """Guide 0's command to the letter, except for the port, which two tests may want at once."""
    nodes = ["--nnodes=1", "--node_rank=0", "--master_addr=localhost", "--nproc_per_node=2"]
    return module(["torch.distributed.launch", *nodes, f"--master_port={free_port()}", "--", TRAIN, *words], cwd)


def launch_use_env(words, cwd):
    launch = ["torch.distributed.launch", "--nproc_per_node=2", f"--master_port={free_port()}", "--use_env"]
    return module([*launch, TRAIN, "--distributed", *words], cwd)


def two_agents(words, cwd):
    """Two torchrun, as on two machines; the second gets its options as Kubeflow's runtime passes them."""
    options = {"nproc_per_node": 1, "nnodes": 2, "master_addr": "127.0.0.1", "master_port": free_port()}
    by_flags = [f"--{name}={value}" for name, value in options.items()]
    by_variables = {f"PET_{name.upper()}": value for name, value in options.items()}
    return [
        *module(["torch.distributed.run", *by_flags, "--node_rank=0", TRAIN, *words], cwd),
        *module(["torch.distributed.run", TRAIN, *words], cwd, **by_variables, PET_NODE_RANK=1),
    ]


def without_libuv(words, cwd):
    """As on Windows, where torch's store raises an error unless it is told to do without libuv."""
    (cwd / "sitecustomize.py").write_text(
        "import torch.distributed as dist\n"
        "class Store(dist.TCPStore):\n"
        "    def __init__(self, *args, **options):\n"
        "        if options.get('use_libuv', True): raise RuntimeError('built without libuv')\n"
        "        super().__init__(*args, **options)\n"
        "dist.TCPStore = Store\n"
    )
    command = [sys.executable, str(REPO / "scripts/launch.py"), "torch.distributed.run", "--standalone", TRAIN, *words]
    return program(command, cwd, PYTHONPATH=str(cwd), USE_LIBUV="0")


def by_url(words, cwd, url):
    words = [*words, "--distributed", "--dist_url", url, "--world_size", "2", "--rank"]
    return [start([*words, str(rank)], cwd) for rank in (0, 1)]


def srun(words, cwd):
    variables = {"SLURM_JOB_ID": os.getpid(), "SLURM_STEP_ID": 0, "SLURM_NTASKS": 2, "SLURM_STEP_NUM_TASKS": 2}
    variables |= {"SLURM_STEP_NODELIST": "localhost", "MASTER_PORT": free_port()}
    return [start(words, cwd, **variables, SLURM_PROCID=rank, SLURM_LOCALID=rank) for rank in (0, 1)]


def config_file(words, cwd, **more) -> str:
    pairs = zip(words[::2], words[1::2], strict=True)
    values = {name.removeprefix("--"): yaml.safe_load(value) for name, value in pairs}
    (cwd / "x.yaml").write_text(yaml.safe_dump(values | more))
    return str(cwd / "x.yaml")


def run_ddp(words, cwd):
    variables = {"CONFIG": config_file(words, cwd), "MASTER_PORT": str(free_port())}
    return program(["bash", str(REPO / "run_ddp.sh")], cwd, **variables)


def train_multi_gpu(words, cwd):
    file = config_file(words, cwd, epochs=7, stages={"short": {"epochs": 1}, "long": {"epochs": 9}})
    return program(["bash", str(REPO / "scripts/train_multi_gpu.sh"), file, "short"], cwd)


PATHS = {
    "train_torchrun.sh": lambda words, cwd: program(["bash", str(REPO / "train_torchrun.sh"), *words], cwd),
    "train_ddp.sh": lambda words, cwd: program(["bash", str(REPO / "train_ddp.sh"), *words], cwd),
    "run_ddp.sh": run_ddp,
    "train_multi_gpu.sh": train_multi_gpu,
    "launch --": launch_with_dashes,
    "launch --use_env": launch_use_env,
    "two torchrun": two_agents,
    "without libuv": without_libuv,
    "tcp://": lambda words, cwd: by_url(words, cwd, f"tcp://127.0.0.1:{free_port()}"),
    "file://": lambda words, cwd: by_url(words, cwd, f"file://{cwd}/store"),
    "srun": srun,
}


@pytest.mark.parametrize("path", PATHS)
def test_same_weights_by_any_launch_path(values, expected, tmp_path, path):
    output = "".join(succeed(PATHS[path](flags(**values, logdir=tmp_path / "log", name="x"), tmp_path)))
    for rank in (0, 1):
        assert f"rank {rank}, local rank" in output
    assert output.count("world size 2") == 2
    folder = tmp_path / "log" / ("x-short" if path == "train_multi_gpu.sh" else "x")
    assert_same_run(folder, expected)
    launcher = {"launch --": "torchrun", "srun": "srun"}
    if path in launcher:
        log = (folder / "train.log").read_text()
        assert f"joining the process group of {launcher[path]}; with --no_distributed this process trains alone" in log


def test_trains_without_what_windows_lacks(demo_root, tmp_path):
    words = flags(dataset_path=demo_root, logdir=tmp_path / "log", name="x", distributed=True)
    [stdout] = succeed(program([sys.executable, str(REPO / "tests/without_posix.py"), *words], tmp_path))
    assert int(stdout.split()[0]) > 50
    assert (tmp_path / "log" / "x" / "best.pt").is_file()
