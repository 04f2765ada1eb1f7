"""Scripts that start train.py: strict, short, the same on Windows, and what clusters need; .vscode/launch.json."""

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys

import pytest
import torch.distributed.run
import yaml
from conftest import REPO, finish, free_port, refused, start

from flags import parse_flags
from flags.programs import EVALUATE, EXPORT, PREDICT, READER
from scripts import launch

SHELL = sorted([*REPO.glob("*.sh"), *REPO.glob("scripts/*.sh")])


def test_shellcheck():
    program = shutil.which("shellcheck", path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    if not program:
        pytest.skip("shellcheck is not installed (pip install -e '.[dev]')")
    files = [*SHELL, REPO / "scripts/slurm.sbatch", REPO / ".ci/run"]
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def run_shell(name: str, words: list[str], tmp_path, **variables: str) -> list[str]:
    """The words that NAME.sh passes to launch.py, from a fake Python that prints its words."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    python.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "PYTHON": str(python)} | variables
    done = subprocess.run(["bash", REPO / f"{name}.sh", *words], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    program, *passed = json.loads(done.stdout)
    assert program == str(REPO / "scripts/launch.py")
    return [os.path.normpath(word) if "/" in word else word for word in passed]


WORDS = ["--lr", "0.1", "--name", "a run"]
TRAIN = str(REPO / "train.py")
TORCHRUN = ["torch.distributed.run", "--standalone", TRAIN, "--distributed"]


def test_words_that_shell_scripts_pass_on(tmp_path):
    assert run_shell("train_torchrun", WORDS, tmp_path) == [*TORCHRUN, *WORDS]
    # The Python of an active environment comes before that of .venv, which would refuse NUM_GPUS.
    active = {"PYTHON": "", "VIRTUAL_ENV": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}", "NUM_GPUS": "x"}
    assert run_shell("train_torchrun", WORDS, tmp_path, **active) == [*TORCHRUN, *WORDS]
    assert run_shell("train_ddp", WORDS, tmp_path) == ["torch.distributed.launch", *TORCHRUN[1:], *WORDS]
    passed = run_shell("scripts/train_multi_gpu", ["configs/demo.yaml", "pretrain", *WORDS], tmp_path)
    assert passed == [*TORCHRUN, "--config", "configs/demo.yaml", "--stage", "pretrain", *WORDS]

    def options(num: str, rank: str, host: str, file: str) -> list[str]:
        nodes = ["--nnodes", num, "--node_rank", rank, "--master_addr", host]
        return ["torch.distributed.run", *nodes, TRAIN, "--config", file, *WORDS]

    default = str(REPO / "configs/ddp_example.yaml")
    assert run_shell("run_ddp", WORDS, tmp_path) == options("1", "0", "localhost", default)
    machines = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "node0"}
    passed = run_shell("run_ddp", WORDS, tmp_path, **machines, CONFIG="x.yaml")
    assert passed == options("2", "1", "node0", "x.yaml")
    with pytest.raises(AssertionError, match=r"usage: train_multi_gpu\.sh CONFIG STAGE"):
        run_shell("scripts/train_multi_gpu", ["configs/demo.yaml"], tmp_path)


@pytest.mark.parametrize("name", ["train_torchrun", "train_ddp", "run_ddp"])
def test_batch_files_pass_on_the_same_words_as_shell_scripts(name):
    """By their text: the last command, without the default values of variables."""
    shell, batch = ((REPO / file).read_text() for file in (f"{name}.sh", f"scripts/{name}.bat"))
    command = shell.replace("\\\n", " ").splitlines()[-1].removeprefix("exec bash ")
    command = re.sub(r"\$\{(\w+):[-+][^}]*\}", r"%\1%", command)
    command = command.replace("$here/scripts/launch.sh", "%~dp0launch.bat").replace("$here/", "%~dp0..\\")
    command = command.replace("$@", "%*")
    batch_command = batch.replace("^\n", " ").splitlines()[-1]
    assert batch_command.replace('"', "").split() == command.replace('"', "").split()


@pytest.mark.parametrize("platform", ["linux", "win32"])
@pytest.mark.parametrize(("variables", "gpus", "number"), [({}, 3, "3"), ({}, 0, "2"), ({"NUM_GPUS": "4"}, 3, "4")])
def test_launcher_starts_a_process_for_each_gpu(monkeypatch, platform, variables, gpus, number):
    started = []
    monkeypatch.setattr(torch.distributed.run, "run", started.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.distributed, "TCPStore", torch.distributed.TCPStore)  # put back at the end
    monkeypatch.setattr(sys, "platform", platform)
    get_parser = torch.distributed.run.get_args_parser

    def parser_of_torch_2_11() -> argparse.ArgumentParser:
        parser = get_parser()
        parser.set_defaults(master_port=29500)
        return parser

    monkeypatch.setattr(torch.distributed.run, "get_args_parser", parser_of_torch_2_11)
    for name in ("NUM_GPUS", "OMP_NUM_THREADS", "USE_LIBUV", "MASTER_PORT", "PET_MASTER_PORT", "CONFIG", "TASK"):
        monkeypatch.setenv(name, "")  # put back at the end
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launch.main("torch.distributed.run", "--standalone", "train.py") == 0
    monkeypatch.setenv("NNODES", "")  # an empty variable is not set
    monkeypatch.setenv("PET_MASTER_PORT" if gpus else "MASTER_PORT", str(port := free_port()))
    assert launch.main("torch.distributed.launch", "--standalone", "train.py", "--lr", "1") == 0
    monkeypatch.setenv("CONFIG", "a.yaml")
    monkeypatch.setenv("TASK", "test")
    assert launch.main("torch.distributed.run", "--standalone", "train.py", "--task=predict") == 0
    assert launch.main("torch.distributed.run", "--standalone", "evaluate.py", "--scripts") == 0
    words = [args.training_script_args for args in started[2:]]
    assert words == [["--task=predict", "--config", "a.yaml"], ["--scripts"]]
    del started[2:]
    for args in started:  # Windows has none of the signals
        seen = (args.nproc_per_node, args.training_script, args.signals_to_handle == launch.SIGNALS)
        assert seen == (number, "train.py", platform != "win32")
    assert [args.standalone for args in started] == [True, False]
    assert (started[1].rdzv_backend, started[1].master_port, started[1].node_rank) == ("static", port, 0)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert (torch.distributed.TCPStore is launch.StoreWithoutLibuv) == (platform == "win32")


@pytest.mark.parametrize(
    ("variables", "words", "named"),
    [
        ("MASTER_PORT=TAKEN", "--standalone", "port TAKEN: "),
        ("MASTER_PORT=TAKEN", "--nnodes 2 --node_rank 0 --master_addr node0", "in use: set MASTER_PORT to another"),
        ("MASTER_PORT=70000", "--standalone", "port 70000: "),
        ("MASTER_PORT=http", "--standalone", "variable MASTER_PORT is 'http': set it to a number"),
        ("PET_MASTER_PORT=-1", "--standalone", "variable PET_MASTER_PORT is '-1': set it to a number"),
        ("NUM_GPUS=all", "--standalone", "variable NUM_GPUS is 'all'"),
        ("NNODES=2", "--standalone", "NNODES is 2, but this script is for one machine: use run_ddp"),
        ("NNODES=2", "--nnodes 2 --master_addr localhost", "MASTER_ADDR: set it to the address of the machine"),
        ("", "--nnodes 2 --node_rank 2 --master_addr node0", "NODE_RANK 2 with NNODES 2: it must be below NNODES"),
    ],
)
def test_a_setting_that_torch_answers_with_a_traceback_is_one_line(monkeypatch, variables, words, named):
    monkeypatch.setattr(torch.distributed.run, "run", lambda args: pytest.fail("started"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        variables, named = (text.replace("TAKEN", str(server.getsockname()[1])) for text in (variables, named))
        for pair in variables.split():
            monkeypatch.setenv(*pair.split("="))
        with refused(named):
            launch.main("torch.distributed.run", *words.split(), "train.py")


def test_kubernetes_job():
    job, *claims = yaml.safe_load_all((REPO / "scripts/k8s-trainjob.yaml").read_text())
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["command"]) == (2, 8, ["torchrun"])
    cfg = parse_flags(trainer["args"][1:])
    assert (cfg.resume, cfg.logdir, cfg.dataset_path[:6]) == ("auto", "/log", "/data/")
    assert [claim["kind"] for claim in claims] == ["PersistentVolumeClaim"] * 2


LAUNCH = json.loads((REPO / ".vscode/launch.json").read_text())
ENTRIES = {entry["name"]: entry for entry in LAUNCH["configurations"]}
# What makes a training small. It comes last, so that the entry's own words still count.
SMALL = ["--layers", "18", "--crop_size", "33", "--batchsize", "2"]
SMALL += ["--max_steps", "1", "--pretrained", "none", "--device", "cpu"]


def words(name: str) -> list[str]:
    """The entry's words, with the answers to what VS Code asks for."""
    answers = {"folder": "my data", "numclasses": "5"}
    assert {asked["id"] for asked in LAUNCH["inputs"]} == set(answers)
    found = ENTRIES[name]["args"]
    for asked, answer in answers.items():
        found = [word.replace(f"${{input:{asked}}}", answer) for word in found]
    assert not [word for word in found if "${" in word]
    return found


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_has_a_program_and_flags_that_it_reads(name):
    assert ENTRIES[name]["type"] == "debugpy"
    if "module" in ENTRIES[name]:
        assert (ENTRIES[name]["module"], words(name)) == ("tools.check", ["my data"])
        return
    program = ENTRIES[name]["program"].removeprefix("${workspaceFolder}/")
    assert (REPO / program).is_file()
    readers = {"train.py": READER, "evaluate.py": EVALUATE, "predict.py": PREDICT, "export.py": EXPORT}
    readers[program].command_line(words(name))  # raises UserError on an unknown flag


def test_training_starts_in_a_group(demo_root, tmp_path):
    (tmp_path / "configs").symlink_to(REPO / "configs")
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset/demo").symlink_to(demo_root)
    env = ENTRIES["Debug DDP Training"]["env"]
    assert env["MASTER_PORT"] == "12355"
    env |= {"MASTER_PORT": free_port(), "NCCL_TIMEOUT": 1800}  # other tests may run at the same time
    own = words("Debug DDP Training")
    assert " ".join(own).startswith("--distributed --local_rank 0 --layers 50 --model_type res50_ASPP_lorm ")
    [(status, stdout, stderr)] = finish([start([*own, *SMALL], tmp_path, **env)])
    assert (status, "one process in a group (gloo)" in stdout) == (0, True), stderr
    # The first line is this, and not the one on variables that an earlier command may have left.
    assert stderr.startswith("warning: nothing reads NCCL_TIMEOUT: use --dist_timeout (now 600 s)\n")


def test_only_the_last_attempt_says_how_a_run_ended(monkeypatch):
    monkeypatch.setattr(launch.Process, "started", [])
    for attempt in ("0", "1"):  # of --max_restarts
        launch.Process([sys.executable, "-c", ""], env=os.environ | {"TORCHELASTIC_RESTART_COUNT": attempt}).wait()
    assert [process.attempt for process in launch.Process.started] == ["1"]
