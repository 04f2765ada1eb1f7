"""A loss of the user's own: --loss ce+0.5*FILE.py:NAME."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from losses.terms import Settings, Term
from support.batch import Batch
from support.errors import UserError
from support.user_code import describe, load


class OwnTerm(Term):
    """A term of the user's code, an object with two methods, or a class of such objects without arguments.

    count(labels) returns the batch's part of the divisor, a number, such as that of labelled pixels. sum(logits,
    labels) returns the sum, a differentiable scalar. labels: (B, H, W) uint8, 255 = ignore. logits: (B, C, H, W)
    float32, upsampled to the labels' size. source: FILE.py:NAME or PACKAGE.MODULE:NAME.
    """

    map = "label"

    def __init__(self, source: str):
        super().__init__(Settings())
        self.source, self.loss = source, load_loss(source)

    def count(self, batch: Batch) -> float:
        return batch.own_counts[self.source]

    def sum(self, outputs: dict[str, Tensor], batch: Batch) -> Tensor:
        labels = batch.maps["label"]
        logits = F.interpolate(outputs["logits"], labels.shape[1:], mode="bilinear", align_corners=True)
        value = self.loss.sum(logits, labels)
        if not isinstance(value, Tensor) or value.ndim or not value.requires_grad:
            got = (
                f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            )
            raise UserError(f"--loss {self.source}: sum() returned {got}: it must be a scalar tensor with a gradient")
        return value


@functools.cache
def load_loss(source: str) -> Any:
    """Return the object that a --loss names. Raises UserError if it cannot be made, or lacks count() or sum()."""
    loss = load("--loss", source).value
    if isinstance(loss, type):
        try:
            loss = loss()
        except Exception as error:  # of any class: it is the user's code
            raise UserError(f"--loss {source}: building it failed: {describe(error)}") from error
    if isinstance(loss, torch.nn.Module) and any(True for _ in loss.parameters()):
        raise UserError(f"--loss {source}: has parameters, which no optimizer trains")
    if missing := [name for name in ("count", "sum") if not callable(getattr(loss, name, None))]:
        raise UserError(
            f"--loss {source}: has no method {missing[0]}(): it needs count(labels) and sum(logits, labels)"
        )
    return loss


def count_losses(labels: Tensor, sources: Mapping[str, str]) -> dict[str, float]:
    """Return {source: count of a batch's labels} of the user's losses. The loader's workers call this.

    sources: {name of a term: source}. Raises UserError if a count is no number of at least 0.
    """
    counts: dict[str, float] = {}
    for source in sources.values():
        try:
            count = counts[source] = float(load_loss(source).count(labels))
        except Exception as error:  # of any class: it is the user's code
            raise UserError(f"--loss {source}: count() returned no number: {describe(error)}") from error
        if not 0 <= count < math.inf:
            raise UserError(f"--loss {source}: count() returned {count}: it must be a number of at least 0")
    return counts
