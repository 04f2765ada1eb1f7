"""Logits at a few pixels of the full size, from their four neighbours alone."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from losses.upsampling import Axis
from support.labels import IGNORE, POINTS

FEW = 0.25  # above this share of labelled pixels, a pass over all pixels is as fast


def find_points(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the labelled pixels of a batch's "label" under the name in labels.POINTS, or {} if they are not few.

    label: (B, H, W) uint8 in CPU memory; 255 = unlabelled. The pixels are indices into the flattened label, int64
    (N,). The loader's workers call this, so that a training step need not.
    """
    labelled = (batch["label"] != IGNORE).flatten()
    few = torch.count_nonzero(labelled) <= FEW * len(labelled)
    return {POINTS: labelled.nonzero().flatten()} if few else {}


def sample(logits: Tensor, size: Sequence[int], points: Tensor) -> Tensor:
    """Return the upsampled logits (N, C) at pixels of the full size; differentiable.

    logits: (B, C, h, w). size: (H, W). points: (N,), indices into a flattened (B, H, W). The result equals
    F.interpolate's bilinear mode with align_corners at these pixels.
    """
    _, num_classes, low_height, low_width = logits.shape
    height, width = size
    image, y, x = points // (height * width), points // width % height, points % width
    places, weights = [], []
    for axis, at in ((Axis(low_height, height), y), (Axis(low_width, width), x)):
        lower, fraction = axis.lower(at), axis.fraction(at, logits.dtype)
        places.append(torch.stack([lower, (lower + 1).clamp(max=axis.num_in - 1)]))
        weights.append(torch.stack([1 - fraction, fraction]))
    # (2, 1, N) by (2, N) -> (2, 2, N) -> (N, 4): the neighbours of each pixel
    rows = ((image * low_height + places[0]).unsqueeze(1) * low_width + places[1]).view(4, -1).T
    shares = (weights[0].unsqueeze(1) * weights[1]).view(4, -1).T
    table = logits.permute(0, 2, 3, 1).reshape(-1, num_classes)
    return F.embedding_bag(rows.contiguous(), table, mode="sum", per_sample_weights=shares.contiguous())
