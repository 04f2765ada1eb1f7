"""From a model's logits to label maps, and label maps as pictures."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

PANEL_SIZE = 512  # pixels, the longer side of each picture in a panel


def predict(model: nn.Module, images: Tensor) -> Tensor:
    """Label maps (B, H, W) int64 at the images' own size; images (B, H, W, 3) uint8 RGB on the model's device."""
    logits = model(images)["logits"].float()
    return F.interpolate(logits, size=images.shape[1:3], mode="bilinear", align_corners=True).argmax(1)


def palette() -> np.ndarray:
    """PASCAL VOC's colours, (256, 3) uint8: each class number's bits, spread over the three channels."""
    numbers = np.arange(256)
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= (((numbers >> (3 * bit + channel)) & 1) << (7 - bit)).astype(np.uint8)
    return colours


def panel(image: Tensor, label: Tensor, predicted: Tensor) -> Tensor:
    """Input and label, below them prediction and prediction over input: (2*H, 2*W, 3) uint8.

    image (H, W, 3) uint8 RGB; label and predicted (H, W) class numbers, 255 = ignore. Images larger than
    PANEL_SIZE are thinned out to it.
    """
    step = math.ceil(max(label.shape) / PANEL_SIZE)
    image, label, predicted = (values[::step, ::step] for values in (image, label, predicted))
    colours = torch.from_numpy(palette())
    image, label, predicted = image.cpu(), colours[label.long().cpu()], colours[predicted.long().cpu()]
    overlay = (image.float() * 0.5 + predicted.float() * 0.5).to(torch.uint8)
    return torch.cat([torch.cat([image, label], dim=1), torch.cat([predicted, overlay], dim=1)])
