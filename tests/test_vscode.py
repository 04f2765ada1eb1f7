"""The entries of .vscode/launch.json: each has a program and flags that it reads, and training starts."""

import json

import pytest
from conftest import REPO, finish, free_port, start

from flags.programs import EVALUATE, EXPORT, PREDICT, READER

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
