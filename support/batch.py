"""Batches: what a loader makes, and what training and evaluation read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor


class Foreground(NamedTuple):
    """The foreground of a batch of feature maps of H x W positions: LoRM's queries.

    positions: (N,) int64 in 0..H*W-1, those of the first image, then of the second, and so on, each in ascending
    order. counts: the number of positions of each image, as numbers: reading a tensor on a GPU would make the CPU wait.
    """

    positions: Tensor
    counts: Sequence[int]


@dataclass(frozen=True)
class Batch:
    """A training batch of B images.

    image: (B, H, W, 3) uint8 RGB. label, pseudo: (B, H, W) uint8 classes, 255 = ignore. distance_s, distance_c:
    (B, H, W) uint8. A map that --dataset does not have is None.
    counts: {name of a map: its counts}, by data.histogram.count_batch().
    points: the labelled pixels of `label`, if they are few, by losses.upsampling.find_points().
    own_counts: {source: count} of the losses of the user's own, by losses.own.count_losses().
    foreground: the foreground of `pseudo`, if the model needs it, by models.lorm.find_foreground().
    """

    image: Tensor
    label: Tensor | None = None
    pseudo: Tensor | None = None
    distance_s: Tensor | None = None
    distance_c: Tensor | None = None
    counts: Mapping[str, Tensor] = field(default_factory=dict)
    points: Tensor | None = None
    own_counts: Mapping[str, float] = field(default_factory=dict)
    foreground: Foreground | None = None

    @property
    def maps(self) -> dict[str, Tensor]:
        """Return {name: map} of the label and distance maps that the batch has."""
        names = ("label", "pseudo", "distance_s", "distance_c")
        return {name: values for name in names if (values := getattr(self, name)) is not None}

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device, without waiting for the copy. `counts` stay in CPU memory.

        The losses read counts as numbers. If these were on a GPU, the CPU would wait for it in each step.
        """
        return self._copy(lambda values: values.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """Return the batch in page-locked memory. A DataLoader calls this if its pin_memory is on."""
        return self._copy(Tensor.pin_memory)

    def _copy(self, copy: Callable[[Tensor], Tensor]) -> "Batch":
        copies: dict = {name: copy(values) for name, values in vars(self).items() if isinstance(values, Tensor)}
        if self.foreground is not None:
            copies["foreground"] = self.foreground._replace(positions=copy(self.foreground.positions))
        return replace(self, **copies)


class EvalBatch(NamedTuple):
    """A batch of evaluation: images of one size and their dense masks.

    image: (B, H, W, 3) uint8 RGB. label: (B, H, W) uint8 classes, 255 = ignore. indices: of the images in the data set.
    """

    image: Tensor
    label: Tensor
    indices: list[int]
