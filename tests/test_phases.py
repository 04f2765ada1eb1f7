"""Settle, build, fit: no flag changes after settle(), files are listed once, and one module reads checkpoints."""

import ast
import dataclasses

import pytest
from conftest import REPO, run_train

from data import layout
from flags import Config


def calls(names: set[str]) -> set[str]:
    """The product's modules that call one of these functions, by their names at the end of the call."""
    files = [*REPO.glob("*.py"), *(file for init in REPO.glob("*/__init__.py") for file in init.parent.rglob("*.py"))]
    found = set()
    for file in files:
        nodes = (node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call))
        if any(ast.unparse(node.func) in names for node in nodes):
            found.add(file.relative_to(REPO).as_posix())
    return found


def test_flags_are_frozen_and_only_settling_makes_others():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().lr = 1.0  # type: ignore[misc]
    # inference/trained.py settles the flags of a checkpoint for the programs that use one.
    assert calls({"dataclasses.replace", "replace"}) & {"train.py", "utils.py"} == set()
    in_training = {file for file in calls({"dataclasses.replace"}) if file.startswith("training/")}
    assert in_training == {"training/settle.py"}


@pytest.mark.parametrize("dataset", ["ScribblePseudoDsDc", "Dense"])
def test_a_run_lists_the_files_of_each_split_once(demo_root, tmp_path, monkeypatch, dataset):
    listed, match_files = [], layout.match_files
    monkeypatch.setattr(layout, "match_files", lambda split: listed.append(split) or match_files(split))
    # Without --epochs the recipe looks at the files, too.
    run_train(dataset_path=demo_root, dataset=dataset, logdir=tmp_path, max_steps=1, epochs=None)
    assert len(listed) == 2  # training and validation


def test_one_module_reads_checkpoints():
    assert calls({"torch.load"}) == {"training/checkpoint.py"}
