"""The pixel accuracy of training batches, against a direct computation in NumPy."""

import numpy as np
import pytest
import torch

from losses import pixel_accuracy
from losses.pixel_accuracy import count_hits
from support.batch import Batch


@pytest.mark.parametrize("shape", [(3, 4, 17, 24), (1, 1, 9, 5), (2, 5, 2, 5)])  # (h, w, H, W)
def test_hits_are_those_of_numpy(monkeypatch, shape):
    monkeypatch.setattr(pixel_accuracy, "CPU_BAND", 1)  # bands of MIN_ROWS rows: two of 17 rows are whole
    rng, (low_height, low_width, height, width) = np.random.default_rng(0), shape
    logits = rng.normal(size=(2, 5, low_height, low_width))
    label = rng.choice([0, 1, 2, 3, 4, 255], size=(2, height, width)).astype(np.uint8)
    # Align corners: both ends coincide.
    rows, columns = np.linspace(0, low_height - 1, height), np.linspace(0, low_width - 1, width)
    wide = np.apply_along_axis(lambda line: np.interp(columns, np.arange(low_width), line), 3, logits)
    full = np.apply_along_axis(lambda line: np.interp(rows, np.arange(low_height), line), 2, wide)
    expected = [(full.argmax(1) == label).sum(), (label != 255).sum()]
    image = torch.zeros(2, height, width, 3, dtype=torch.uint8)
    for values in (torch.from_numpy(logits), torch.from_numpy(logits).float()):
        assert count_hits(values, Batch(image, label=torch.from_numpy(label))).tolist() == expected
        assert count_hits(values, Batch(image, pseudo=torch.from_numpy(label))).tolist() == expected
