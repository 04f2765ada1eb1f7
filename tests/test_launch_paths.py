"""However two processes are started, the same recipe ends with the same weights, bit for bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import REPO, TINY, assert_same_run, finish, flags, free_port, start, start_group

TRAIN = str(REPO / "train.py")


@pytest.fixture(scope="module")
def recipe(demo_root):
    """Two steps: the second begins with what the processes made of the first."""
    return {"dataset_path": demo_root, "epochs": 1, "seed": 3}


@pytest.fixture(scope="module")
def expected(recipe, tmp_path_factory):
    """The run's folder when both processes are started by hand."""
    logdir = tmp_path_factory.mktemp("by_hand")
    results = finish(start_group(2, flags(**recipe, logdir=logdir, name="x"), logdir))
    assert [status for status, _, _ in results] == [0, 0], results
    return logdir / "x"


def script(name: str, words: list[str], cwd: Path, **env) -> list[subprocess.Popen]:
    env = os.environ | {"PYTHON": sys.executable, "NUM_GPUS": "2", "OMP_NUM_THREADS": "1"} | env
    command = ["bash", str(REPO / name), *words]
    return [subprocess.Popen(command, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)]


def module(words: list[str], cwd: Path, **env) -> list:
    """python -m, with words after it."""
    return [start(words, cwd, "-m", OMP_NUM_THREADS=1, **env)]


def train_torchrun(words, cwd):
    return script("train_torchrun.sh", words, cwd)


def train_ddp(words, cwd):
    return script("train_ddp.sh", words, cwd)


def torchrun_by_hand(words, cwd):
    return module(["torch.distributed.run", "--standalone", "--nproc_per_node", "2", TRAIN, *words], cwd)


# Guide 0's, with two processes.
LAUNCH = ["torch.distributed.launch", "--nnodes=1", "--node_rank=0", "--master_addr=localhost"]


def launch_with_dashes(words, cwd):
    return module([*LAUNCH, "--nproc_per_node=2", f"--master_port={free_port()}", "--", TRAIN, *words], cwd)


def launch_use_env(words, cwd):
    launch = ["torch.distributed.launch", "--nproc_per_node=2", f"--master_port={free_port()}", "--use_env"]
    return module([*launch, TRAIN, "--distributed", *words], cwd)


def two_agents(words, cwd):
    """Of torchrun, as on two machines; the second gets its options as Kubeflow's runtime hands them over."""
    port = free_port()
    options = ["--nproc_per_node=1", "--nnodes=2", "--node_rank=0", "--master_addr=127.0.0.1", f"--master_port={port}"]
    variables = {
        "PET_NPROC_PER_NODE": 1, "PET_NNODES": 2, "PET_NODE_RANK": 1, "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port,
    }  # fmt: skip
    return [
        *module(["torch.distributed.run", *options, TRAIN, *words], cwd),
        *module(["torch.distributed.run", TRAIN, *words], cwd, **variables),
    ]


def without_libuv(words, cwd):
    """As the .bat files start it, where torch's store ends with an error unless it is told to do without."""
    (cwd / "sitecustomize.py").write_text(
        "import torch.distributed as dist\n"
        "class Store(dist.TCPStore):\n"
        "    def __init__(self, *args, **options):\n"
        "        if options.get('use_libuv', True): raise RuntimeError('built without libuv')\n"
        "        super().__init__(*args, **options)\n"
        "dist.TCPStore = Store\n"
    )
    command = [sys.executable, str(REPO / "scripts/without_libuv.py"), "torch.distributed.run", "--standalone"]
    env = os.environ | {"PYTHONPATH": str(cwd), "USE_LIBUV": "0", "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [*command, "--nproc_per_node", "2", TRAIN, *words],
            env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
    ]  # fmt: skip


def tcp_url(words, cwd):
    url = f"tcp://127.0.0.1:{free_port()}"
    words = [*words, "--distributed", "--dist_url", url, "--world_size", "2", "--rank"]
    return [start([*words, str(rank)], cwd) for rank in (0, 1)]


def file_url(words, cwd):
    words = [*words, "--distributed", "--dist_url", f"file://{cwd}/meeting", "--world_size", "2", "--rank"]
    return [start([*words, str(rank)], cwd) for rank in (0, 1)]


def srun(words, cwd):
    step = {
        "SLURM_JOB_ID": os.getpid(), "SLURM_STEP_ID": 0, "SLURM_NTASKS": 2, "SLURM_STEP_NUM_TASKS": 2,
        "SLURM_STEP_NODELIST": "localhost", "MASTER_PORT": free_port(),
    }  # fmt: skip
    return [start(words, cwd, **step, SLURM_PROCID=rank, SLURM_LOCALID=rank) for rank in (0, 1)]


def mpirun(words, cwd):
    job = {"OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_SIZE": 2, "PMIX_NAMESPACE": f"prterun-{cwd}"}
    return [
        start(words, cwd, **job, OMPI_COMM_WORLD_RANK=rank, OMPI_COMM_WORLD_LOCAL_RANK=rank) for rank in (0, 1)
    ]  # fmt: skip


PATHS = [
    train_torchrun, train_ddp, torchrun_by_hand, launch_with_dashes, launch_use_env, two_agents, without_libuv, tcp_url,
    file_url, srun, mpirun,
]  # fmt: skip


def assert_as_expected(results, folder: Path, expected: Path) -> None:
    assert {status for status, _, _ in results} == {0}, results
    output = "".join(stdout for _, stdout, _ in results)
    for rank in (0, 1):
        assert f"rank {rank}, local rank" in output
    assert output.count("world size 2") == 2
    assert_same_run(folder, expected)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_same_weights_by_any_launch_path(recipe, expected, tmp_path, path):
    results = finish(path(flags(**recipe, logdir=tmp_path / "log", name="x"), tmp_path))
    assert_as_expected(results, tmp_path / "log" / "x", expected)
    launcher = {"torchrun_by_hand": "torchrun", "launch_with_dashes": "torchrun", "srun": "srun", "mpirun": "mpirun"}
    if path.__name__ in launcher:
        assert f"joining the group of {launcher[path.__name__]}; --no_distributed would not" in results[0][1]
    if path is file_url:
        assert not (tmp_path / "meeting").exists()  # nothing is left over


def test_same_weights_by_run_ddp(recipe, expected, tmp_path):
    file = tmp_path / "x.yaml"
    values = TINY | recipe | {"dataset_path": str(recipe["dataset_path"]), "logdir": str(tmp_path / "log")}
    file.write_text(yaml.safe_dump(values))
    results = finish(script("run_ddp.sh", [], tmp_path, CONFIG=str(file), MASTER_PORT=str(free_port())))
    assert_as_expected(results, tmp_path / "log" / "x", expected)


def test_same_weights_by_train_multi_gpu(recipe, expected, tmp_path):
    file = tmp_path / "x.yaml"
    values = TINY | recipe | {"dataset_path": str(recipe["dataset_path"]), "logdir": str(tmp_path / "log"), "epochs": 7}
    file.write_text(yaml.safe_dump(values | {"stages": {"short": {"epochs": recipe["epochs"]}, "long": {"epochs": 9}}}))
    results = finish(script("scripts/train_multi_gpu.sh", [str(file), "short"], tmp_path))
    assert_as_expected(results, tmp_path / "log" / "x-short", expected)


def launched_one(words, cwd):
    """Guide 0's command to the letter, but for the port, which two tests may want at once."""
    return module([*LAUNCH, "--nproc_per_node=1", f"--master_port={free_port()}", "--", TRAIN, *words], cwd)


def torchrun_one(words, cwd):
    return module(["torch.distributed.run", "--standalone", "--nproc_per_node=1", TRAIN, *words], cwd)


def variables_one(words, cwd):
    return start_group(1, words, cwd, MASTER_ADDR="localhost")


@pytest.mark.parametrize("path", [launched_one, torchrun_one, variables_one], ids=lambda path: path.__name__)
def test_one_process_in_a_group(demo_root, tmp_path, path):
    words = [*flags(dataset_path=demo_root, logdir=tmp_path / "log", name="x"), "--backend=gloo"]
    [(status, stdout, stderr)] = finish(path(words, tmp_path))
    assert status == 0, stderr
    assert (
        "rank 0, local rank 0, world size 1, device cpu, one process in a group (gloo), batch 2 per process" in stdout
    )
    assert (tmp_path / "log" / "x" / "last.pt").is_file()


def test_trains_without_what_windows_lacks(demo_root, tmp_path):
    words = flags(dataset_path=demo_root, logdir=tmp_path / "log", name="x", distributed=True)
    done = subprocess.run(
        [sys.executable, REPO / "tests/without_posix.py", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 50
    assert (tmp_path / "log" / "x" / "best.pt").is_file()
