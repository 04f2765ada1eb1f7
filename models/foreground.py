"""The foreground of a pseudo-label, at the positions of the feature maps: LoRM's queries."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from support.labels import FOREGROUND, is_foreground


class Foreground(NamedTuple):
    """The foreground of a batch of feature maps of H x W positions.

    positions: (N,) int64 in 0..H*W-1, those of the first image, then of the second, and so on, each in ascending
    order. counts: the number of positions of each image, as numbers: reading a tensor on a GPU would make the CPU wait.
    """

    positions: Tensor
    counts: Sequence[int]


def foreground_mask(pseudo_label: Tensor, size: tuple[int, int], background: int | None = 0) -> Tensor:
    """Return where the foreground, resized bilinearly to `size`, is above 0: (B, *size) bool.

    pseudo_label: (B, H, W), classes, 255 = unlabelled. Every class but `background` is foreground; None: every class.
    """
    foreground = is_foreground(pseudo_label, background)
    return F.interpolate(foreground.unsqueeze(1).float(), size=size, mode="bilinear", align_corners=True).squeeze(1) > 0


def find_foreground(
    batch: Mapping[str, Tensor], *, size: tuple[int, int], background: int | None = 0
) -> dict[str, Tensor]:
    """Return the foreground of a batch's "pseudo" (B, H, W) uint8, in CPU memory, under the names in labels.FOREGROUND.

    size: (height, width) of the feature maps. The loader's workers call this: the number of positions depends on the
    values, so in a training step the CPU would wait for a GPU.
    """
    mask = foreground_mask(batch["pseudo"], size, background).flatten(1)  # (B, H, W) -> (B, H*W)
    return dict(zip(FOREGROUND, (mask.nonzero()[:, 1].contiguous(), mask.sum(1)), strict=True))


def foreground_of(batch: Mapping[str, Tensor], device: torch.device) -> Foreground:
    """Return the Foreground, on `device`, of a batch in CPU memory with the content of find_foreground()."""
    positions, counts = (batch[name] for name in FOREGROUND)
    return Foreground(positions.to(device, non_blocking=True), counts.tolist())
