"""Gated CRF loss: neighbours of one colour should be of one class. It needs no labels."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

RADIUS = 5  # of the window, in positions
SIGMA_PLACE = 6.0  # in positions
SIGMA_COLOUR = 0.1  # of colours from 0 to 1


def gated_crf_sum(probs: Tensor, colours: Tensor, gate: Tensor, radius: int = RADIUS) -> Tensor:
    """Return the gated CRF loss (arXiv:1906.04651) of these images, not divided by its count: a differentiable scalar.

    The sum over positions i, and over the other positions j in the window of 2 radius + 1 rows and columns around i:

        gate_i gate_j K_ij (1 - sum_c p_ic p_jc)
        K_ij = exp(-|place_i - place_j|^2 / (2 SIGMA_PLACE^2) - |colour_i - colour_j|^2 / (2 SIGMA_COLOUR^2))

    probs: p, (B, C, h, w). colours: (B, channels, h, w), usually from 0 to 1. gate: (B, h, w), 0 to 1. Only the
    probabilities get a gradient. No tensor is larger than that of the probabilities with one more class.
    """
    return _PairSum.apply(probs, colours, gate, radius)


class _PairSum(torch.autograd.Function):
    """sum_i gate_i degree_i - sum_ic p_ic message_ic, whose gradient by p_ic is -2 message_ic: K is symmetric."""

    @staticmethod
    def forward(ctx, probs: Tensor, colours: Tensor, gate: Tensor, radius: int) -> Tensor:
        messages, degree = _messages(probs, colours, gate, radius)
        ctx.save_for_backward(messages)
        return (degree - (probs * messages).sum(1)).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (messages,) = ctx.saved_tensors
        return -2 * upstream * messages, None, None, None


def _messages(probs: Tensor, colours: Tensor, gate: Tensor, radius: int) -> tuple[Tensor, Tensor]:
    """Return what each position gets from its window: sum_j k_ij p_jc (B, C, h, w) and sum_j k_ij (B, h, w).

    k_ij = gate_i gate_j K_ij. Each pair of positions is visited once. `radius` columns with gate 0 follow each row, so
    that a neighbour is at the same distance in the flattened map everywhere, also beyond the end of a row.
    """
    height, width = probs.shape[2:]
    sent = F.pad(torch.cat([probs, torch.ones_like(probs[:, :1])], 1), (0, radius)).flatten(2)
    place = F.pad(colours / SIGMA_COLOUR, (0, radius)).flatten(2)
    open_ = F.pad(gate, (0, radius)).flatten(1).unsqueeze(1)
    received = torch.zeros_like(sent)
    for down in range(min(radius + 1, height)):
        for across in range(-radius if down else 1, radius + 1):
            away = down * (width + radius) + across
            here, there = slice(None, -away), slice(away, None)
            kernel = (place[..., here] - place[..., there]).square_().sum(1, keepdim=True)
            kernel.add_((down**2 + across**2) / SIGMA_PLACE**2).mul_(-0.5).exp_()
            kernel.mul_(open_[..., here]).mul_(open_[..., there])
            received[..., here].addcmul_(kernel, sent[..., there])
            received[..., there].addcmul_(kernel, sent[..., here])
    received = received.unflatten(2, (height, -1))[..., :width]
    return received[:, :-1], received[:, -1]
