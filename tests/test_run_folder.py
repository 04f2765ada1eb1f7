"""A start that fails leaves neither a folder nor a name behind, and no two runs share a folder."""

import multiprocessing
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import finish, flags, one_line_each, run_train, start, two_processes
from PIL import Image

from runs import folder as run_folder

FAULTS = "tests/train_with_fault.py"


def claim_and_hold(logdir: Path, barrier, results, hold) -> None:
    barrier.wait()
    folder, log = run_folder.claim(logdir, "x")
    results.put(folder.name)
    hold.wait()
    log.close()


def claim_often(logdir: Path, barrier, results) -> None:
    """Fail 200 starts, then begin a run."""
    barrier.wait()
    for _ in range(200):
        run_folder.remove(*run_folder.claim(logdir, "x"))
    folder, log = run_folder.claim(logdir, "x")
    (folder / "metrics.jsonl").write_text("{}\n")
    results.put(folder.name)
    log.close()


def test_file_that_the_run_did_not_write_is_kept(tmp_path):
    """As of a shell that writes the output of the start to a file in its folder."""
    folder, log = run_folder.claim(tmp_path, "x")
    (folder / "out.txt").write_text("mine")
    run_folder.remove(folder, log)
    assert (folder / "out.txt").read_text() == "mine"


@pytest.mark.skipif(run_folder.fcntl is None, reason="without locks a folder is taken once")
@pytest.mark.parametrize("left", [False, True], ids=["new", "left by a failed start"])
def test_starts_at_once_get_a_folder_each(tmp_path, left):
    if left:
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "train.log").write_text("error: ...\n")
    context = multiprocessing.get_context("fork")
    barrier, results, hold = context.Barrier(6), context.Queue(), context.Event()
    processes = [context.Process(target=claim_and_hold, args=(tmp_path, barrier, results, hold)) for _ in range(6)]
    for process in processes:
        process.start()
    names = [results.get(timeout=30) for _ in processes]
    hold.set()
    for process in processes:
        process.join(30)
    assert len(set(names)) == 6
    assert "x" in names


@pytest.mark.skipif(run_folder.fcntl is None, reason="without locks a folder is taken once")
def test_folders_that_vanish_meanwhile_are_no_trouble(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    processes = [context.Process(target=claim_often, args=(tmp_path, barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    names = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert len(set(names)) == 4
    assert all((tmp_path / name / "metrics.jsonl").exists() for name in names)
    assert {folder.name for folder in tmp_path.iterdir()} == set(names)


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


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks")
def test_folder_of_a_start_that_was_killed_is_taken_again(demo_run, demo_flags, tmp_path):
    words = demo_flags(name="x")
    process = start(["killed_in_first_step", "0", *words], tmp_path, FAULTS)
    while process.poll() is None:
        time.sleep(0.02)
    assert {file.name for file in (tmp_path / "x").iterdir() if "tfevents" not in file.name} == {
        "train.log",
        "config.yaml",
        "metrics.jsonl",
    }
    assert demo_run(name="x").name == "x"
    assert [folder.name for folder in tmp_path.iterdir()] == ["x"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks")
def test_label_that_one_rank_cannot_use_costs_no_name(demo_root, tmp_path):
    """Rank 0 has the folder and ends by the other rank's error."""
    bad = shutil.copytree(demo_root, tmp_path / "data")
    for file in (bad / "SegmentationClassAug").iterdir():
        Image.fromarray(np.full((120, 160), 37, np.uint8)).save(file)
    words = flags(logdir=tmp_path / "log", name="x", batchsize=1, dataset="Dense", model_type="res50_ASPP")
    results = finish(two_processes([[*words, "--dataset_path", str(root)] for root in (demo_root, bad)], tmp_path))
    one_line_each(results, "label 37 in 19200 pixel(s)")
    assert (
        run_train(
            dataset_path=demo_root, logdir=tmp_path / "log", name="x", dataset="Dense", model_type="res50_ASPP"
        ).name
        == "x"
    )
