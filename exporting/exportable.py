"""A model as one graph from images to label maps, such as torch.export and ONNX take."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.segmenter import Segmenter


class WholeImage(nn.Module):
    """A copy of a model, on the CPU, that gives label maps of the images' own size; LoRM is not part of it.

    It computes what the model does, on any size of images; only its max pool is written so that torch.export can
    follow its size. extras: of "probs" and "logits", what to give besides labels.
    """

    def __init__(self, model: Segmenter, extras: tuple[str, ...] = ()):
        super().__init__()
        self.model = copy.deepcopy(model).cpu().float().to(memory_format=torch.contiguous_format).eval()
        self.model.lorm = None
        self.model.backbone.maxpool = _CeilMaxPool()
        self.extras = extras

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Labels (B, H, W) uint8, then the extras (B, C, H, W) float32; images (B, H, W, 3) uint8 RGB."""
        logits = whole_image_logits(self.model, images)
        labels = logits.argmax(1).to(torch.uint8)
        return (labels, *(logits.softmax(1) if extra == "probs" else logits for extra in self.extras))


def whole_image_logits(model: nn.Module, images: Tensor) -> Tensor:
    """Logits (B, C, H, W), upsampled to the size of the images (B, H, W, 3)."""
    return F.interpolate(model(images)["logits"], size=images.shape[1:3], mode="bilinear", align_corners=True)


class _CeilMaxPool(nn.MaxPool2d):
    """nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True) of values that are not below 0.

    With ceil mode torch.export wants to know which sizes are even (torch 2.11), or cannot tell that no window lies wholly
    outside (2.15). Padded by zeros to an even size, which change no maximum, all sizes are alike.
    """

    def __init__(self) -> None:
        super().__init__(kernel_size=3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        below, right = (2 * (size // 2 + 1) - size for size in x.shape[2:])
        return super().forward(F.pad(x, (0, right, 0, below)))
