"""The CRF loss: neighbours of similar colour should have the same class. It needs no labels."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from support.labels import MEAN_COLOUR

RAMP = 0.5  # share of the run in which the weight rises from 0
RADIUS = 3  # of the window, in positions
SIGMA_PLACE = 2.0  # in positions
SIGMA_COLOUR = 25.5  # of RGB from 0 to 255


def crf_sum(logits: Tensor, images: Tensor) -> Tensor:
    """Return the sum of the images' CRF losses (arXiv:1906.04651, without gates), a differentiable scalar.

    The loss of an image is a mean over its positions i. Each position sums over the other positions j in its window:

        k_ij (1 - sum_c p_ic p_jc)
        k_ij = s_i s_j exp(-|place_i - place_j|^2 / (2 SIGMA_PLACE^2) - |colour_i - colour_j|^2 / (2 SIGMA_COLOUR^2))

    s is the share of a position's pixels that are inside the image, and colour is their mean. A pixel of MEAN_COLOUR
    counts as padding.
    logits: (B, C, h, w), float32 or float64; p is their softmax. images: (B, H, W, 3) uint8 RGB.
    """
    probs, (red, green, blue) = logits.softmax(1), MEAN_COLOUR
    inside = (images[..., 0] != red) | (images[..., 1] != green) | (images[..., 2] != blue)
    pool = partial(F.interpolate, size=logits.shape[2:], mode="area")
    share = pool(inside.unsqueeze(1).to(logits.dtype))
    colours = pool((images * inside.unsqueeze(-1)).movedim(-1, 1).to(logits.dtype)) / share.clamp(min=1e-9)
    with torch.no_grad():
        messages, rest = torch.zeros_like(probs), probs.new_zeros(())  # message of i: sum_j k_ij p_j
        for down in range(RADIUS + 1):
            for across in range(-RADIUS if down else 1, RADIUS + 1):  # visits each pair once
                here, there = _pairs(logits.shape, down, across)
                contrast = (colours[here] - colours[there]).square().sum(1, keepdim=True) / SIGMA_COLOUR**2
                near = torch.exp(-(contrast + (down**2 + across**2) / SIGMA_PLACE**2) / 2)
                kernel = share[here] * share[there] * near
                messages[here] += kernel * probs[there]
                messages[there] += kernel * probs[here]
                rest += 2 * kernel.sum()
        rest += (probs * messages).sum()
    # Value: sum k - sum p message. Gradient by p: -2 message, as k is symmetric; messages are constants here.
    return (rest - 2 * (probs * messages).sum()) / logits[0, 0].numel()


def _pairs(shape: torch.Size, down: int, across: int) -> tuple[tuple, tuple]:
    """Return indices into (B, C, h, w): positions, and their neighbours `down` rows and `across` columns away."""
    height, width = max(shape[2] - down, 0), max(shape[3] - abs(across), 0)
    left, right = max(-across, 0), max(across, 0)
    here = (..., slice(height), slice(left, left + width))
    return here, (..., slice(down, down + height), slice(right, right + width))
