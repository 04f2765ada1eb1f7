"""Every command that the documents, scripts and editor configuration show is one that train.py takes."""

import json
import os
import re
import shlex
import subprocess

import pytest
from conftest import REPO

import config
import export
import predict


def commands(text: str) -> list[list[str]]:
    """The words after train.py, train_torchrun.sh or train_ddp.sh in each command of a text."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        if re.match(r"\s*(python|torchrun|bash|[A-Z_]+=|exec|make)", line) and re.search(
            r"train(_\w+)?\.(py|sh)", line
        ):
            words = shlex.split(line.replace("[...]", ""), comments=True)
            start = next(
                (number for number, word in enumerate(words) if re.search(r"train(_\w+)?\.(py|sh)$", word)), None
            )
            if start is not None:
                found.append([word for word in words[start + 1 :] if word not in ("$@", "...")])
    return found


def documents() -> list:
    return [
        REPO / "README.md",
        *sorted(REPO.glob("docs/*.md")),
        *sorted(REPO.glob("benchmarks/*.md")),
        REPO / "train.py",
        *sorted(REPO.glob("*.sh")),
    ]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_commands_parse(path, monkeypatch):
    monkeypatch.chdir(REPO)
    found = commands(path.read_text(encoding="utf-8"))
    if path.name in ("README.md", "train_torchrun.sh", "train_ddp.sh", "train.py"):
        assert found
    for words in found:
        config.parse(words)


@pytest.mark.parametrize("path", ["README.md", "docs/reliability.md"])
def test_every_flag_named_in_the_documents_exists(path):
    text = (REPO / path).read_text(encoding="utf-8")
    others = {
        "standalone",
        "nnodes",
        "nproc_per_node",
        "rdzv_backend",
        "rdzv_endpoint",
        "help",
        "config",
        "out",
        "pseudo",
        "scribbles",
        "no_distributed",
        "max_restarts",
        "processes",
        "signals_to_handle",
    }
    named = {name.replace("-", "_") for name in re.findall(r"(?<![\w-])--([a-z][\w-]*)", text)}
    programs = {name for reader in (config.READER, export.READER, predict.READER) for name in reader.fields}
    assert not named - programs - set(config.ALIASES) - others


def test_launch_json_starts_what_is_there(monkeypatch):
    monkeypatch.chdir(REPO)
    configurations = json.loads((REPO / ".vscode/launch.json").read_text())["configurations"]
    assert [entry["name"] for entry in configurations] == ["Train", "Debug DDP Training", "Current test file"]
    assert {entry["type"] for entry in configurations} == {"debugpy"}
    for entry in configurations:
        if entry.get("program", "").endswith("train.py"):
            config.parse(entry["args"])
    env = configurations[1]["env"]
    assert env == {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "12355",
    }


@pytest.mark.parametrize("script", sorted(REPO.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_short_strict_and_pass_everything_on(script):
    text = script.read_text()
    assert len(text.splitlines()) <= 15
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text
    assert text.rstrip().endswith('"$@"')
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)


def test_no_data_or_weights_in_the_repository():
    if not (REPO / ".git").exists():
        pytest.skip("not a git checkout")
    files = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in files if re.search(r"\.(pth?|onnx|npy|npz|jpe?g)$", name)]
