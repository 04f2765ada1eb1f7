"""What the documents name is there: files, flags, links, messages; and both languages say the same."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
from conftest import REPO
from documents import DOCUMENTS, blocks, rows, shell_lines, without_blocks
from torch.distributed.run import get_args_parser as torchrun_parser

import config
from config.programs import EVALUATE, EXPORT, PREDICT
from data import distance
from data.check import __main__ as check
from scripts import cli_reference

# Flags in the documents that are declared elsewhere than in a program's table of flags.
OF_OTHERS = {
    "help", "config", "stage",
    "processes",  # scripts/chaos.py
    "use_env",  # torch.distributed.launch
    "fsdp",  # named as what there is not
    "epoch",  # an example of a wrong name
}  # fmt: skip
# What PyTorch, NCCL or the system says, which the table of faults explains.
OF_TORCH = (
    "Address already in use", "Bus error", "CUDA error: device-side assert triggered", "CUDA error: invalid device ordinal",
    "CUDA out of memory", "ChildFailedError", "Connection closed by peer", "Connection refused", "EADDRINUSE",
    "Expected to have finished reduction in the prior iteration", "NCCL error: unhandled system error",
    "RendezvousTimeoutError", "Setting OMP_NUM_THREADS environment variable for each process to be",
    "Too many open files", "expected one argument", "Unable to find address for: ", "Watchdog caught collective operation timeout",
    "torch.distributed.launch is deprecated", "unhandled cuda error", "unrecognized arguments",
    "use_libuv was requested but PyTorch was build without libuv support",
)  # fmt: skip


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_console_blocks_name_files_that_exist(path):
    top = {entry.name for entry in REPO.iterdir()} - {"dataset", "log", "data"}
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language != "console":
            continue
        lines = [line[2:] for line in block.text.replace("\\\n", " ").splitlines() if line.startswith("$ ")]
        assert lines, f"{path.name}:{block.line}: no line starts with '$ '"
        for word in " ".join(lines).split():
            own = re.fullmatch(r"(?:\./)?([\w-]+)/[\w./-]+\.\w+", word)
            if (own and own[1] in top) or re.fullmatch(r"[\w-]+\.(py|sh|bat|toml)|Dockerfile|requirements\S*", word):
                assert (REPO / word).exists(), f"{path.name}:{block.line}: {word}"


def own_words(path: Path) -> str:
    """A document's text as far as it speaks of this project: of the table of the guides only the last column."""
    text = path.read_text(encoding="utf-8")
    return "\n".join(cells[-1] for cells in rows(text)) if path.name == "guides.md" else text


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_flag_named_in_the_documents_exists(path):
    text = re.sub(r"```console\n.*?```", "", own_words(path), flags=re.DOTALL)
    text = re.sub(r"`(pip|docker|git|srun|sbatch|mpirun|tensorboard|wandb|kubectl) [^`]*`", "", text)
    named = {name.replace("-", "_") for name in re.findall(r"(?<![\w-])--([a-z][\w-]*)", text)}
    known = {name for reader in (config.READER, EVALUATE, PREDICT, EXPORT) for name in reader.flags}
    known |= {
        action.dest for parser in (check.parser(), distance.parser(), torchrun_parser()) for action in parser._actions
    }
    known |= {f"no_{name}" for name in known}
    assert sorted(named - known - set(config.READER.aliases) - OF_OTHERS) == []


# Not comparison.md: it names files of other projects, and ours by links.
@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if path.name != "comparison.md"], ids=lambda path: path.name
)
def test_files_named_in_the_documents_exist(path):
    top = {entry.name for entry in REPO.iterdir() if entry.is_dir()} - {"dataset", "log"}
    missing = []
    for code in re.findall(r"`([^`\n]+)`", without_blocks(own_words(path))):
        for word in re.findall(r"(?<![\w./$%}-])[\w-][\w./-]*\.\w+(?:::\w+)?", code):
            name, _, test = word.partition("::")
            is_ours = name.split("/")[0] in top if "/" in name else name.endswith((".py", ".sh", ".bat", ".md", ".cff"))
            places = [folder / name for folder in (REPO, path.parent, REPO / "tests")]
            found = next((place for place in places if place.is_file()), None)
            if is_ours and (found is None or (test and f"def {test}(" not in found.read_text(encoding="utf-8"))):
                missing.append(word)
    assert not missing


@pytest.mark.parametrize(
    "path", [*DOCUMENTS, *REPO.glob("benchmarks/*.md"), *REPO.glob("CHANGELOG.md")], ids=lambda path: path.name
)
def test_links_lead_somewhere(path):
    text = without_blocks(path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked.read_text(encoding="utf-8")), target


def anchors(text: str) -> set[str]:
    """Of each heading, the anchor that GitHub gives it."""
    headings = re.findall(r"^#+ +(.*)", without_blocks(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_reference_of_the_command_line_is_current():
    assert (REPO / "docs/cli.md").read_text(encoding="utf-8") == cli_reference.page(), (
        "python -m scripts.cli_reference writes it anew"
    )


def test_reference_of_the_command_line_has_every_flag():
    page = cli_reference.page()
    for reader in (config.READER, EVALUATE, PREDICT, EXPORT):
        section = page.split(f"\n## {reader.program}\n")[1].split("\n## ")[0]
        for name in (*reader.flags, *(name for name in reader.aliases if "." not in name)):
            assert section.count(f"\n| `--{name}` |") == 1, name


def differences(english: str, other: str) -> list[str]:
    """What a translation has otherwise than its original: commands, headings, table rows and the code in them."""
    found = []
    codes = [[(block.language, list(shell_lines(block.text))) for block in blocks(text)] for text in (english, other)]
    for number, pair in enumerate(zip(*codes, strict=False), start=1):
        if pair[0] != pair[1]:
            found.append(f"code block {number}: {pair[0]} and {pair[1]}")
    levels = [re.findall(r"^#+(?= )", without_blocks(text), re.MULTILINE) for text in (english, other)]
    both_rows = [rows(text) for text in (english, other)]
    for what, one, two in (("code blocks", *codes), ("headings", *levels), ("table rows", *both_rows)):
        if len(one) != len(two):
            found.append(f"{len(one)} and {len(two)} {what}")
    for cells, other_cells in zip(*both_rows, strict=False):
        one, two = (sorted(re.findall(r"`([^`]+)`", " ".join(row))) for row in (cells, other_cells))
        if one != two:
            found.append(f"code in a table row: {one} and {two}")
    return found + (["headings of other levels"] if levels[0] != levels[1] else [])


def test_differences_of_a_translation_are_found():
    english = "# A\n\n```bash\npython a.py  # why\n```\n\n| see | do |\n| --- | --- |\n| `no such file` | look |\n"
    chinese = "# \u7532\n\n```bash\npython a.py  # \u4e59\n```\n\n| \u4e19 | \u4e01 |\n| --- | --- |\n| `no such file` | \u770b |\n"
    assert differences(english, chinese) == []
    for change in (
        ("a.py", "b.py"),
        ("# \u7532", "## \u7532"),
        ("no such", "no"),
        ("```bash", "```console"),
        ("| `no", "a | `no"),
    ):
        assert differences(english, chinese.replace(*change)), change
    assert differences(english, chinese.split("| \u4e19")[0]) == ["1 and 0 table rows"]


def test_both_languages_have_the_same_commands_and_messages():
    english, chinese = (REPO / f"docs/DDP_TRAINING{language}.md" for language in ("", ".zh-CN"))
    assert differences(english.read_text(encoding="utf-8"), chinese.read_text(encoding="utf-8")) == []


def messages(text: str) -> list[str]:
    """The messages of the table "you see this, do that": the code in its first column."""
    tables = re.findall(r"^\|[^|\n]*you see.*\n(?:\|.*\n?)*", without_blocks(text), re.MULTILINE | re.IGNORECASE)
    return [code for table in tables for cells in rows(table) for code in re.findall(r"`([^`]+)`", cells[0])]


def literal_texts() -> str:
    """Every text that the sources have as a constant, a line each; in an f-string what lies between its values."""
    texts = []
    for path in (
        *REPO.glob("*.py"),
        *(
            path
            for name in (
                "config",
                "data",
                "distributed",
                "evaluation",
                "exporting",
                "losses",
                "models",
                "prediction",
                "runs",
            )
            for path in REPO.glob(f"{name}/**/*.py")
        ),
    ):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts += [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
    return "\n".join(texts)


def unknown_parts(message: str, known: str) -> list[str]:
    """The literal parts of a message that are not in `known`. `...`, capitals and numbers stand for something else."""
    if message in known:
        return []
    parts = [part.strip(" '\"") for part in re.split(r"\.\.\.|\b[A-Z][A-Z0-9_]*\b|\d+", message)]
    parts = [part for part in parts if re.search(r"\w{3}", part)]
    return [part for part in parts if part not in known] if parts else [message]


def test_parts_of_messages_are_looked_up():
    known = "the run is\nat rank \n: no such folder"
    assert unknown_parts("DIR: no such folder", known) == []
    assert unknown_parts("at rank 3: no such file", known) == [": no such file"]
    assert unknown_parts("FILE", known) == ["FILE"]
    assert messages("| You see | do |\n|---|---|\n| `a ...` or `b` | `c` |\n\n| other |\n|---|\n| `d` |\n") == [
        "a ...",
        "b",
    ]


def test_every_message_in_the_table_of_faults_is_one_of_ours():
    found = messages((REPO / "docs/DDP_TRAINING.md").read_text(encoding="utf-8"))
    assert found
    known = "\n".join([literal_texts(), *OF_TORCH])
    assert {message: parts for message in found if (parts := unknown_parts(message, known))} == {}


def test_what_the_documents_write_is_not_for_git():
    if not (REPO / ".git").exists():
        pytest.skip("not a git checkout")
    written = [
        f"{name}/x"
        for name in ("report", "report_first", "predictions", "predictions_first", "log/demo", "dataset/demo")
    ]
    ignored = subprocess.run(["git", "check-ignore", *written], cwd=REPO, capture_output=True, text=True, check=False)
    assert ignored.stdout.split() == written


def test_no_data_or_weights_in_the_repository():
    if not (REPO / ".git").exists():
        pytest.skip("not a git checkout")
    files = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in files if re.search(r"\.(pth?|onnx|npy|npz|jpe?g)$", name)]
