"""The pixel accuracy of training batches: counts that add up over micro-batches and ranks."""

import torch
import torch.nn.functional as F
from torch import Tensor

from losses.pixel_pass import CPU_BAND, GPU_BAND, MIN_ROWS
from losses.upsampling import Axis
from support.batch import Batch
from support.labels import IGNORE


@torch.no_grad()
def count_hits(logits: Tensor, batch: Batch) -> Tensor:
    """Count the pixels where the argmax of the upsampled logits is right, and the labelled pixels: (2,) int64.

    logits: (B, C, h, w). Labels are the batch's `label`, or else its `pseudo`. The CPU never waits for a GPU, and the
    full-size logits never exist: they are computed in bands of rows.
    """
    labels = batch.maps.get("label", batch.pseudo)
    assert labels is not None
    height, width = labels.shape[1:]
    down = Axis(logits.shape[2], height)
    row_bytes = 4 * logits.shape[1] * width
    num_rows = max((CPU_BAND if logits.device.type == "cpu" else GPU_BAND) // row_bytes, MIN_ROWS)
    right = torch.zeros((), dtype=torch.int64, device=logits.device)
    for image, label in zip(logits, labels, strict=True):
        image = image if image.dtype == torch.float64 else image.float()
        # (C, h, w) -> (C, h, W)
        wide = F.interpolate(image[None], (image.shape[1], width), mode="bilinear", align_corners=True)[0]
        for first in range(0, height, num_rows):
            rows = torch.arange(first, min(first + num_rows, height), device=logits.device)
            lower = down.lower(rows)
            above, below = wide[:, lower], wide[:, (lower + 1).clamp(max=down.num_in - 1)]
            predicted = above.lerp(below, down.fraction(rows, wide.dtype).unsqueeze(1)).argmax(0)  # (rows, W)
            right += (predicted == label[first : first + num_rows]).sum()  # never at 255: there are at most 255 classes
    return torch.stack([right, (labels != IGNORE).sum()])
