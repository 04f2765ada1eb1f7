"""Bilinear upsampling. Bands of rows are matrix products; single pixels are computed from their four neighbours."""

from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from support.labels import IGNORE

Number = TypeVar("Number", int, Tensor)
SPARSE_SHARE = 0.25  # above this share of labelled pixels, a pass over all pixels is as fast


class Axis:
    """Linear interpolation from `num_in` to `num_out` positions, as F.interpolate does it with align_corners: the first
    and last positions of input and output coincide.
    """

    def __init__(self, num_in: int, num_out: int):
        self.num_in, self.num_out = num_in, num_out
        # Output number `at` lies at _step * at / _denominator among the inputs: integers, so that no rounding adds up.
        self._step, self._denominator = num_in - 1, max(num_out - 1, 1)

    def matrix(self, like: Tensor) -> Tensor:
        """Return the weights (num_out, num_in), exact up to one rounding: output = matrix @ input. Rows sum to 1."""
        at = torch.arange(self.num_out, device=like.device).unsqueeze(1)
        away = (at * self._step - self._denominator * torch.arange(self.num_in, device=like.device)).abs()
        return (self._denominator - away).clamp(min=0).to(like.dtype) / self._denominator

    def inputs(self, first: int, stop: int) -> slice:
        """Return the range of inputs that outputs first..stop-1 depend on."""
        return slice(self.lower(first), min(self.lower(stop - 1) + 2, self.num_in))

    def lower(self, at: Number) -> Number:
        """Return the input at or before an output, an int or a tensor of them."""
        return at * self._step // self._denominator

    def fraction(self, at: Tensor, dtype: torch.dtype) -> Tensor:
        """Return how far outputs lie between the input lower(at), 0, and the next one, 1."""
        return (at * self._step % self._denominator).to(dtype) / self._denominator

    def max_outputs(self) -> int:
        """Return the largest number of outputs that depend on one input."""
        return min(self.num_out, -(-2 * self._denominator // self._step)) if self._step else self.num_out


def find_points(label: Tensor) -> Tensor | None:
    """Return the labelled pixels of a label (B, H, W) uint8 in CPU memory, or None above SPARSE_SHARE of all pixels.

    The pixels are indices into the flattened label, int64 (N,). The loader's workers call this to save steps the time.
    """
    labelled = (label != IGNORE).flatten()
    is_sparse = torch.count_nonzero(labelled) <= SPARSE_SHARE * len(labelled)
    return labelled.nonzero().flatten() if is_sparse else None


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
