"""Early stopping: --patience ends a run whose validations no longer improve, and a resumed run knows it."""

import pytest
from conftest import assert_same_run, kill, read_metrics, start_group, succeed, wait_until
from test_report import Elements

from training import checkpoint

# Weights that stay as they are: the first validation is the best, and no later one is better.
STILL = {"dataset": "Dense", "model_type": "res50_ASPP", "freeze_bn": True, "lr": 1e-12, "wdecay": 0, "name": "x"}
STILL |= {"epochs": 10, "patience": 2}  # 8 images in batches of 2: 4 steps an epoch


def steps(folder, kind: str) -> list[int]:
    return [line["step"] for line in read_metrics(folder, kind)]


def reported(folder) -> tuple[int, float, list[int]]:
    """The report's step and mIoU, and the steps of the validations that it draws."""
    page = Elements(folder / "report.html").data()
    step = int(page["facts"][0][1].rpartition(" ")[2])
    return step, page["scores"]["miou"], [line["step"] for line in page["curves"]["val"]]


def test_run_ends_after_n_validations_without_a_better_one_and_again_if_it_is_resumed(demo_run, capsys):
    folder = demo_run(**STILL)
    output = capsys.readouterr().out
    assert steps(folder, "val") == [4, 8, 12]
    assert steps(folder, "train") == list(range(1, 13))
    assert "stopped early: 2 validations in a row did not improve the best score (--patience 2)" in output
    assert checkpoint.read_run(folder / "best.pt").step == 4
    assert f"{folder / 'best.pt'}, step 4:" in output
    assert reported(folder) == (4, read_metrics(folder, "val")[0]["miou"], [4, 8, 12])
    # Resumed, it has nothing left to do, and goes on with more patience.
    lines = (folder / "metrics.jsonl").read_text()
    demo_run(**STILL, resume="auto")
    output = capsys.readouterr().out
    assert "there is nothing left to do" in output
    assert "stopped early: 2 validations in a row" in output
    assert (folder / "metrics.jsonl").read_text() == lines
    demo_run(**STILL | {"patience": 3}, resume="auto")
    assert steps(folder, "val") == [4, 8, 12, 16]
    demo_run(**STILL | {"patience": 0, "epochs": 5}, resume="auto")
    assert steps(folder, "val") == [4, 8, 12, 16, 20]


def test_when_a_run_validates(demo_run):
    # 4 steps an epoch. The first epoch has no validation, so neither have steps 2 and 4, also not when epoch 2 begins.
    late = {"epochs": 3, "patience": 0, "val_start_epoch": 1, "val_step_frequency": 2, "name": "late"}
    assert steps(demo_run(**STILL | late), "val") == [6, 8, 10, 12]
    # Step 3, the epoch's end, and step 6, after which --patience 2 ends the run in mid-epoch.
    folder = demo_run(**STILL | {"val_step_frequency": 3, "name": "patient"})
    assert (steps(folder, "val"), steps(folder, "train")) == ([3, 4, 6], list(range(1, 7)))


def test_a_run_that_ends_without_a_validation_prints_commands_that_work(demo_run, capsys):
    """Resumed with fewer epochs than it has done, it is over, and was never validated."""
    folder = demo_run(**STILL | {"epochs": 4, "val_epoch_frequency": 4, "patience": 0, "name": "unseen"}, max_steps=4)
    (folder / "best.pt").unlink()
    lines = [line for line in (folder / "metrics.jsonl").read_text().splitlines() if '"val"' not in line]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    capsys.readouterr()
    demo_run(**STILL | {"epochs": 1, "patience": 0, "name": "unseen"}, resume=folder / "last.pt")
    said = capsys.readouterr().out
    assert "no validation; saved in" in said
    assert f"evaluate.py --checkpoint {folder / 'last.pt'}" in said
    assert "best.pt" not in said.partition("done: ")[2]


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_run_ends_where_one_that_was_not_killed_does(demo_flags, tmp_path, world_size):
    """Killed after a validation that did not improve: the resumed run has one left."""

    def run(name: str, *more: str) -> list:
        return start_group(world_size, [*demo_flags(**STILL | {"name": name}), *more], tmp_path)

    whole, killed = run("whole"), run("x")
    last = tmp_path / "x" / "last.pt"
    wait_until(lambda: last.exists() and checkpoint.step_of(last) == 8 // world_size, killed)
    kill(killed)
    best = vars(checkpoint.read_run(tmp_path / "x/best.pt"))
    validated = [number * 4 // world_size for number in (1, 2, 3)]
    step, score, curve = reported(tmp_path / "x")
    assert (step, score) == (best["step"], best["best_score"])
    assert curve in (validated[:2], validated)  # on a busy machine, the run may get to the last validation
    [stdout, *_] = succeed(run("x", "--resume", "auto"))
    assert "stopped early: 2 validations" in stdout
    assert reported(tmp_path / "x") == (best["step"], best["best_score"], validated)
    succeed(whole)
    assert steps(tmp_path / "x", "val") == validated
    assert_same_run(tmp_path / "x", tmp_path / "whole")
