"""Which images a report shows, and what evaluate_split() keeps of them."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ALONE
from PIL import Image

from data.sampler import EvalBatches
from inference.evaluation import evaluate_split
from inference.report import choose_images, gather_predictions
from support.batch import EvalBatch

NUM_IMAGES, WORST = 60, 37


def drawn() -> tuple[np.ndarray, np.ndarray]:
    """Labels and predictions (60, 16, 16) of 4 classes.

    Image 37 is wrong in every pixel, each other one in 1 to 120 of 256.
    """
    rng = np.random.default_rng(0)
    labels = np.zeros((NUM_IMAGES, 16, 16), np.uint8)
    labels[:, :, 8:] = rng.integers(0, 4, (NUM_IMAGES, 1, 1))
    predicted = labels.copy()
    for number in range(NUM_IMAGES):
        wrong = rng.permutation(256)[: 256 if number == WORST else rng.integers(1, 121)]
        flat = predicted[number].reshape(-1)
        flat[wrong] = (flat[wrong] + rng.integers(1, 4, len(wrong))) % 4
    return labels, predicted


LABELS, PREDICTED = drawn()


def plain_choice() -> list[int]:
    """The 12 worst, the 6 best and the worst of each class, by IoU counted pixel by pixel; the worst first."""
    ious = []
    for label, predicted in zip(LABELS, PREDICTED, strict=True):
        of_image = {}
        for k in np.unique(label).tolist():
            both, either = (label == k) & (predicted == k), (label == k) | (predicted == k)
            of_image[k] = both.sum() / either.sum()
        ious.append(of_image)
    miou = [sum(of_image.values()) / len(of_image) for of_image in ious]
    order = sorted(range(NUM_IMAGES), key=lambda number: miou[number])
    assert len(set(miou)) == NUM_IMAGES  # no ties
    chosen = {*order[:12], *order[-6:]}
    chosen |= {min((n for n in order if k in ious[n]), key=lambda n, k=k: (ious[n][k], n)) for k in range(4)}
    return [number for number in order if number in chosen]


def batches(indices: list[int], size: int):
    """The prediction is in the image's first channel."""
    for start in range(0, len(indices), size):
        index = indices[start : start + size]
        image = np.repeat(PREDICTED[index][..., None], 3, axis=3)
        yield EvalBatch(torch.from_numpy(image), torch.from_numpy(LABELS[index]), index)


class Batches(list):
    """As an EvalLoader over images of 4 classes."""

    dataset = SimpleNamespace(names=[f"image {number}" for number in range(NUM_IMAGES)], num_classes=4)
    batch_sampler = EvalBatches([(16, 16)] * NUM_IMAGES, batch_size=4, rank=0, world_size=1)


def scored(indices: list[int], size: int = 4):
    predictor = SimpleNamespace(labels=lambda images, step: images[..., 0], num_windows=lambda size: 1)
    return evaluate_split(predictor, Batches(batches(indices, size)), ALONE, "images", keep=choose_images)


@pytest.mark.parametrize("size", [1, 7, 60])
def test_the_worst_images_are_kept_and_no_more(size):
    result = scored(list(range(NUM_IMAGES)), size)
    shown = gather_predictions(result, ALONE)
    assert list(shown) == plain_choice()
    assert next(iter(shown)) == WORST
    assert set(result.pngs) == set(shown)  # at most 12 + 6 + 4 of 60
    for index, png in shown.items():
        np.testing.assert_array_equal(np.array(Image.open(io.BytesIO(png))), PREDICTED[index])


def test_the_same_images_are_shown_of_any_number_of_processes():
    """Three processes keep what is worst among their images; the counts of all choose among these."""
    whole = scored(list(range(NUM_IMAGES)))
    shares = [scored(list(range(rank, NUM_IMAGES, 3))) for rank in range(3)]
    shares[0].counts = sum(share.counts for share in shares)
    group = SimpleNamespace(gather=lambda _: [[share.pngs.get(index) for index in plain_choice()] for share in shares])
    assert gather_predictions(shares[0], group) == gather_predictions(whole, ALONE)
