"""Runs by the number of optimizer steps: their length, validation between them, and what they log."""

import json
import signal
import time

import pytest
import torch
from conftest import assert_same_run, finish, flags, read_metrics, run_train, start

from distributed.group import Group
from losses.criterion import ACCURACY, Criterion
from runs.run import Run
from schedule import lr_factor


def validations(folder) -> list[tuple[int, int]]:
    return [(line["epoch"], line["step"]) for line in read_metrics(folder, "val")]


def test_max_steps_ends_a_run_in_mid_epoch_and_a_longer_one_goes_on_there(demo_root, tmp_path):
    """8 images, batch 2: 4 steps an epoch."""
    words = {"dataset_path": demo_root, "logdir": tmp_path, "max_steps": 6, "epochs": None, "val_epoch_frequency": 0}
    folder = run_train(**words, name="short")
    assert [line["step"] for line in read_metrics(folder, "train")] == [1, 2, 3, 4, 5, 6]
    assert validations(folder) == [(2, 6)]  # only at the end
    content = torch.load(folder / "last.pt", weights_only=True)
    assert (content["epoch"], content["samples"], content["step"]) == (1, 4, 6)
    # The lr has come to the last of 6 steps; the run that is made longer sees the other half of epoch 2.
    run_train(**words | {"max_steps": 8}, name="short", resume=folder / "last.pt")
    assert [line["step"] for line in read_metrics(folder, "train")] == list(range(1, 9))
    content = torch.load(folder / "last.pt", weights_only=True)
    assert (content["epoch"], content["samples"], content["step"]) == (2, 0, 8)


def test_val_step_frequency_validates_between_steps_and_changes_nothing_else(demo_root, tmp_path):
    words = {"dataset_path": demo_root, "logdir": tmp_path, "epochs": 2, "model_type": "deeplabv3"}  # with dropout
    often = run_train(**words, name="often", val_step_frequency=3)
    plain = run_train(**words, name="plain")
    assert validations(often) == [(1, 3), (1, 4), (2, 6), (2, 8)]
    assert validations(plain) == [(1, 4), (2, 8)]
    ours, theirs = (torch.load(folder / "last.pt", weights_only=True)["model"] for folder in (often, plain))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    # A validation's line comes after that of the step before it, and best.pt is of the best of all.
    order = [
        (line["kind"], line["step"]) for line in map(json.loads, (often / "metrics.jsonl").read_text().splitlines())
    ]
    assert order == [
        ("train", 1), ("train", 2), ("train", 3), ("val", 3), ("train", 4), ("val", 4),
        ("train", 5), ("train", 6), ("val", 6), ("train", 7), ("train", 8), ("val", 8),
    ]  # fmt: skip
    scores = {line["step"]: line["miou"] for line in read_metrics(often, "val")}
    best = torch.load(often / "best.pt", weights_only=True)
    assert best["best_miou"] == scores[best["step"]] == max(scores.values())


def test_run_killed_around_a_validation_between_steps_ends_the_same(demo_root, tmp_path):
    words = flags(
        dataset_path=demo_root, logdir=tmp_path, epochs=3, val_step_frequency=3, save_step_frequency=3,
        model_type="res50_ASPP", dataset="Dense",
    )  # fmt: skip
    whole = start([*words, "--name", "whole"], tmp_path)
    killed = start([*words, "--name", "killed"], tmp_path)
    metrics = tmp_path / "killed" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    # step_00000006.pt is written before the validation at step 6
    while not (tmp_path / "killed" / "step_00000006.pt").exists():
        assert killed.poll() is None, killed.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert metrics.exists()
    [(status, _, stderr)] = finish([start([*words, "--name", "killed", "--resume", "auto"], tmp_path)])
    assert status == 0, stderr
    assert finish([whole])[0][0] == 0
    assert_same_run(tmp_path / "killed", tmp_path / "whole")
    assert validations(tmp_path / "killed") == [(1, 3), (1, 4), (2, 6), (2, 8), (3, 9), (3, 12)]


def test_run_by_steps_stopped_in_its_last_validation_does_it_again(demo_root, tmp_path):
    words = flags(
        dataset_path=demo_root, logdir=tmp_path, max_steps=3, epochs=None, model_type="res50_ASPP", dataset="Dense"
    )
    faulty = ["signal_in_validation", "0", *words, "--name", "stopped"]
    stopped, whole = finish(
        [start(faulty, tmp_path, "tests/train_with_fault.py"), start([*words, "--name", "whole"], tmp_path)]
    )
    assert (stopped[0], whole[0]) == (75, 0), (stopped, whole)
    assert not validations(tmp_path / "stopped")
    [(status, _, stderr)] = finish([start([*words, "--name", "stopped", "--resume", "auto"], tmp_path)])
    assert status == 0, stderr
    assert (tmp_path / "stopped" / "best.pt").is_file()
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")
    run_train(dataset_path=demo_root, logdir=tmp_path, max_steps=3, epochs=None, model_type="res50_ASPP", dataset="Dense",
              name="stopped", resume="auto")  # fmt: skip
    assert validations(tmp_path / "stopped") == [(1, 3)]  # nothing was left to do


def test_lr_follows_the_steps_where_they_are_the_runs_length(demo_root, tmp_path):
    """6 steps of batch 2, then with batch 4: the lr goes on at step 4 of 6, and not at the 2 steps of 4 images."""
    words = {"dataset_path": demo_root, "logdir": tmp_path, "epochs": None, "name": "x", "lr_scaling": "none"}
    folder = run_train(**words, max_steps=3)
    run_train(**words | {"batchsize": 4}, max_steps=6, resume=folder / "last.pt")
    rates = [line["lr"] for line in read_metrics(folder, "train")]
    assert rates == [0.01 * lr_factor(step, 3 if step < 3 else 6, 0) for step in range(6)]


def test_validation_between_steps_is_not_in_the_rate_of_training(monkeypatch):
    """By a clock that only moves where it is told to: 2 images in 1 s, and a validation of 100 s between the steps."""
    now = [0.0]
    monkeypatch.setattr("runs.run.time.perf_counter", lambda: now[0])
    run = Run(Group(torch.device("cpu")), log_interval=2)
    lines: list[dict] = []
    monkeypatch.setattr(run, "_write", lines.append)
    loss = torch.tensor(1.0)

    def batches():
        now[0] += 100
        yield None

    for step in run.steps([1, 2, 3], total=3, title=""):
        if step == 2:
            list(run.validation_bar(batches(), total=1))
        now[0] += 1
        run.log_step(1, step, {"loss": loss}, loss, 0.1, 2)
    assert [line["images_per_s"] for line in lines] == [2.0, 2.0]


def test_accuracy_is_the_share_of_labelled_pixels_that_are_right():
    # Two images of 2 x 2: the model says class 1 in the left column and 0 in the right one.
    logits = torch.tensor([[0.0, 9.0], [0.0, 9.0]])
    logits = torch.stack([logits, 9 - logits]).expand(2, 2, 2, 2)  # (B, C, H, W)
    label = torch.tensor([[[1, 0], [0, 255]], [[255, 255], [1, 1]]], dtype=torch.uint8)  # right: 2 of 3, 1 of 2
    batch = {"image": torch.zeros(2, 2, 2, 3), "label": label}
    plain, seen = Criterion({"seg": 2.0}), Criterion({"seg": 2.0}, accuracy=True)
    counts = seen.counts(batch, None)
    assert counts.tolist() == [5, 5]
    parts = seen({"logits": logits}, batch, counts.tolist())
    assert seen.named(parts)[ACCURACY].item() == pytest.approx(3 / 5)
    [expected] = plain({"logits": logits}, batch, [5.0])
    assert seen.total(parts) == 2 * expected


@pytest.mark.parametrize("dataset", ["ScribblePseudo", "PseudoOnly"])
def test_report_training_batch_acc_is_logged_besides_the_losses(demo_root, tmp_path, dataset):
    words = {"dataset_path": demo_root, "logdir": tmp_path, "dataset": dataset, "model_type": "res50_ASPP"}
    folder = run_train(**words, report_training_batch_acc=True)
    for line in read_metrics(folder, "train"):
        assert 0 <= line[ACCURACY] <= 1
        assert ACCURACY not in line["losses"]
        assert line["loss"] == pytest.approx(sum(line["losses"].values()), rel=1e-6)
