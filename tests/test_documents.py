"""What the documents name exists: commands and flags."""

import ast
import re
import shlex

import cli_reference
import pytest
from conftest import REPO
from documents import DOCUMENTS, program_of, shown
from torch.distributed.run import get_args_parser as torchrun_parser

from data import distance
from flags import parse_flags

READERS = {reader.program.removeprefix("-m "): reader for reader in (*cli_reference.PROGRAMS, *cli_reference.TOOLS)}
# Flags in the documents that no program of ours and not torchrun declares.
OTHER_FLAGS = {"help", "config", "stage", "processes", "use_env", "no_NAME"}


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
        parse_flags(flags)
    elif program in READERS:
        READERS[program].command_line(flags)
    elif program == "data.distance":
        distance.parser().parse_args(flags)
    elif words[0] == "make":
        assert words[1] in re.findall(r"^(\w+(?:-\w+)?):", (REPO / "Makefile").read_text(), re.MULTILINE)
    else:
        files = [re.sub(r"^scripts\.(\w+)$", r"scripts/\1.py", word) for word in words]
        assert all((REPO / file).is_file() for file in files if re.search(r"\.(py|txt|sh|toml)$", file))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_flag_named_in_the_documents_exists(path):
    text = path.read_text(encoding="utf-8")
    if path.name == "coming_from.md":  # its first column has names of others
        text = re.sub(r"^\|[^|]*", "", text, flags=re.MULTILINE)
    text = re.sub(r"```console\n.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"`(pip|docker|srun|sbatch|kubectl|wandb) [^`]*`", "", text)
    named = {name.replace("-", "_") for name in re.findall(r"(?<![\w-])--([a-z][\w-]*)", text)}
    known = {name for reader in READERS.values() for name in (*reader.flags, *reader.aliases)}
    known |= {action.dest for parser in (distance.parser(), torchrun_parser()) for action in parser._actions}
    assert named - known - {f"no_{name}" for name in known} - OTHER_FLAGS == set()


def test_our_files_that_the_documents_and_their_diagram_name_exist():
    pages = [path for path in (*DOCUMENTS, REPO / "docs/data_flow.svg") if path.name != "comparison.md"]  # of others
    rooms = "|".join(path.parent.name for path in REPO.glob("*/__init__.py"))
    name = re.compile(rf"(?<![\w/.-])(?:{rooms})/[\w/]+\.(?:py|html)\b")
    named = {file for path in pages for file in name.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 50
    assert not [file for file in named if not (REPO / file).is_file()]


def test_reference_of_the_command_line_is_current():
    assert (REPO / "docs/cli.md").read_text(encoding="utf-8") == cli_reference.page(), "python -m tests.cli_reference"


def test_messages_say_where_a_document_is():
    """From another folder and in the package, a bare "docs/..." leads nowhere: shell.document() gives the path."""
    for path in (*REPO.glob("*.py"), *REPO.glob("[a-z]*/**/*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        allowed = {id(arg) for node in nodes if isinstance(node, ast.Call) for arg in node.args
                   if getattr(node.func, "attr", getattr(node.func, "id", "")) == "document"}  # fmt: skip
        allowed |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
        for node in nodes if path.parts[len(REPO.parts)] not in ("tests", "benchmarks", "scripts") else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in allowed:
                assert not re.search(r"docs/\w+\.md", node.value), f"{path}:{node.lineno}: {node.value}"
