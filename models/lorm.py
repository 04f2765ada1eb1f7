"""The localization rectification module of CDSP ("Scribble Hides Class", AAAI 2024)."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORE = 255


class LoRM(nn.Module):
    """Pulls the features of foreground positions towards those of the positions they resemble.

    For features x (B, C, H, W): q and k are 1x1 convolutions of x, A = softmax over keys of
    cosine(q_i, k_j), y = gamma * A x, gamma learned. The loss compares x with y on the foreground:
    (x - y)^2. The release also sums x^2 over the background, where it sets y to 0; that pulls
    background features to zero, and makes the divisor depend on the prediction. Here those terms do not exist: a batch without foreground has loss 0.
    """

    def __init__(self, channels: int):
        super().__init__()
        self.query_conv = nn.Conv2d(channels, channels, 1)
        self.key_conv = nn.Conv2d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, foreground: Tensor) -> Tensor:
        """The sum of (x - y)^2 over the foreground's positions and channels, a scalar in float32 or wider.

        x (B, C, H, W); foreground (B, H, W) bool. Divide by `foreground.sum() * C`.
        """
        # Normalised before their product: in fp16 the product of large features overflows.
        query = F.normalize(_positions(self.query_conv(x)), dim=-1)
        key = F.normalize(_positions(self.key_conv(x)), dim=-1)
        value = _positions(x)
        device = x.device.type
        # The meta device has no autocast to switch off.
        with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
            rectified = self.gamma * F.scaled_dot_product_attention(query, key, value, scale=1.0)
            squared = (value - rectified).square() * foreground.flatten(1).unsqueeze(-1)
        return squared.sum()


def _positions(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, H*W, C), in float32 at least."""
    x = x.flatten(2).transpose(1, 2)
    return x if x.dtype == torch.float64 else x.float()


def foreground_mask(pseudo_label: Tensor, size: tuple[int, int]) -> Tensor:
    """Where the pseudo-label (B, H, W), 255 taken as 0, is above 0 after bilinear resizing to `size`: bool."""
    label = pseudo_label.masked_fill(pseudo_label == IGNORE, 0).unsqueeze(1).float()
    return F.interpolate(label, size=size, mode="bilinear", align_corners=True).squeeze(1) > 0
