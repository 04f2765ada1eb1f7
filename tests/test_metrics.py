"""Scores, by numbers worked out by hand; and metrics of training, by a clock that only moves when it is told to."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ALONE

from data.classes import read_classes
from flags import Config
from flags.auto_recipe import FEW_STEPS
from support.best_score import deciding_score
from support.files import write_atomic
from training.checkpoint import to_bytes
from training.record import messages
from training.record.metrics import Metrics
from training.scores import confusion_matrix, image_scores, miou_interval, missed_classes, scores, table

# The object, class 1, has 10 of 100 pixels: predicted on 97 pixels, and on none.
EVERYWHERE, NOWHERE = [[3, 87], [0, 10]], [[90, 0], [10, 0]]


def test_confusion_matrix_counts_labelled_pixels():
    label = torch.tensor([[0, 0, 1, 255]], dtype=torch.uint8)
    predicted = torch.tensor([[0, 1, 1, 2]])
    assert confusion_matrix(predicted, label, 3).tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert confusion_matrix(predicted, label, 3).dtype == torch.int64


def test_every_score_and_absent_classes_leave_the_mean():
    # class 0: 3 right, 1 called 1. class 1: 2 right, 1 called 3. class 2: absent, never predicted. class 3: absent.
    result = scores(torch.tensor([[3, 1, 0, 0], [0, 2, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]))
    assert result["iou"] == [3 / 4, 2 / 4, None, 0.0]
    assert result["acc"] == pytest.approx([3 / 4, 2 / 3, None, None])
    assert result["precision"] == pytest.approx([1, 2 / 3, None, 0])
    assert result["miou"] == pytest.approx((3 / 4 + 2 / 4) / 2)
    # 2 x right / (label + predicted)
    assert result["dice"] == pytest.approx([2 * 3 / (4 + 3), 2 * 2 / (3 + 3), None, 0])
    assert result["mean_dice"] == pytest.approx((6 / 7 + 2 / 3) / 2)
    assert result["share"] == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert result["fwiou"] == pytest.approx(3 / 4 * 4 / 7 + 2 / 4 * 3 / 7)  # shares 4/7 and 3/7 of the labelled pixels
    assert result["pixels"] == 7
    assert result["pixel_acc"] == pytest.approx(5 / 7)
    assert result["mean_acc"] == pytest.approx((3 / 4 + 2 / 3) / 2)
    lines = table(result, ["a", "b", "c", "d"]).splitlines()
    cells = [line.split() for line in lines[2:6]]
    assert cells[:2] == [["a", "75.00", "85.71", "75.00", "100.00"], ["b", "50.00", "66.67", "66.67", "66.67"]]
    assert cells[2:] == [["c", "absent"], ["d", "0.00", "0.00", "-", "0.00"]]
    assert lines[-1].endswith("not in the means: c, d")
    nothing = scores(torch.zeros(2, 2, dtype=torch.int64))
    assert (nothing["miou"], nothing["pixel_acc"], nothing["mean_acc"], nothing["iou"]) == (0, 0, 0, [None, None])


@pytest.mark.parametrize(
    ("confusion", "background", "score"),
    [
        pytest.param([[90, 4], [2, 4]], 0, ("IoU of class 1", 4 / 10), id="of one object it is the IoU"),
        pytest.param([[90, 0], [6, 0]], 0, ("IoU of class 1", 0.0), id="of an object that is never found"),
        pytest.param([[90, 4], [2, 4]], None, ("mIoU", (90 / 96 + 4 / 10) / 2), id="of two objects it is the mIoU"),
        pytest.param([[90, 6], [0, 0]], 0, ("mIoU", 90 / 96), id="of an object that no label has it is the mIoU"),
        pytest.param([[8, 0, 0], [0, 5, 5], [0, 0, 0]], 0, ("mIoU", (1 + 5 / 10) / 2), id="of three classes"),
    ],
)
def test_the_score_that_decides_the_best_checkpoint(confusion, background, score):
    found, value = deciding_score(scores(torch.tensor(confusion)), ["0", "1", "2"][: len(confusion)], background)
    assert (found, value) == (score[0], pytest.approx(score[1]))


def test_classes_that_are_never_predicted_are_named():
    # Class 0 has 90 of 100 pixels. Always predicting it has an IoU of 0.9 for it, and 0 for the two others.
    names = ["0", "car", "2", "3"]
    result = scores(torch.tensor([[89, 0, 1, 0], [6, 0, 0, 0], [2, 0, 2, 0], [0, 0, 0, 0]]))
    line = "never predicted: class 1 (car); always predicting class 0 has mIoU 30.00"
    assert missed_classes(result, names) == line
    assert f"  {line}" in table(result, names).splitlines()
    assert missed_classes(scores(torch.tensor([[5, 1], [1, 3]])), ["0", "1"]) == ""
    # The object has 10 of 100 pixels, and 97 are called the object: IoU 10 / 97, where all 100 would have 10 / 100.
    # Else the IoU: 1 / 17, as 8 pixels are called the object and 1 of them is it; 1 / 10; 2700 / 5490.
    for confusion, why in (
        (EVERYWHERE, "10.31; if it were predicted everywhere, 10.00; it is predicted on much of the image"),
        ([[83, 7], [9, 1]], "5.88; if it were predicted everywhere, 10.00; it is predicted mostly in wrong places"),
        ([[90, 0], [9, 1]], "10.00; if it were predicted everywhere, 10.00; it is predicted too rarely"),
        ([[4510, 990], [1800, 2700]], "49.18; if it were predicted everywhere, 45.00"),
    ):
        assert missed_classes(scores(torch.tensor(confusion)), ["0", "car"]) == f"class 1 (car) has an IoU of {why}"
    rare = torch.diag(torch.tensor([91, *[0] * 9]))
    rare[1:, 0] = 1  # nine classes of one pixel, all called class 0
    text = missed_classes(scores(rare), [str(number) for number in range(10)])
    assert "class 5, class 6 and 3 more; always predicting class 0 has mIoU 9.10" in text


def test_the_end_of_a_run_says_what_to_try(tmp_path, caplog):
    """The object has 10 of 100 pixels; it is found nearly everywhere in validations 1 and 2, and nowhere in 3."""

    def said(best: int, *confusions: list, steps: int = FEW_STEPS // 3) -> str:
        write_atomic(tmp_path / "best.pt", to_bytes({"step": best * steps}))
        lines = [
            {"kind": "val", "step": steps * n, **scores(torch.tensor(rows))} for n, rows in enumerate(confusions, 1)
        ]
        write_atomic(tmp_path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        caplog.clear()
        messages._log_scores(tmp_path / "best.pt", Config(), read_classes("binary", 2))
        return caplog.text

    caplog.set_level("INFO", logger="segtrain")
    for best, is_first in ((1, True), (2, False)):
        text = said(best, EVERYWHERE, EVERYWHERE, NOWHERE)
        assert "IoU of class 1 (object) is too low to be of use: " in text
        assert "docs/one_object.md#if-the-object-is-not-found says what to try" in text
        # IoU 10 / 97, as above.
        line = "the score fell from 10.31 in the first of 3 validations, the best one, to 0.00 in the last: a smaller"
        assert (line in text) == is_first
    text = said(1, NOWHERE, NOWHERE, NOWHERE)  # never found: no score is lower
    assert "never predicted" in text
    assert "the score fell" not in text
    text = said(1, EVERYWHERE, EVERYWHERE, NOWHERE, steps=10)  # 30 steps say nothing about --lr
    assert "the score fell" not in text


def test_scores_of_images_and_the_interval_over_them():
    # Correct, labelled and predicted pixels of 2 classes: one of two right; nothing labelled.
    counts = np.array([[[1, 0], [2, 0], [1, 1]], [[0, 0], [0, 0], [5, 0]]])
    assert image_scores(counts) == [{"miou": 0.5, "iou": [0.5, 0]}, {"miou": None, "iou": [0, None]}]
    # Of 100 images 50 are right, each with one pixel of one class, labelled as it or not predicted: the share of right
    # ones among 100 draws has a standard deviation of 0.05.
    right = np.arange(100) < 50
    counts = np.stack([right, np.ones(100), right], axis=1)[..., None]
    assert miou_interval(counts) == pytest.approx((0.5 - 1.96 * 0.05, 0.5 + 1.96 * 0.05), abs=0.015)


LOADER = SimpleNamespace(num_workers=0)


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The time, to be changed by the test."""
    now = [0.0]
    monkeypatch.setattr("training.record.metrics.time.perf_counter", lambda: now[0])
    return now


def log_step(metrics: Metrics, epoch: int, step: int, loss: float) -> None:
    scaler = SimpleNamespace(is_enabled=lambda: False)
    state = SimpleNamespace(epoch=epoch, step=step, grad_norm=None, scaler=scaler)
    metrics.log_step(state, {"loss": torch.tensor(loss)}, lr=0.1, num_images=2)


def test_validation_between_steps_is_not_in_the_rate_of_training(now, monkeypatch):
    """2 images in 1 s, and a validation of 100 s between the steps."""
    metrics, lines = Metrics(ALONE), []
    metrics.log_interval = 2
    monkeypatch.setattr(metrics, "_write", lambda line, *_: lines.append(line))

    for step in metrics.watch([1, 2, 3], total=3, title=""):
        if step == 2:
            with metrics.pause():
                now[0] += 100
        now[0] += 1
        log_step(metrics, 1, step, 1.0)
    metrics.end_epoch()
    assert [line["images_per_s"] for line in lines] == [2.0, 2.0]


def test_line_of_an_epoch_has_its_time_and_the_time_left(now):
    """A process resumes at step 10 of 40 and does 5 steps in 1040 s, about 17 min, of which the first takes 1000 s.

    25 steps are left, which take 250 s, about 4 min.
    """
    metrics = Metrics(ALONE)
    metrics.log_interval = 100
    metrics.pace.run_steps = 30
    for step in metrics.watch(range(5), total=5, title=""):
        now[0] += 10 if step else 1000  # of the first step
        log_step(metrics, 3, 11 + step, float(step))
    metrics.end_epoch()
    assert metrics._bar.postfix.endswith(", run: 4 min left")  # the bar itself shows the time left in the epoch
    assert metrics.loss_text() == "loss 2.000"  # the mean of 0, 1, 2, 3, 4
    assert metrics.pace.text(2, LOADER) == "17 min, 4 min left, 0.00962 images/s"  # 10 images in 1040 s
    metrics.pace.run_steps = 5
    assert metrics.pace.text(2, LOADER) == "17 min, 0.00962 images/s"
    last = Metrics(ALONE)
    last.log_interval, last.pace.run_steps = 100, 5
    for step in last.watch(range(5), total=5, title=""):
        now[0] += 10
        log_step(last, 3, 36 + step, 1.0)
        assert "run:" not in (last._bar.postfix or "")  # in the last epoch, both times are one


def test_line_of_an_epoch_has_the_rate_and_the_share_of_waiting_for_the_loader(now):
    """The first batch takes 50 s, which do not count; then 4 steps of 3 s, 3 waits of 2 s, two validations of 100 s."""
    metrics = Metrics(ALONE)
    metrics.log_interval = 100

    def batches(wait: float):
        now[0] += 50 - wait
        for number in range(4):
            now[0] += wait
            yield number

    def validate() -> None:
        with metrics.pause():
            now[0] += 100

    def epoch(wait: float) -> str:
        for step in metrics.watch(batches(wait), total=4, title=""):
            if step == 2:
                validate()
            now[0] += 3
        validate()
        return metrics.pace.text(6, LOADER).partition(", ")[2].partition("left, ")[2]

    # 24 images in 4 * 3 + 3 * 2 = 18 s, of which 6 s are waiting
    metrics.pace.run_steps = 100
    advice = "33% of the time is waiting for the loader: raise --workers (now 0)"
    assert epoch(2.0) == f"1.33 images/s: {advice}"
    assert epoch(0.0) == "2 images/s"
    # 3 waits of 0.4 s are 1.2 of 13.2 s, 9 %: below the limit; 24 / 13.2 = 1.818
    assert epoch(0.4) == "1.82 images/s"
    # The slowest rank counts: it waits for 6 s, and this rank's step waits for it.
    metrics.pace.group = SimpleNamespace(gather=lambda own: [own, 6.0])
    assert epoch(0.0) == "2 images/s: 50% of the time is waiting for the loader: raise --workers (now 0)"
