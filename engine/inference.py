"""From a model's logits to label maps."""

import torch.nn.functional as F
from torch import Tensor, nn


def predict(model: nn.Module, images: Tensor) -> Tensor:
    """Label maps (B, H, W) int64 at the images' own size; images (B, H, W, 3) uint8 RGB on the model's device."""
    logits = model(images)["logits"].float()
    return F.interpolate(logits, size=images.shape[1:3], mode="bilinear", align_corners=True).argmax(1)
