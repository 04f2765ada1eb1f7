"""The localization rectification module of CDSP ("Scribble Hides Class", AAAI 2024)."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labels import IGNORE


class LoRM(nn.Module):
    """Pulls the features at foreground positions towards the features at similar positions.

    For features x (B, C, H, W): q and k are 1x1 convolutions of x, A = softmax over keys of
    cosine(q_i, k_j), y = gamma * A x, gamma learned. The loss is the sum of (x - y)^2 divided by its number of terms.

    scope: "foreground" sums over the foreground's positions; a batch without foreground has loss 0. "all" is the
    release's loss: it sums over all positions, with y = 0 outside the foreground, which pulls background features to
    0. It counts the non-zero terms, so the count depends on the features.
    """

    def __init__(self, channels: int, scope: str = "foreground"):
        super().__init__()
        assert scope in ("foreground", "all"), scope
        self.scope = scope
        self.query_conv = nn.Conv2d(channels, channels, 1)
        self.key_conv = nn.Conv2d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, foreground: Tensor) -> dict[str, Tensor]:
        """Return {"lorm": sum of (x - y)^2, a scalar, float32 or float64}, not divided by the number of terms.

        Scope "all" adds {"lorm_terms": the number of terms, int64}. x: (B, C, H, W). foreground: (B, H, W) bool.
        """
        # In fp16 the product of large features overflows, so normalise before the product.
        query = F.normalize(_positions(self.query_conv(x)), dim=-1)
        key = F.normalize(_positions(self.key_conv(x)), dim=-1)
        value = _positions(x)
        device = x.device.type
        # The meta device has no autocast.
        with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
            rectified = self.gamma * F.scaled_dot_product_attention(query, key, value, scale=1.0)
            inside = foreground.flatten(1).unsqueeze(-1)  # (B, H, W) -> (B, H*W, 1)
            if self.scope == "foreground":
                return {"lorm": ((value - rectified).square() * inside).sum()}
            squared = (value - rectified * inside).square()
            return {"lorm": squared.sum(), "lorm_terms": torch.count_nonzero(squared)}

    def num_terms(self, foreground: Tensor) -> Tensor:
        """Return the number of loss terms for a foreground (B, H, W) bool, an int64 scalar: C per foreground position.

        For scope "all" the result is 0, because forward() counts the terms.
        """
        if self.scope == "all":
            return foreground.new_zeros((), dtype=torch.int64)
        return foreground.sum() * self.query_conv.in_channels


def _positions(x: Tensor) -> Tensor:
    """Reshape (B, C, H, W) to (B, H*W, C), in float32, or float64 if x is."""
    x = x.flatten(2).transpose(1, 2)
    return x if x.dtype == torch.float64 else x.float()


def foreground_mask(pseudo_label: Tensor, size: tuple[int, int], background: int | None = 0) -> Tensor:
    """Return where the foreground, resized bilinearly to `size`, is above 0: (B, *size) bool.

    pseudo_label: (B, H, W), classes and 255 = unsure. Every class but `background` is foreground; None: every class.
    """
    labelled = pseudo_label != IGNORE
    foreground = labelled if background is None else labelled & (pseudo_label != background)
    return F.interpolate(foreground.unsqueeze(1).float(), size=size, mode="bilinear", align_corners=True).squeeze(1) > 0
