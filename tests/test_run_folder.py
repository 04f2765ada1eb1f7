"""A start that fails costs no name, and no two runs share a folder."""

import multiprocessing
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import finish, flags, one_line_each, run_train, start, start_group
from PIL import Image

from runs import folder as run_folder

FAULTS = "tests/train_with_fault.py"


def claim_and_hold(logdir: Path, barrier, results, hold) -> None:
    barrier.wait()
    folder, log = run_folder.claim(logdir, "x")
    results.put(folder.name)
    hold.wait()
    log.close()


def names_of(number: int, logdir: Path) -> set[str]:
    """The folders that processes claim at once, one each."""
    context = multiprocessing.get_context("fork")
    barrier, results, hold = context.Barrier(number), context.Queue(), context.Event()
    processes = [context.Process(target=claim_and_hold, args=(logdir, barrier, results, hold)) for _ in range(number)]
    for process in processes:
        process.start()
    names = {results.get(timeout=60) for _ in processes}
    hold.set()
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert len(names) == number
    return names


@pytest.mark.skipif(run_folder.fcntl is None, reason="without locks a folder is taken once")
@pytest.mark.parametrize("left", [False, True], ids=["new", "left by a failed start"])
def test_starts_at_once_get_a_folder_each(tmp_path, left):
    if left:
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "train.log").write_text("error: ...\n")
    assert "x" in names_of(6, tmp_path)


@pytest.mark.parametrize("file", ["last.pt", "best.pt.old", "notes.txt"])
def test_folder_with_anything_else_in_it_is_left_alone(tmp_path, file):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / file).touch()
    folder, log = run_folder.claim(tmp_path, "x")
    log.close()
    assert folder.name == "x.2"
    (tmp_path / "y").touch()  # no folder
    folder, log = run_folder.claim(tmp_path, "y")
    log.close()
    assert folder.name == "y.2"


def test_folder_of_a_start_that_was_killed_is_taken_again(demo_run, demo_flags, tmp_path):
    words = demo_flags(name="x")
    start(["killed_in_first_step", "0", *words], tmp_path, FAULTS).wait()
    names = {file.name for file in (tmp_path / "x").iterdir() if "tfevents" not in file.name}
    assert names == {"train.log", "config.yaml", "metrics.jsonl", "augmented.jpg"}
    assert demo_run(name="x").name == "x"
    assert [folder.name for folder in tmp_path.iterdir()] == ["x"]
    (tmp_path / "x.2").mkdir()  # of a start that failed: it is not the newest run
    assert run_folder.newest(tmp_path, "x") == tmp_path / "x"


def test_label_that_one_rank_cannot_use_costs_no_name(demo_root, tmp_path):
    """Rank 0 has the folder and ends by the other rank's error."""
    bad = shutil.copytree(demo_root, tmp_path / "data")
    for file in (bad / "SegmentationClassAug").iterdir():
        Image.fromarray(np.full((120, 160), 37, np.uint8)).save(file)
    values = {"logdir": tmp_path / "log", "name": "x", "dataset": "Dense", "model_type": "res50_ASPP"}
    words = [flags(**values, batchsize=1, dataset_path=root) for root in (demo_root, bad)]
    one_line_each(finish(start_group(2, words, tmp_path)), "label 37 in 19200 pixel(s)")
    assert run_train(**values, dataset_path=demo_root).name == "x"
