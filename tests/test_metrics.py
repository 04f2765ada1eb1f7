"""Scores, by numbers worked out by hand."""

import cv2
import numpy as np
import pytest
import torch

from data.classes import voc_colours
from evaluation.metrics import boundary_counts, confusion_matrix, scores, table
from evaluation.pictures import panel


def test_confusion_matrix_counts_labelled_pixels():
    label = torch.tensor([[0, 0, 1, 255]], dtype=torch.uint8)
    predicted = torch.tensor([[0, 1, 1, 2]])
    assert confusion_matrix(predicted, label, 3).tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert confusion_matrix(predicted, label, 3).dtype == torch.int64  # D12


def test_d10_absent_classes_leave_the_mean():
    # class 0: 3 right, 1 called 1. class 1: 2 right. class 2 absent, never predicted. class 3 absent, predicted once.
    confusion = torch.tensor([[3, 1, 0, 0], [0, 2, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]])
    result = scores(confusion)
    assert result["iou"] == [3 / 4, 2 / 4, None, 0.0]
    assert result["miou"] == pytest.approx((3 / 4 + 2 / 4) / 2)
    assert result["pixels"] == 7
    assert result["pixel_acc"] == pytest.approx(5 / 7)
    assert result["mean_acc"] == pytest.approx((3 / 4 + 2 / 3) / 2)
    assert "absent" in table(result, ["a", "b", "c", "d"])


def test_nothing_labelled_scores_0():
    result = scores(torch.zeros(2, 2, dtype=torch.int64))
    assert (result["miou"], result["pixel_acc"], result["mean_acc"], result["iou"]) == (0, 0, 0, [None, None])


def test_colours_are_vocs_and_panel_shows_the_image_as_it_is():
    # VOC: 1 aeroplane (128, 0, 0), 15 person (192, 128, 128), 255 border (224, 224, 192)
    colours = voc_colours()
    assert colours[[0, 1, 15, 255]].tolist() == [[0, 0, 0], [128, 0, 0], [192, 128, 128], [224, 224, 192]]
    image = np.full((2, 3, 3), 200, np.uint8)
    label, predicted = np.full((2, 3), 255), np.ones((2, 3), np.int64)
    picture = panel(image, label, predicted, colours, 0)
    assert picture.shape == (4, 6, 3)
    assert picture.dtype == np.uint8
    assert picture[0, 0].tolist() == [200, 200, 200]  # D21: not scaled twice
    assert picture[0, 3].tolist() == [224, 224, 192]
    assert picture[2, 0].tolist() == [128, 0, 0]
    assert picture[2, 3].tolist() == [164, 100, 100]
    large = np.zeros((600, 1300), np.int64)
    assert panel(np.zeros((600, 1300, 3), np.uint8), large, large, colours, 0).shape == (2 * 200, 2 * 434, 3)


def test_every_score_of_a_class():
    # rows: labels of 4, 3 and 0 pixels. Right: 3, 2, 0; predicted: 3, 4, 0.
    result = scores(torch.tensor([[3, 1, 0], [0, 2, 1], [0, 1, 0]]))
    assert result["acc"] == pytest.approx([3 / 4, 2 / 3, 0])
    assert result["precision"] == pytest.approx([1, 2 / 4, 0])
    # IoU 3/4, 2/5, 0 with shares 4/8, 3/8, 1/8 of the labelled pixels
    assert result["fwiou"] == pytest.approx(3 / 4 * 4 / 8 + 2 / 5 * 3 / 8)
    never = scores(torch.tensor([[3, 0], [0, 0]]))
    assert never["acc"][1] is never["precision"][1] is never["iou"][1] is None


@pytest.mark.parametrize(("height", "width", "distance"), [(100, 140, 3), (100, 150, 4), (12, 16, 1)])  # 3.4, 3.6, 0.4
def test_boundary_iou_is_that_of_its_authors(height, width, distance):
    """Per class: the mask less its erosion, pixels beyond the image not of the class (boundary_iou_api)."""
    rng = np.random.default_rng(0)
    label, predicted = (
        cv2.resize(rng.integers(0, 3, (5, 7), dtype=np.uint8), (width, height), interpolation=cv2.INTER_NEAREST)
        for _ in range(2)
    )
    label[height // 2 :, -width // 8 :] = 255

    def boundary(values: np.ndarray, class_id: int) -> np.ndarray:
        mask = cv2.copyMakeBorder((values == class_id).astype(np.uint8), 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=0)
        return (mask - cv2.erode(mask, np.ones((3, 3), np.uint8), iterations=distance))[1:-1, 1:-1] == 1

    counts = boundary_counts(torch.from_numpy(predicted), torch.from_numpy(label), 3)
    seen = np.where(label == 255, 255, predicted)
    for class_id in range(3):
        ours, theirs = boundary(label, class_id), boundary(seen, class_id)
        assert counts[:, class_id].tolist() == [(ours & theirs).sum(), ours.sum(), theirs.sum()]
    assert (counts[0] > 0).all()
