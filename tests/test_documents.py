"""What the documents name exists: commands, flags, links, messages; and both languages say the same."""

import ast
import re
import shlex

import pytest
from conftest import REPO
from documents import DOCUMENTS, blocks, program_of, rows, shell_lines, shown, without_blocks
from torch.distributed.run import get_args_parser as torchrun_parser

import config
from config.programs import EVALUATE, EXPORT, PREDICT, PSEUDO, READER
from data import distance
from scripts import cli_reference, scribble_pipeline
from tools import split
from tools.check import __main__ as check
from tools.convert import __main__ as convert
from tools.scribbles import __main__ as scribbles

READERS = {reader.program: reader for reader in (READER, EVALUATE, PREDICT, PSEUDO, EXPORT)}
PARSERS = {
    "tools.check": check.parser,
    "tools.convert": convert.parser,
    "tools.scribbles": scribbles.parser,
    "tools.split": split.parser,
    "data.distance": distance.parser,
}
# Flags in the documents that no program of ours and not torchrun declares.
OTHER_FLAGS = {"help", "config", "stage", "processes", "use_env", "no_NAME"}
# What Python, make, PyTorch, NCCL or the system says, which docs/trouble.md explains.
OTHER_MESSAGES = """
No module named 'torch'; No module named 'data'; No module named 'errors'; No module named 'wandb';
No module named 'segtrain';
 libGL.so.1: cannot open shared object file
make: *** Error; Bus error; SignalException; unrecognized arguments; Too many open files; Signal (SIGSEGV); log/first.
CUDA error: device-side assert triggered; CUDA error: invalid device ordinal; unhandled cuda error; EADDRINUSE
unhandled system error; ChildFailedError; Connection closed by peer; RendezvousTimeoutError; Unable to find address for
use_libuv was requested but PyTorch was; Watchdog caught collective operation timeout
"""
by_name = {"ids": lambda path: path.name}


@pytest.mark.parametrize("command", shown() | shown("console"))
def test_command_is_read_by_its_program(command, monkeypatch):
    """Those of console blocks too, which cannot be run here: a cluster, Docker, other machines."""
    monkeypatch.chdir(REPO)
    words = shlex.split(command)
    launcher = next((word for word in ("torchrun", "torch.distributed.launch") if word in words), "")
    if launcher:
        torchrun_parser().parse_args([w for w in words[words.index(launcher) + 1 :] if w != "--use_env"])
    program, flags = program_of(command)
    if "--help" in flags:
        return
    if program == "train.py":
        config.parse(flags)
    elif program in READERS:
        READERS[program].command_line(flags)
    elif program in PARSERS:
        PARSERS[program]().parse_args(flags)
    elif words[0] == "make":
        assert words[1] in re.findall(r"^(\w+(?:-\w+)?):", (REPO / "Makefile").read_text(), re.MULTILINE)
    else:
        files = [re.sub(r"^scripts\.(\w+)$", r"scripts/\1.py", word) for word in words]
        assert all((REPO / file).is_file() for file in files if re.search(r"\.(py|txt|sh|toml)$", file))


@pytest.mark.parametrize("path", DOCUMENTS, **by_name)
def test_every_flag_named_in_the_documents_exists(path):
    text = path.read_text(encoding="utf-8")
    if path.name == "coming_from.md":  # its first column has names of others
        text = "\n".join(" ".join(cells[1:]) for cells in rows(text))
    text = re.sub(r"```console\n.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"`(pip|docker|srun|sbatch|kubectl) [^`]*`", "", text)
    named = {name.replace("-", "_") for name in re.findall(r"(?<![\w-])--([a-z][\w-]*)", text)}
    known = {name for reader in READERS.values() for name in (*reader.flags, *reader.aliases)}
    parsers = [*(parser() for parser in PARSERS.values()), torchrun_parser(), scribble_pipeline.parser()]
    known |= {action.dest for parser in parsers for action in parser._actions}
    assert named - known - {f"no_{name}" for name in known} - OTHER_FLAGS == set()


@pytest.mark.parametrize("path", [*DOCUMENTS, *REPO.glob("benchmarks/*.md"), REPO / "CHANGELOG.md"], **by_name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(((?![a-z]+:)[^)\s]+)\)", without_blocks(path.read_text(encoding="utf-8"))):
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), target
        if anchor:  # as GitHub makes them
            headings = re.findall(r"^#+ +(.*)", without_blocks(linked.read_text(encoding="utf-8")), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, target


def test_reference_of_the_command_line_is_current():
    page = (REPO / "docs/cli.md").read_text(encoding="utf-8")
    assert page == cli_reference.page(), "run python -m scripts.cli_reference"
    for program, reader in READERS.items():
        section = page.split(f"\n## {program}\n")[1].split("\n## ")[0]
        for name in (*reader.flags, *reader.aliases):
            assert section.count(f"\n| `--{name}` |") == 1, name


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if ".zh-CN" in path.name], **by_name)
def test_both_languages_have_the_same_commands_and_messages(path):
    """Code blocks, levels of headings, the code in each table row."""
    outlines = []
    for page in (path, path.with_name(path.name.replace(".zh-CN", ""))):
        text = page.read_text(encoding="utf-8")
        code = [(block.language, list(shell_lines(block.text))) for block in blocks(text)]
        cells = [sorted(re.findall(r"`([^`]+)`", " ".join(row))) for row in rows(text)]
        outlines.append([code, re.findall(r"^#+(?= )", without_blocks(text), re.MULTILINE), cells])
    assert outlines[0] == outlines[1]


def test_every_message_that_trouble_md_explains_exists():
    """It is in string constants of the sources; `...`, capitals and numbers stand for something else."""
    known = (REPO / "Makefile").read_text() + OTHER_MESSAGES
    for path in [
        *REPO.glob("*.py"),
        *(path for init in REPO.glob("*/__init__.py") for path in init.parent.rglob("*.py")),
    ]:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        known += "\n".join(["", *texts])
    for cells in rows((REPO / "docs/trouble.md").read_text(encoding="utf-8")):
        for message in re.findall(r"`([^`]+)`", cells[0]):
            parts = re.split(r"\.\.\.|\b[A-Z][A-Za-z]*[A-Z0-9]\w*\b|\d[\d.]*", message)
            parts = [message] if message in known else parts
            assert [part for part in parts if part.strip(" '\"") not in known] == [], message


# Not comparison.md, which names files of other projects.
@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.name != "comparison.md"], **by_name)
def test_modules_and_tests_named_in_the_documents_exist(path):
    rooms = "|".join(init.parent.name for init in REPO.glob("*/__init__.py"))
    text = without_blocks(path.read_text(encoding="utf-8"))
    for name in re.findall(rf"`((?:{rooms}|tests)/[\w/]+\.py)`", text):
        assert (REPO / name).is_file(), name
    for file, test in re.findall(r"`(?:tests/)?(test_\w+\.py)(?:::(test_\w+))?", text):
        assert not test or f"def {test}(" in (REPO / "tests" / file).read_text(encoding="utf-8"), test
