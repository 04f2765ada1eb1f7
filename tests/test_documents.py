"""What the documents name exists: commands, flags, files, links, messages; and both languages say the same."""

import ast
import re
import shlex
import subprocess

import pytest
from conftest import REPO
from documents import DOCUMENTS, blocks, program_of, rows, shell_lines, shown, without_blocks
from torch.distributed.run import get_args_parser as torchrun_parser

import config
from config.programs import EVALUATE, EXPORT, PREDICT, PSEUDO, READER
from data import distance
from scripts import cli_reference, memory_table, scribble_pipeline
from support.errors import UserError
from support.image_stats import FILE_NAME, ImageStats
from tools import split, statistics
from tools.check import __main__ as check
from tools.convert import __main__ as convert
from tools.scribbles.__main__ import COMMANDS

READERS = {
    "train.py": READER,
    "evaluate.py": EVALUATE,
    "predict.py": PREDICT,
    "pseudo.py": PSEUDO,
    "export.py": EXPORT,
}
PARSERS = {
    "tools.check": check.parser,
    "tools.convert": convert.parser,
    "tools.split": split.parser,
    "data.distance": distance.parser,
    "tools.statistics": statistics.parser,
}
ROOMS = sorted(path.parent.name for path in REPO.glob("*/__init__.py"))
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


def parse(command: str) -> None:
    """Read a command's words as its programs do; raise on a wrong flag, value or config, or a file that is missing."""
    words = shlex.split(command)
    launcher = next((word for word in ("torchrun", "torch.distributed.launch") if word in words), "")
    if launcher:
        torchrun_parser().parse_args([w for w in words[words.index(launcher) + 1 :] if w != "--use_env"])
    program, flags = program_of(command)
    if "--help" in flags:
        return
    if program == "train.py":
        stats = ImageStats("uint16", (1.0,) * 4, (1.0,) * 4).text  # the file that tools.statistics writes is not here
        config.parse([stats if word.endswith(FILE_NAME) else word for word in flags])
    elif program in READERS:
        READERS[program].command_line(flags)
    elif program == "tools.scribbles":
        COMMANDS[flags[0]].parser().parse_args(flags[1:])
    elif program in PARSERS:
        PARSERS[program]().parse_args(flags)
    elif words[0] == "make":
        assert words[1] in re.findall(r"^(\w+(?:-\w+)?):", (REPO / "Makefile").read_text(), re.MULTILINE)
    else:
        files = [re.sub(r"^scripts\.(\w+)$", r"scripts/\1.py", word) for word in words]
        assert all((REPO / file).is_file() for file in files if re.search(r"\.(py|txt|sh|toml)$", file))


@pytest.mark.parametrize("command", shown() | shown("console"))
def test_command_is_read_by_its_program(command, monkeypatch):
    """Those of console blocks too, which cannot be run here: a cluster, Docker, other machines."""
    monkeypatch.chdir(REPO)
    parse(command)


@pytest.mark.parametrize("path", DOCUMENTS, **by_name)
def test_every_flag_named_in_the_documents_exists(path):
    text = path.read_text(encoding="utf-8")
    if path.name == "coming_from.md":  # its first column has names of others
        text = "\n".join(" ".join(cells[1:]) for cells in rows(text))
    text = re.sub(r"```console\n.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"`(pip|docker|srun|sbatch|mpirun|kubectl) [^`]*`", "", text)
    named = {name.replace("-", "_") for name in re.findall(r"(?<![\w-])--([a-z][\w-]*)", text)}
    known = {name for reader in READERS.values() for name in (*reader.flags, *reader.aliases)}
    parsers = [*(parser() for parser in PARSERS.values()), *(command.parser() for command in COMMANDS.values())]
    parsers += [torchrun_parser(), scribble_pipeline.parser()]
    known |= {action.dest for parser in parsers for action in parser._actions}
    assert named - known - {f"no_{name}" for name in known} - OTHER_FLAGS == set()


# Not comparison.md, which names files of other projects.
@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.name != "comparison.md"], **by_name)
def test_files_named_in_the_documents_exist(path):
    top = {entry.name for entry in REPO.iterdir() if entry.is_dir()} - {"dataset", "log"}
    missing = []
    for code in re.findall(r"`([^`\n]+)`", without_blocks(path.read_text(encoding="utf-8"))):
        for word in re.findall(r"(?<![\w./$%}-])[\w-][\w./-]*\.\w+(?:::\w+)?", code):
            name, _, test = word.partition("::")
            is_ours = name.split("/")[0] in top if "/" in name else name.endswith((".py", ".sh", ".bat", ".md", ".cff"))
            places = [folder / name for folder in (REPO, path.parent, REPO / "tests")]
            found = next((place for place in places if place.is_file()), None)
            if is_ours and (found is None or (test and f"def {test}(" not in found.read_text(encoding="utf-8"))):
                missing.append(word)
    assert not missing


@pytest.mark.parametrize("path", [*DOCUMENTS, *REPO.glob("benchmarks/*.md"), REPO / "CHANGELOG.md"], **by_name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ +(.*)", without_blocks(linked.read_text(encoding="utf-8")), re.MULTILINE)
            # As GitHub makes them.
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, target


def test_reference_of_the_command_line_is_current():
    page = (REPO / "docs/cli.md").read_text(encoding="utf-8")
    assert page == cli_reference.page(), "run python -m scripts.cli_reference"
    for program, reader in READERS.items():
        section = page.split(f"\n## {program}\n")[1].split("\n## ")[0]
        for name in (*reader.flags, *(name for name in reader.aliases if "." not in name)):
            assert section.count(f"\n| `--{name}` |") == 1, name


def outline(text: str) -> list[list]:
    """What a translation shares with its original: code blocks, levels of headings, the code in each table row."""
    code = [(block.language, list(shell_lines(block.text))) for block in blocks(text)]
    levels = re.findall(r"^#+(?= )", without_blocks(text), re.MULTILINE)
    return [code, levels, [sorted(re.findall(r"`([^`]+)`", " ".join(row))) for row in rows(text)]]


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if ".zh-CN" in path.name], **by_name)
def test_both_languages_have_the_same_commands_and_messages(path):
    english = path.with_name(path.name.replace(".zh-CN", ""))
    for translated, original in zip(
        *(outline(page.read_text(encoding="utf-8")) for page in (path, english)), strict=True
    ):
        assert translated == original


def literal_texts() -> str:
    """Every string constant of the sources; of an f-string the parts between its values."""
    texts = [(REPO / "Makefile").read_text(), OTHER_MESSAGES]
    for path in [*REPO.glob("*.py"), *(path for room in ROOMS for path in REPO.glob(f"{room}/**/*.py"))]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts += [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
    return "\n".join(texts)


def test_every_message_that_trouble_md_explains_exists():
    known = literal_texts()
    for cells in rows((REPO / "docs/trouble.md").read_text(encoding="utf-8")):
        for message in re.findall(r"`([^`]+)`", cells[0]):
            # `...`, capitals and numbers stand for something else, unless the whole is known.
            parts = (
                [message] if message in known else re.split(r"\.\.\.|\b[A-Z][A-Za-z]*[A-Z0-9]\w*\b|\d[\d.]*", message)
            )
            assert [part for part in parts if part.strip(" '\"") not in known] == [], message


def test_names_of_other_trainers_do_what_coming_from_md_says():
    for theirs, ours, accepted in rows((REPO / "docs/coming_from.md").read_text(encoding="utf-8")):
        flags = re.findall(r"--(\w+)", ours)
        for name in re.findall(r"`([\w.]+)`", theirs):
            if accepted == "yes":
                assert READER.aliases.get(name, name) in flags
                continue
            with pytest.raises(UserError, match="unknown flag" if accepted == "no" else name):
                READER.command_line([f"--{name}", "x"])
            known = {"nproc_per_node", *READER.flags, *READERS["evaluate.py"].flags}
            assert {flag.removeprefix("no_") for flag in flags} <= known, name


@pytest.mark.full_size
def test_table_of_memory_is_current():
    table = rows((REPO / "docs/recipes.md").read_text(encoding="utf-8"))
    (row,) = [cells for cells in table if cells[:3] == ["`res50_ASPP`", "18", "321"]]
    found = [memory_table.gib("res50_ASPP", 18, memory_table.DENSE, 321, 4, amp) for amp in ("none", "bf16")]
    assert row[4] == " / ".join(f"{size:.1f}" for size in found)


def test_first_page_is_short_and_its_pictures_are_small():
    for path in REPO.glob("README*.md"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 100
    pictures = list(REPO.glob("docs/images/*"))
    assert pictures
    for path in pictures:
        assert path.suffix == ".png"
        assert path.stat().st_size < 200_000


def test_what_the_documents_write_is_not_for_git_and_no_data_are_in_it():
    if not (REPO / ".git").exists():
        pytest.skip("not a git checkout")
    folders = ("report", "report_first", "predictions", "predictions_first", "log/demo", "dataset/demo")
    written = [f"{name}/x" for name in folders]
    ignored = subprocess.run(["git", "check-ignore", *written], cwd=REPO, capture_output=True, text=True, check=False)
    assert ignored.stdout.split() == written
    files = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in files if re.search(r"\.(pth?|onnx|npy|npz|jpe?g)$", name)]
