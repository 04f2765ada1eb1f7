"""Settle, build, fit: no flag changes after settle(), files are listed once, and one module reads checkpoints."""

import ast
import dataclasses

import pytest
from conftest import run_train
from test_rooms import ROOMS, calls

from data import layout
from flags import Config


def callers(names: set[str]) -> set[str]:
    """The product's modules that call one of these functions, by its name in the call."""
    return {file for file, call in calls([".", *ROOMS]) if ast.unparse(call) in names}


def test_flags_are_frozen_and_only_settling_makes_others():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().lr = 1.0  # type: ignore[misc]
    # inference/trained.py settles the flags of a checkpoint for the programs that use one.
    assert callers({"dataclasses.replace", "replace"}) & {"train.py", "utils.py"} == set()
    in_training = {file for file in callers({"dataclasses.replace"}) if file.startswith("training/")}
    assert in_training == {"training/settle.py", "training/data_flags.py"}


@pytest.mark.parametrize("dataset", ["ScribblePseudoDsDc", "Dense"])
def test_a_run_lists_the_files_of_each_split_once(demo_root, tmp_path, monkeypatch, dataset):
    listed, match_files = [], layout.match_files
    monkeypatch.setattr(layout, "match_files", lambda split: listed.append(split) or match_files(split))
    # Without --epochs the recipe looks at the files, too.
    run_train(dataset_path=demo_root, dataset=dataset, logdir=tmp_path, max_steps=1, epochs=None)
    assert len(listed) == 2  # training and validation


def test_one_module_reads_checkpoints():
    assert callers({"torch.load"}) == {"training/checkpoint.py"}
