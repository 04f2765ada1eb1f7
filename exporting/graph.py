"""The graph to export: from images to label maps of their size."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.segmenter import Segmenter


class WholeImage(nn.Module):
    """A copy of a model on the CPU, without LoRM, that predicts label maps of the images' size.

    It computes what the model computes, for any image size; only the max pool is written so that torch.export can trace
    it. extras: "probs" and "logits", if they should be returned too.
    """

    def __init__(self, model: Segmenter, extras: tuple[str, ...] = ()):
        super().__init__()
        self.model = copy.deepcopy(model).cpu().float().to(memory_format=torch.contiguous_format).eval()
        self.model.lorm = None
        self.model.backbone.maxpool = _CeilMaxPool()
        self.extras = extras

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return labels (B, H, W) uint8 and the extras (B, C, H, W) float32 of images (B, H, W, 3) uint8 RGB."""
        logits = whole_image_logits(self.model, images)
        labels = logits.argmax(1).to(torch.uint8)
        return (labels, *(logits.softmax(1) if extra == "probs" else logits for extra in self.extras))


def whole_image_logits(model: nn.Module, images: Tensor) -> Tensor:
    """Compute logits (B, C, H, W), upsampled to the size of the images (B, H, W, 3)."""
    return F.interpolate(model(images)["logits"], size=images.shape[1:3], mode="bilinear", align_corners=True)


class _CeilMaxPool(nn.MaxPool2d):
    """nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True) for values >= 0.

    With ceil_mode, torch.export wants to know which sizes are even (torch 2.11) or cannot prove that no window is
    entirely outside (2.15). Zero padding to an even size changes no maximum and treats all sizes alike.
    """

    def __init__(self) -> None:
        super().__init__(kernel_size=3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        below, right = (2 * (size // 2 + 1) - size for size in x.shape[2:])
        return super().forward(F.pad(x, (0, right, 0, below)))
