"""Networks for --model_type docs/examples/networks.py:NAME. Each function returns a module from images to logits."""

import torch
import torch.nn.functional as F
from torch import nn


class SmallUNet(nn.Module):
    """A U-Net of two levels. images: (B, 3, H, W), normalised. Returns logits (B, num_classes, H, W)."""

    def __init__(self, num_classes: int, width: int = 16):
        super().__init__()
        self.fine = self._block(3, width)
        self.coarse = self._block(width, 2 * width)
        self.merge = self._block(3 * width, width)
        self.classifier = nn.Conv2d(width, num_classes, 1)

    @staticmethod
    def _block(inside: int, outside: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU())

    def forward(self, images):
        fine = self.fine(images)
        coarse = self.coarse(F.max_pool2d(fine, 2))
        coarse = F.interpolate(coarse, fine.shape[2:], mode="bilinear")
        return self.classifier(self.merge(torch.cat([fine, coarse], 1)))


def segformer(num_classes: int, name: str = "nvidia/mit-b0", pretrained: bool = True) -> nn.Module:
    """SegFormer of transformers (pip install transformers). name: an encoder with ImageNet weights on its hub."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    if pretrained:
        return SegformerForSemanticSegmentation.from_pretrained(name, num_labels=num_classes)
    return SegformerForSemanticSegmentation(SegformerConfig(num_labels=num_classes))
