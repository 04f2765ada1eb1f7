"""Scores, by numbers worked out by hand."""

import numpy as np
import pytest
import torch

from training import scores as metrics
from training.scores import confusion_matrix, scores, table


def test_confusion_matrix_counts_labelled_pixels():
    label = torch.tensor([[0, 0, 1, 255]], dtype=torch.uint8)
    predicted = torch.tensor([[0, 1, 1, 2]])
    assert confusion_matrix(predicted, label, 3).tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert confusion_matrix(predicted, label, 3).dtype == torch.int64  # D12


def test_every_score_and_d10_absent_classes_leave_the_mean():
    # class 0: 3 right, 1 called 1. class 1: 2 right, 1 called 3. class 2: absent, never predicted. class 3: absent.
    result = scores(torch.tensor([[3, 1, 0, 0], [0, 2, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]))
    assert result["iou"] == [3 / 4, 2 / 4, None, 0.0]
    assert result["acc"] == pytest.approx([3 / 4, 2 / 3, None, None])
    assert result["precision"] == pytest.approx([1, 2 / 3, None, 0])
    assert result["miou"] == pytest.approx((3 / 4 + 2 / 4) / 2)
    assert result["dice"] == pytest.approx(
        [2 * 3 / (4 + 3), 2 * 2 / (3 + 3), None, 0]
    )  # 2 x right / (label + predicted)
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
        pytest.param([[90, 4], [2, 4]], 0, 4 / 10, id="of one object it is the IoU"),
        pytest.param([[90, 4], [2, 4]], None, (90 / 96 + 4 / 10) / 2, id="of two objects it is the mIoU"),
        pytest.param([[90, 0], [0, 0]], 0, 0.0, id="an object that is nowhere has no IoU"),
        pytest.param([[8, 0, 0], [0, 5, 5], [0, 0, 0]], 0, (1 + 5 / 10) / 2, id="of three classes it is the mIoU"),
    ],
)
def test_the_score_that_decides_the_best_checkpoint(confusion, background, score):
    assert metrics.headline(scores(torch.tensor(confusion)), background) == pytest.approx(score)


def test_classes_that_are_never_predicted_are_named():
    # Class 0 has 90 of 100 pixels. Always predicting it has an IoU of 0.9 for it, and 0 for the two others.
    result, names = (
        scores(torch.tensor([[89, 0, 1, 0], [6, 0, 0, 0], [2, 0, 2, 0], [0, 0, 0, 0]])),
        ["0", "car", "2", "3"],
    )
    line = "never predicted: class 1 (car); a constant answer has mIoU 30.00"
    assert metrics.missed_classes(result, names) == line
    assert f"  {line}" in table(result, names).splitlines()
    assert metrics.missed_classes(scores(torch.tensor([[1, 1], [1, 1]])), ["0", "1"]) == ""
    rare = torch.diag(torch.tensor([91, *[0] * 9]))
    rare[1:, 0] = 1  # nine classes of one pixel, all called class 0
    text = metrics.missed_classes(scores(rare), [str(number) for number in range(10)])
    assert "class 5, class 6 and 3 more; a constant answer has mIoU 9.10" in text


def test_scores_of_images_and_the_interval_over_them():
    # Correct, labelled and predicted pixels of 2 classes: one of two right; nothing labelled.
    counts = np.array([[[1, 0], [2, 0], [1, 1]], [[0, 0], [0, 0], [5, 0]]])
    assert metrics.image_scores(counts) == [{"miou": 0.5, "iou": [0.5, 0]}, {"miou": None, "iou": [0, None]}]
    # Of 100 images 50 are right, each with one pixel of one class, labelled as it or not predicted: the share of right
    # ones among 100 draws has a standard deviation of 0.05.
    right = np.arange(100) < 50
    counts = np.stack([right, np.ones(100), right], axis=1)[..., None]
    assert metrics.miou_interval(counts) == pytest.approx((0.5 - 1.96 * 0.05, 0.5 + 1.96 * 0.05), abs=0.015)
