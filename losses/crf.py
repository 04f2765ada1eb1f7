"""The CRF loss: neighbours of one colour should be of one class. It needs no labels."""

import torch
import torch.nn.functional as F
from torch import Tensor

RADIUS = 3  # of the window, in positions
SIGMA_PLACE = 2.0  # in positions
SIGMA_COLOUR = 25.5  # of RGB from 0 to 255


def crf_sum(logits: Tensor, images: Tensor) -> Tensor:
    """Return the sum of the images' CRF losses (arXiv:1906.04651, without gates), a differentiable scalar.

    The loss of an image is the mean over positions i of the sum over the other positions j in the window around i:

        k_ij (1 - sum_c p_ic p_jc)
        k_ij = exp(-|place_i - place_j|^2 / (2 SIGMA_PLACE^2) - |colour_i - colour_j|^2 / (2 SIGMA_COLOUR^2))

    logits: (B, C, h, w), float32 or float64; p is their softmax. images: (B, H, W, 3) uint8 RGB; a position has the
    mean colour of its pixels. No tensor is larger than the logits or the images.
    """
    probs = logits.softmax(1)
    colours = F.interpolate(images.movedim(-1, 1).to(logits.dtype), logits.shape[2:], mode="area")
    with torch.no_grad():
        messages, constant = torch.zeros_like(probs), probs.new_zeros(())  # of i: sum_j k_ij p_j
        for down in range(RADIUS + 1):
            for across in range(-RADIUS if down else 1, RADIUS + 1):  # visits each pair once
                here, there = _pairs(logits.shape, down, across)
                away = (colours[here] - colours[there]).square().sum(1, keepdim=True) / SIGMA_COLOUR**2
                kernel = torch.exp(-(away + (down**2 + across**2) / SIGMA_PLACE**2) / 2)
                messages[here] += kernel * probs[there]
                messages[there] += kernel * probs[here]
                constant += 2 * kernel.sum()
        constant += (probs * messages).sum()
    # k is symmetric, so the gradient by p_i is -2 messages_i.
    return (constant - 2 * (probs * messages).sum()) / logits[0, 0].numel()


def _pairs(shape: torch.Size, down: int, across: int) -> tuple[tuple, tuple]:
    """Return indices of two parts of maps (B, C, h, w): the positions that have a neighbour `down` rows and `across`
    columns away, and these neighbours.
    """
    height, width = max(shape[2] - down, 0), max(shape[3] - abs(across), 0)
    left, right = max(-across, 0), max(across, 0)
    here = (..., slice(height), slice(left, left + width))
    return here, (..., slice(down, down + height), slice(right, right + width))
