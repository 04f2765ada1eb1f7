"""Bilinear upsampling as matrix products, so that a band of rows is computed alone, and its transpose is exact too."""

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

Number = TypeVar("Number", int, Tensor)


@dataclass(frozen=True)
class Axis:
    """Linear interpolation from `num_in` to `num_out` positions, as F.interpolate does it with align_corners: the first
    and last positions of input and output coincide.
    """

    num_in: int
    num_out: int

    def matrix(self, like: Tensor) -> Tensor:
        """Return the weights (num_out, num_in): output = matrix @ input. Each row sums to 1 and has at most 2 weights.

        The fractions are exact up to one rounding: their numerators are integers.
        """
        at = torch.arange(self.num_out, device=like.device).unsqueeze(1)
        away = (self._numerator(at) - self._denominator * torch.arange(self.num_in, device=like.device)).abs()
        return (self._denominator - away).clamp(min=0).to(like.dtype) / self._denominator

    def inputs(self, first: int, stop: int) -> slice:
        """Return the range of inputs that outputs first..stop-1 depend on."""
        return slice(self.lower(first), min(self.lower(stop - 1) + 2, self.num_in))

    def lower(self, at: Number) -> Number:
        """Return the input at or before an output, an int or a tensor of them."""
        return self._numerator(at) // self._denominator

    def fraction(self, at: Tensor, dtype: torch.dtype) -> Tensor:
        """Return how far outputs lie between the input lower(at), 0, and the next one, 1."""
        return (self._numerator(at) % self._denominator).to(dtype) / self._denominator

    def max_outputs(self) -> int:
        """Return the largest number of outputs that depend on one input."""
        step = self.num_in - 1  # the growth of the numerator
        return min(self.num_out, -(-2 * self._denominator // step)) if step else self.num_out

    @property
    def _denominator(self) -> int:
        return max(self.num_out - 1, 1)

    def _numerator(self, at: Number) -> Number:
        """Return the place of an output among the inputs, times the denominator."""
        return at * (self.num_in - 1)
