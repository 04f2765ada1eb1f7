"""The module to export, from images to label maps, and its trace by torch.export."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from models.backbone import ResNetBackbone
from models.segmenter import Segmenter

MIN_SIZE = 7  # pixels; a smaller side gives a 1x1 feature map, which torch.export specialises on


class WholeImage(nn.Module):
    """Module that predicts label maps at the images' size; a float32 CPU copy of a Segmenter without LoRM.

    The module computes the Segmenter's function for any image size. Its max pool is replaced by one that torch.export
    can trace. extras: any of "probs" and "logits", to be returned too. min_size: the smallest side, in pixels, of
    images for the exported model: 1, or twice the stride without such a pool. Smaller images have 1x1 features, which
    torch.export and ONNX would treat as a special case.
    """

    def __init__(self, model: Segmenter, extras: tuple[str, ...] = ()):
        super().__init__()
        self.model = copy.deepcopy(model).cpu().float().to(memory_format=torch.contiguous_format).eval()
        self.model.lorm = None
        self.min_size, self.extras = 2 * model.backbone.strides[-1], extras
        if isinstance(model.backbone, ResNetBackbone) and model.backbone.maxpool.ceil_mode:
            self.min_size, self.model.backbone.maxpool = 1, _CeilMaxPool()

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return (labels (B, H, W) uint8, each of `extras` (B, C, H, W) float32) of images (B, H, W, 3) uint8 RGB."""
        logits = whole_image_logits(self.model, images)
        labels = logits.argmax(1).to(torch.uint8)
        return (labels, *(logits.softmax(1) if extra == "probs" else logits for extra in self.extras))


def trace(graph: WholeImage) -> ExportedProgram:
    """Return the module traced by torch.export, for any number of images with sides of MIN_SIZE pixels or more.

    For some models, graph.min_size is a larger limit.
    """
    # Sizes above 1 that are not multiples of each other: torch.export takes none for a constant or for another.
    example = torch.zeros(2, 65, 97, 3, dtype=torch.uint8)
    least = max(MIN_SIZE, graph.min_size)
    sizes = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC(min=least), 2: Dim.DYNAMIC(min=least)}
    with torch.no_grad():
        # What torch.export cannot prove about sizes, such as which features are larger, is checked when the file runs.
        return torch.export.export(
            graph, (example,), dynamic_shapes={"images": sizes}, prefer_deferred_runtime_asserts_over_guards=True
        )


def whole_image_logits(model: nn.Module, images: Tensor) -> Tensor:
    """Return logits (B, C, H, W), upsampled to the size of the images (B, H, W, 3)."""
    return F.interpolate(model(images)["logits"], size=images.shape[1:3], mode="bilinear", align_corners=True)


class _CeilMaxPool(nn.MaxPool2d):
    """nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True) for values >= 0, in a form that torch.export can trace.

    With ceil_mode, torch.export wants to know which sizes are even (torch 2.11) or cannot prove that no window is
    entirely outside (2.15). Zero padding to an even size changes no maximum and treats all sizes alike.
    """

    def __init__(self) -> None:
        super().__init__(kernel_size=3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        below, right = (2 * (size // 2 + 1) - size for size in x.shape[2:])
        return super().forward(F.pad(x, (0, right, 0, below)))
