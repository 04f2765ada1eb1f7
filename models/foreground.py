"""Find the foreground of a pseudo-label, at the positions of the feature maps: LoRM's queries."""

import torch.nn.functional as F
from torch import Tensor

from support.batch import Foreground
from support.labels import is_foreground


def foreground_mask(pseudo_label: Tensor, size: tuple[int, int], background: int | None = 0) -> Tensor:
    """Return where the foreground, resized bilinearly to `size`, is above 0: (B, *size) bool.

    pseudo_label: (B, H, W), classes, 255 = unlabelled. Every class but `background` is foreground; None: every class.
    """
    foreground = is_foreground(pseudo_label, background)
    return F.interpolate(foreground.unsqueeze(1).float(), size=size, mode="bilinear", align_corners=True).squeeze(1) > 0


def find_foreground(pseudo_label: Tensor, *, size: tuple[int, int], background: int | None = 0) -> Foreground:
    """Return the Foreground of a pseudo-label (B, H, W) uint8 in CPU memory, at feature maps of this size.

    The loader's workers call this: the number of positions depends on the values, for which a GPU makes the CPU wait.
    """
    mask = foreground_mask(pseudo_label, size, background).flatten(1)  # (B, H, W) -> (B, H*W)
    return Foreground(mask.nonzero()[:, 1].contiguous(), mask.sum(1).tolist())
