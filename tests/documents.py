"""The documents as tests read them: the commands they show."""

import ast
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from conftest import REPO

from flags import parse_flags
from tools.scribbles import pipeline as scribble_pipeline

DOCUMENTS = [*sorted(REPO.glob("README*.md")), REPO / "CONTRIBUTING.md", *sorted(REPO.glob("docs/*.md"))]
PATTERNS = ("*.py", "data/*.py", "tools/**/*.py", "scripts/*.py", "*.sh", "scripts/*.sh")
SOURCES = [path for pattern in PATTERNS for path in REPO.glob(pattern)]
PROGRAM = re.compile(r"\w\.(py|sh)$|^tools\.(check|compare|convert|scribbles|split|suggest)$|^data\.distance$")
LOOP = re.compile(r"^for (\w+) in (.+); do\n(.*?)^done$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:[A-Z_]+=\S* )*(?:python|torchrun|bash|srun) ")  # how one in a docstring begins
PROCESSES = r"(--nproc[-_]per[-_]node[= ]|\bNUM_GPUS=)(?!1\b)[\w$]+"
# What a command that starts several processes, or processes on several machines, becomes on this one.
LAUNCH = [
    (PROCESSES, r"\g<1>2"),
    (r"(--nnodes[= ]|\bNNODES=)\w+", r"\g<1>1"),
    (r"(--rdzv[-_]endpoint[= ])\S+", r"\g<1>127.0.0.1:PORT"),
    (r"(--master[-_]addr[= ]|\bMASTER_ADDR=)[^\s$;]+", r"\g<1>127.0.0.1"),
    (r"(--master[-_]port[= ]|\bMASTER_PORT=)\d+", r"\g<1>PORT"),
    # Without an option torchrun takes port 29500, which another program on this machine may use.
    (
        r"^((?:\S+=\S* )*(?:torchrun|python -m torch\.distributed\.\w+))(?!.*(?:standalone|rdzv|master)) ",
        r"\g<1> --master_port=PORT ",
    ),
]
GLOBAL_BATCH = 8  # of the sandbox's 16 training images: two optimizer steps an epoch
TINY = {"layers": 18, "crop_size": 33, "log_interval": 1, "device": "cpu", "workers": 0}
# Only if a command or its config sets them.
TINY_IF_SET = {"max_steps": 2, "warmup_steps": 1, "val_step_frequency": 1, "save_step_frequency": 1}
TINY_IF_SET |= {"long_side": 64, "window": 33}


def code(text: str, language: str) -> str:
    """The code blocks of a document in one language, including those in list items."""
    fences = re.finditer(rf"^( *)```{language}\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)
    return "".join(re.sub(rf"^{fence[1]}", "", fence[2], flags=re.MULTILINE) for fence in fences)


def shell_lines(text: str) -> Iterator[str]:
    """The commands of a shell text, without comments and prompts; those of a loop once for each of its values."""
    text = LOOP.sub(lambda loop: "".join(loop[3].replace(f"${loop[1]}", value) for value in loop[2].split()), text)
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"\s+", " ", re.sub(r"(^|\s)#.*", "", line)).strip()
        if line:
            yield line.removeprefix("$ ")


def commands(path: Path, language: str = "bash") -> list[str]:
    """Every command that a document, a program's docstring or a script's first comment shows."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return list(shell_lines(code(text, language)))
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    else:
        text = "\n".join(re.findall(r"^#\s*(.*)", text, re.MULTILINE))
    return [line for line in shell_lines(text) if COMMAND.match(line) and any(map(PROGRAM.search, line.split()))]


def shown(language: str = "bash") -> dict[str, str]:
    """Every command: {command: the first file that shows it}."""
    found: dict[str, str] = {}
    for path in (*DOCUMENTS, *sorted(SOURCES)):
        for command in commands(path, language):
            found.setdefault(command, path.relative_to(REPO).as_posix())
    return found


def program_of(command: str) -> tuple[str, list[str]]:
    """The program of the repository that a command starts in the end, or "", and its words."""
    words = shlex.split(command)
    env = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    for number, word in enumerate(words):
        name, rest = os.path.basename(word), words[number + 1 :]
        if PROGRAM.search(word) and not name.endswith(".sh"):
            return name, rest
        if name == "train_multi_gpu.sh":
            return "train.py", ["--config", rest[0], "--stage", *rest[1:]]
        if name == "scribble_pipeline.sh":
            return "train.py", list(scribble_pipeline.READER.command_line(rest).values["others"])
        if name.endswith(".sh"):
            default = re.search(r"CONFIG:-([^}]+)\}", (REPO / word).read_text())
            chosen = env.get("CONFIG") or (default[1] if default else "")
            return "train.py", (["--config", chosen] if chosen else []) + rest
    return "", []


def task_of(command: str) -> str:
    """What train.py does in a command: train, test, predict or help; "" for other programs."""
    program, words = program_of(command)
    if program != "train.py":
        return ""
    if "--help" in words:
        return "help"
    return words[words.index("--task") + 1] if "--task" in words else "train"


def reduced(command: str, most_processes: int = 2) -> str:
    """The command with more flags, under which it takes a second on a CPU and still does what it is about.

    PORT stands for a free port. Call it in the sandbox, which has the files that the command names.
    """
    for pattern, replacement in LAUNCH:
        command = re.sub(pattern, replacement, command)
    if most_processes == 1:
        command = re.sub(PROCESSES, r"\g<1>1", command)
    program, words = program_of(command)
    task, tiny = task_of(command), {}
    if task == "train":
        tiny = _tiny_training(words, _num_processes(command))
    elif task in ("test", "predict") or program in ("evaluate.py", "predict.py"):
        tiny = {"device": "cpu", "workers": 0}
        tiny |= {name: 64 if name == "long_side" else 33 for name in ("long_side", "window") if f"--{name}" in words}
    elif program == "export.py":
        tiny = {"device": "cpu"}
    elif program in ("tools.check", "tools.convert", "tools.scribbles", "tools.suggest"):
        tiny = {"workers": 0}
    return command + "".join(f" --{name} {value}" for name, value in tiny.items())


def _num_processes(command: str) -> int:
    found = re.search(r"(?:--nproc[-_]per[-_]node[= ]|\bNUM_GPUS=)(\d+)", command)
    if found:
        return int(found[1])
    return 2 if re.search(r"\bbash \S+\.sh", command) else 1  # the scripts' own choice without a GPU


def _tiny_training(words: list[str], processes: int) -> dict[str, object]:
    cfg = parse_flags(words)
    if cfg.resume not in ("", "auto") and "--config" not in words and not cfg.reset_data_offset:
        return {"epochs": 2}  # the resumed run is tiny
    tiny = TINY | {name: value for name, value in TINY_IF_SET.items() if getattr(cfg, name) > 0}
    tiny |= {"layers": 50} if cfg.stride_in_1x1 else {}
    tiny |= {} if cfg.pretrained.endswith(".pt") else {"pretrained": "none"}
    tiny |= {"workers": 1} if cfg.workers > 0 else {}
    if "max_steps" not in tiny:
        tiny["epochs"] = 2 if cfg.resume and not cfg.reset_data_offset else 1
    if "warmup_steps" not in tiny:
        tiny["warmup_epochs"] = 0
    if cfg.total_batchsize:
        return tiny | {"total_batchsize": GLOBAL_BATCH}
    return tiny | {"batchsize": max(1, GLOBAL_BATCH // (cfg.accum_steps * processes))}
