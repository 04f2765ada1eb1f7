"""Scripts that start train.py: strict, short, the same on Windows, and what clusters need to find in theirs."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import REPO

import config

SHELL = sorted([*REPO.glob("*.sh"), *REPO.glob("scripts/*.sh")])
PAIRS = ["train_torchrun", "train_ddp", "run_ddp", "scripts/train_multi_gpu"]


def name_of(path: Path) -> str:
    return str(path.relative_to(REPO))


@pytest.mark.parametrize("script", SHELL, ids=name_of)
def test_scripts_are_short_strict_and_pass_everything_on(script):
    text = script.read_text()
    assert len(text.splitlines()) <= 15
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text
    assert text.rstrip().endswith('"$@"')
    assert os.access(script, os.X_OK)
    assert len(script.with_suffix(".bat").read_text().splitlines()) <= 15


def test_shellcheck():
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not program:
        pytest.skip("shellcheck is not installed (requirements-dev.txt)")
    files = [*SHELL, REPO / "scripts/slurm.sbatch", REPO / ".ci/run"]
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def run_shell(name: str, words: list[str], variables: dict[str, str], tmp_path: Path) -> list[str]:
    """The words that NAME.sh gives to python, in place of which something stands that prints them and sees 2 GPUs."""
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport json, sys\nprint(2 if sys.argv[1] == '-c' else json.dumps(sys.argv[1:]))\n"
    )
    python.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "PYTHON": str(python)} | variables
    done = subprocess.run(["bash", REPO / f"{name}.sh", *words], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_batch(name: str, words: list[str], variables: dict[str, str]) -> list[str]:
    """The words that NAME.bat gives to python, by its text: this reads the few forms of command that ours have."""
    path = REPO / f"{name}.bat"
    variables = {"PYTHON": "python"} | variables

    def filled(text: str) -> str:
        text = text.replace("%~dp0", f"{path.parent}/").replace("%*", " ".join(map(shlex.quote, words)))
        text = re.sub(r"%~(\d)", lambda match: [*words, *[""] * 9][int(match[1]) - 1], text)
        return re.sub(r"%(\w+)%", lambda match: variables.get(match[1], ""), text)

    for line in path.read_text().replace("^\n", "").splitlines():
        statements = line[1:-1].split(") & (") if line.startswith("(") else [line]
        for statement in statements:
            rest = statement
            while match := re.match(r'if (not )?(?:defined (\w+)|exist "([^"]+)"|"([^"]*)"=="([^"]*)") ', rest):
                no, defined, file, left, right = match.groups()
                if defined:
                    holds = defined in variables
                else:
                    holds = os.path.exists(filled(file)) if file else filled(left) == filled(right)
                rest = rest[match.end() :] if holds != bool(no) else "rem"
            if rest.startswith(("@echo off", "rem", "setlocal")):
                continue
            if match := re.fullmatch(r'set "(\w+)=([^"]*)"', rest):
                variables[match[1]] = filled(match[2])
            elif match := re.fullmatch(r"""for /f %%n in \('call "%PYTHON%" -c "(.*)"'\) do set "(\w+)=%%n\"""", rest):
                ast.parse(match[1])
                variables[match[2]] = "2"
            elif match := re.fullmatch(r"echo [^&]*\D>&2 & exit /b \d", rest):
                raise ValueError(filled(rest))
            elif match := re.fullmatch(r'for /f "tokens=1,2,\*" %%a in \("%\*"\) do call "%~dp0(.*)\.bat" (.*)', rest):
                given = match[2].replace("%%a", words[0]).replace("%%b", words[1])
                called = os.path.relpath(path.parent / match[1].replace("\\", "/"), REPO)
                return run_batch(called, shlex.split(given.replace("%%c", shlex.join(words[2:]))), variables)
            else:
                assert rest.startswith('"%PYTHON%" '), f"{path.name}: not read by this test: {rest}"
                assert variables["USE_LIBUV"] == "0"
                return shlex.split(filled(rest).replace("\\", "/"))[1:]
    raise AssertionError(f"{path.name} starts nothing")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"NUM_GPUS": "4", "NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "1234"},
        {"CONFIG": "configs/camvid.yaml", "TASK": "test"},
    ],
    ids=["defaults", "two machines", "another config"],
)
@pytest.mark.parametrize("name", PAIRS)
def test_batch_files_start_the_same_as_shell_scripts(tmp_path, name, variables):
    words = ["configs/demo.yaml", "pretrain"] if name == "scripts/train_multi_gpu" else []
    words += ["--lr", "0.1", "--name", "a run"]
    by_shell = run_shell(name, words, variables, tmp_path)
    # Windows has none of the signals that this option adds.
    number = by_shell.index("--signals_to_handle")
    del by_shell[number : number + 2]
    by_shell = [os.path.normpath(word) if "/" in word else word for word in by_shell]
    by_batch = [os.path.normpath(word) if "/" in word else word for word in run_batch(name, words, variables)]
    assert by_shell[0] == "-m"
    assert by_batch[0] == str(REPO / "scripts/without_libuv.py")
    assert by_batch[1:] == by_shell[1:]
    assert by_shell[-4:] == ["--lr", "0.1", "--name", "a run"]
    assert by_shell[by_shell.index("--nproc_per_node") + 1] == variables.get("NUM_GPUS", "2")


def test_many_machines_need_an_address(tmp_path):
    with pytest.raises(AssertionError, match="MASTER_ADDR: set it"):
        run_shell("run_ddp", [], {"NNODES": "2"}, tmp_path)
    with pytest.raises(ValueError, match="MASTER_ADDR: set it"):
        run_batch("run_ddp", [], {"NNODES": "2"})


def test_stage_scripts_say_what_they_need(tmp_path):
    with pytest.raises(AssertionError, match=r"usage: train_multi_gpu\.sh CONFIG STAGE"):
        run_shell("scripts/train_multi_gpu", ["configs/demo.yaml"], {}, tmp_path)
    with pytest.raises(ValueError, match=r"usage: train_multi_gpu\.bat CONFIG STAGE"):
        run_batch("scripts/train_multi_gpu", ["configs/demo.yaml"], {})


def test_slurm_script():
    text = (REPO / "scripts/slurm.sbatch").read_text()
    directives = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", text, re.MULTILINE))
    assert directives == {
        "job-name": "segtrain", "nodes": "2", "ntasks-per-node": "8", "gpus-per-node": "8", "cpus-per-task": "8",
        "time": "24:00:00", "requeue": "", "open-mode": "append", "signal": "USR1@120",
    }  # fmt: skip
    # sbatch reads them up to the first command.
    assert text.index("set -euo") > text.rindex("#SBATCH")
    assert directives["ntasks-per-node"] == directives["gpus-per-node"]  # one task a GPU
    assert "srun" in text
    assert "RANK" not in text  # train.py finds it


def test_kubernetes_job():
    documents = list(yaml.safe_load_all((REPO / "scripts/k8s-trainjob.yaml").read_text()))
    job, claims = documents[0], documents[1:]
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", job["metadata"]["name"])
    assert set(job["spec"]) == {"runtimeRef", "trainer", "runtimePatches"}
    assert job["spec"]["runtimeRef"] == {"name": "torch-distributed"}
    trainer = job["spec"]["trainer"]
    assert set(trainer) == {"image", "numNodes", "numProcPerNode", "command", "args", "resourcesPerNode"}
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["command"]) == (2, 8, ["torchrun"])
    assert trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == "8"
    assert trainer["args"][0] == "train.py"
    cfg = config.parse(trainer["args"][1:])
    assert cfg.resume == "auto"
    # The runtime's one job and its container are both called node.
    [patch] = job["spec"]["runtimePatches"]
    [replicated] = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert (replicated["name"], container["name"]) == ("node", "node")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"data": "/data", "log": "/log", "shm": "/dev/shm"}
    assert cfg.dataset_path.startswith("/data/")
    assert cfg.logdir == "/log"
    assert [volume["name"] for volume in pod["volumes"]] == list(mounts)
    named = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"][:2]]
    assert [(claim["kind"], claim["metadata"]["name"]) for claim in claims] == [
        ("PersistentVolumeClaim", name) for name in named
    ]
    assert all(claim["spec"]["accessModes"] == ["ReadWriteMany"] for claim in claims)


def test_docker_image():
    text = (REPO / "Dockerfile").read_text()
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    instructions = [line.split(maxsplit=1)[0] for line in lines]
    assert instructions == ["FROM", "ARG", "ARG", "WORKDIR", "COPY", "RUN", "COPY", "RUN", "USER", "ENTRYPOINT"]
    assert json.loads(lines[-1].split(maxsplit=1)[1]) == ["python", "train.py"]
    assert lines[-2] == "USER segtrain"
    version = tuple(int(part) for part in re.search(r"python:(\d+)\.(\d+)-slim", text).groups())
    assert (3, 10) <= version < (3, 14)  # as the Makefile has it
    # The edit that the image makes finds its line.
    assert re.search("^opencv-python>", (REPO / "requirements.txt").read_text(), re.MULTILINE)
    ignored = (REPO / ".dockerignore").read_text().split()
    assert {".git", ".venv", "dataset/*", "log/*"} <= set(ignored)
