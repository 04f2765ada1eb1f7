"""Every command that the documents, scripts and editor configuration show is one that train.py takes."""

import json
import os
import re
import shlex
import subprocess

import pytest
from conftest import REPO

import config
import evaluate
import export
import predict
from data import check
from trained import read_flags

# Of each program, what takes its words as the program does, up to what the command asks for.
PARSERS = {
    "train.py": config.parse,
    "train_torchrun.sh": config.parse,
    "train_ddp.sh": config.parse,
    "evaluate.py": lambda words: read_flags(evaluate.READER, words),
    "predict.py": lambda words: read_flags(predict.READER, words),
    "export.py": lambda words: export.READER.command_line(words),
    "data.check": lambda words: check.parser().parse_args(words),
}
# Flags in the documents that belong to other programs.
OF_OTHERS = {
    "standalone", "nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "max_restarts", "signals_to_handle",  # torchrun
    "help", "config", "no_distributed",
    "out", "pseudo", "scribbles",  # data.distance
    "processes",  # scripts/chaos.py
}  # fmt: skip


def commands(text: str) -> list[tuple[str, list[str]]]:
    """The program and the words after it of each command in a text that starts one of PARSERS."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        if not re.match(r"\s*(python|torchrun|bash|[A-Z_]+=|exec|make)", line):
            continue
        words = shlex.split(line.replace("[...]", ""), comments=True)
        programs = [(number, word) for number, word in enumerate(words) if os.path.basename(word) in PARSERS]
        if programs:
            start, word = programs[0]
            rest = [word for word in words[start + 1 :] if word not in ("$@", "...")]
            found.append((os.path.basename(word), rest))
    return found


def documents() -> list:
    return [
        REPO / "README.md",
        *sorted(REPO.glob("docs/*.md")),
        *sorted(REPO.glob("benchmarks/*.md")),
        *(REPO / name for name in PARSERS if name.endswith((".py", ".sh"))),
        REPO / "data/check.py",
    ]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_commands_parse(path, monkeypatch):
    monkeypatch.chdir(REPO)
    found = commands(path.read_text(encoding="utf-8"))
    assert found or path.name in ("RESULTS.md", "reliability.md")
    for program, words in found:
        PARSERS[program](words)


@pytest.mark.parametrize("path", ["README.md", *(f"docs/{path.name}" for path in REPO.glob("docs/*.md"))])
def test_every_flag_named_in_the_documents_exists(path):
    text = (REPO / path).read_text(encoding="utf-8")
    named = {name.replace("-", "_") for name in re.findall(r"(?<![\w-])--([a-z][\w-]*)", text)}
    known = {
        name for reader in (config.READER, evaluate.READER, predict.READER, export.READER) for name in reader.fields
    }
    known |= {name for action in check.parser()._actions for name in [action.dest]}
    assert not named - known - set(config.ALIASES) - OF_OTHERS


def test_launch_json_starts_what_is_there(monkeypatch):
    monkeypatch.chdir(REPO)
    configurations = json.loads((REPO / ".vscode/launch.json").read_text())["configurations"]
    names = ["Train", "Debug DDP Training", "Evaluate", "Predict", "Export", "Current test file"]
    assert [entry["name"] for entry in configurations] == names
    assert {entry["type"] for entry in configurations} == {"debugpy"}
    programs = [os.path.basename(entry["program"]) for entry in configurations if "program" in entry]
    assert programs == ["train.py", "train.py", "evaluate.py", "predict.py", "export.py"]
    for program, entry in zip(programs, configurations, strict=False):
        PARSERS[program](entry["args"])
    env = configurations[1]["env"]
    assert env == {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "12355",
    }


def test_no_data_or_weights_in_the_repository():
    if not (REPO / ".git").exists():
        pytest.skip("not a git checkout")
    files = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in files if re.search(r"\.(pth?|onnx|npy|npz|jpe?g)$", name)]
