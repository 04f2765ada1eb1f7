"""The documents as tests read them: their commands, and these with settings under which each takes a second."""

import ast
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from conftest import REPO

import config

DOCUMENTS = [
    path for path in (REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted(REPO.glob("docs/*.md"))) if path.exists()
]
PROGRAM = re.compile(r"\w\.(py|sh)$|^data\.(check|distance)$")
# A shell command in a docstring, a comment or a table: what it begins with.
COMMAND = re.compile(r"(?:[A-Z_]+=\S* )*(?:python|torchrun|bash|srun|mpirun) ")
PROCESSES = r"(--nproc[-_]per[-_]node[= ]|\bNUM_GPUS=)(?!1\b)[\w$]+"
# What a command that starts several processes, or processes on several machines, becomes on this one.
LAUNCH = [
    (PROCESSES, r"\g<1>2"),
    (r"(--nnodes[= ]|\bNNODES=|--world_size[= ]|\bWORLD_SIZE=)[\w:$]+", r"\g<1>1"),
    (r"(--node[-_]rank[= ]|\bNODE_RANK=|--rank[= ]|\bRANK=|--local_rank[= ]|\bLOCAL_RANK=)[\w$]+", r"\g<1>0"),
    (r"(--master[-_]addr[= ]|\bMASTER_ADDR=)[^\s$;]+", r"\g<1>127.0.0.1"),
    (r"(--master[-_]port[= ]|\bMASTER_PORT=)\d+", r"\g<1>PORT"),
    (r"(--rdzv[-_]endpoint[= ])\S+", r"\g<1>127.0.0.1:PORT"),
    (r"tcp://[^\s/:]+:\d+", "tcp://127.0.0.1:PORT"),
    (r"(--backend[= ])nccl", r"\g<1>gloo"),
    # Else torchrun takes port 29500, which something else on this machine may have.
    (
        r"^((?:\S+=\S* )*(?:torchrun|python -m torch\.distributed\.\w+))(?!.*(?:standalone|rdzv|master)) ",
        r"\g<1> --master_port=PORT ",
    ),
]
GLOBAL_BATCH = 8  # of the sandbox's 16 training images: two optimizer steps an epoch
TINY = {"layers": 18, "crop_size": 33, "log_interval": 1, "device": "cpu", "workers": 0}
# Only where a command or its config sets them: one is enough to go through all the same.
TINY_IF_SET = {
    "max_steps": 2, "warmup_steps": 1, "val_step_frequency": 1, "save_step_frequency": 1, "val_workers": 1,
}  # fmt: skip


class Block(NamedTuple):
    """A code block of a document."""

    language: str
    line: int
    text: str


def blocks(text: str) -> list[Block]:
    """The code blocks, those in list items and quotations, too."""
    found = []
    for fence in re.finditer(r"^( *)```([^\n]*)\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE):
        body = "\n".join(line.removeprefix(fence[1]) for line in fence[3].splitlines())
        found.append(Block(fence[2].strip(), text[: fence.start()].count("\n") + 1, body))
    return found


def without_blocks(text: str) -> str:
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)


def shell_lines(text: str) -> Iterator[str]:
    """The commands of a shell text, without comments. What it exports goes before those that follow."""
    exports = ""
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        line = re.sub(r"\s+", " ", line)
        if line.startswith("export "):
            exports += f"{line}; "
        elif line:
            yield exports + line


def commands(path: Path) -> list[str]:
    """Every command that a document, a program's docstring or a script's first comment shows."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        shown = [line for block in blocks(text) if block.language == "bash" for line in shell_lines(block.text)]
        if path.name == "guides.md":
            last_cells = [cells[-1] for cells in rows(text)]
            inline = [code for cell in last_cells for code in re.findall(r"`([^`]+)`", cell)]
            shown += [code.replace("\\|", "|") for code in inline if COMMAND.match(code)]
        return shown
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    else:
        text = "\n".join(re.findall(r"^#\s*(.*)", text, re.MULTILINE))
    return [line for line in shell_lines(text) if COMMAND.match(line) and any(map(PROGRAM.search, line.split()))]


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, headings and rules apart."""
    lines = without_blocks(text).splitlines()
    found = []
    for number, line in enumerate(lines):
        is_heading = number + 1 < len(lines) and re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", lines[number + 1].strip())
        is_rule = re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", line.strip())
        if line.strip().startswith("|") and not is_heading and not is_rule:
            found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]])
    return found


def reduced(command: str, most_processes: int = 2) -> str:
    """The command with flags after it under which it takes a second on a CPU, and still does what it is about.

    PORT stands for a free port. Call it in the sandbox, where the files are that the command names.
    """
    for pattern, replacement in LAUNCH:
        command = re.sub(pattern, replacement, command)
    if most_processes == 1:
        command = re.sub(PROCESSES, r"\g<1>1", command)
    program, words = program_of(command)
    if "--help" in words:
        return command
    tiny: dict[str, object] = {}
    if program == "train.py" and _task(command) == "train":
        tiny = _tiny_training(words, num_processes(command))
    elif program in ("train.py", "evaluate.py", "predict.py"):
        tiny = {"device": "cpu", "workers": 0}
        tiny |= {name: 64 if name == "long_side" else 33 for name in ("long_side", "window") if f"--{name}" in words}
    elif program == "export.py":
        tiny = {"device": "cpu", "num_images": 1}
    elif program == "data.check":
        tiny = {"workers": 0}
    return command + "".join(f" --{name} {value}" for name, value in tiny.items())


def program_of(command: str) -> tuple[str, list[str]]:
    """The program of the repository that a command starts in the end, or "", and the words for it."""
    words = shlex.split(command)
    env = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    for number, word in enumerate(words):
        name, rest = os.path.basename(word), words[number + 1 :]
        if PROGRAM.search(word) and not name.endswith(".sh"):
            return name, rest
        if name == "train_multi_gpu.sh":
            return "train.py", ["--config", rest[0], "--stage", *rest[1:]]
        if name.endswith(".sh"):
            default = re.search(r"CONFIG:-([^}]+)\}", (REPO / word).read_text())
            chosen = env.get("CONFIG") or (default[1] if default else "")
            return "train.py", (["--config", chosen] if chosen else []) + rest
    return "", []


def launch_and_flags(command: str) -> tuple[str, str]:
    """How a command starts its program, and with which flags, each in one form, whatever order or sign they are given in."""
    words = shlex.split(command)
    program = next((number for number, word in enumerate(words) if PROGRAM.search(word)), len(words) - 1)
    return _as_one(words[: program + 1]), _as_one(words[program + 1 :])


def _as_one(words: list[str]) -> str:
    """Words with the last value of each flag only, sorted."""
    given: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            given[name] = value
            name = "" if equals else name
        else:
            key = name or f"{len(given):03d}"
            given[key] = f"{given.get(key, '')} {word}".strip()
    return " ".join(f"{name}={value}" for name, value in sorted(given.items()))


def num_processes(command: str) -> int:
    found = re.search(r"(?:--nproc[-_]per[-_]node[= ]|\bNUM_GPUS=)(\d+)", command)
    if found:
        return int(found[1])
    return 2 if re.search(r"\bbash \S+\.sh", command) else 1  # the scripts' own choice without a GPU


def _task(command: str) -> str:
    found = re.search(r"(?:--task[= ]|\bTASK=)(\w+)", command)
    return found[1] if found else "train"


def trains(command: str) -> bool:
    program, words = program_of(command)
    return program == "train.py" and _task(command) == "train" and "--help" not in words


def config_to_train_first(command: str) -> str:
    """The config whose newest run a command takes without naming a checkpoint, or ""."""
    program, words = program_of(command)
    if program == "train.py" and _task(command) != "train" and "--checkpoint" not in words:
        return words[words.index("--config") + 1] if "--config" in words else "configs/demo.yaml"
    return ""


def runs_named(command: str) -> list[str]:
    """The names of the runs in log/ that a command, or the config it names, takes a checkpoint of."""
    program, words = program_of(command)
    text = " ".join(words)
    if program == "train.py" and _task(command) == "train" and "--help" not in words:
        text += " " + config.parse(words).pretrained
    return re.findall(r"log/([\w.-]+)/\w+\.pt", text)


def _tiny_training(words: list[str], processes: int) -> dict[str, object]:
    cfg = config.parse(words)
    if cfg.resume not in ("", "auto") and "--config" not in words and not cfg.reset_data_offset:
        return {"epochs": 2}  # the run that goes on is tiny
    tiny: dict[str, object] = dict(TINY)
    if cfg.stride_in_1x1:
        tiny["layers"] = 50
    if not cfg.pretrained.endswith(".pt"):
        tiny["pretrained"] = "none"
    if cfg.workers > 0:
        tiny["workers"] = 1
    tiny |= {name: value for name, value in TINY_IF_SET.items() if getattr(cfg, name) > 0}
    if "max_steps" not in tiny:
        tiny["epochs"] = 2 if cfg.resume and not cfg.reset_data_offset else 1
    if "warmup_steps" not in tiny:
        tiny["warmup_epochs"] = 0
    if cfg.total_batchsize:
        return tiny | {"total_batchsize": GLOBAL_BATCH}
    return tiny | {"batchsize": max(1, GLOBAL_BATCH // (cfg.accum_steps * processes))}
