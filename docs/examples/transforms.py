"""Augmentations for --transform docs/examples/transforms.py:NAME. They draw from rng only, so runs repeat."""

import cv2
import numpy as np
import torch
from torchvision.transforms import v2


def noise_and_cut_out(image, labels, rng):
    """Add Gaussian noise, then paint a rectangle black and ignore its pixels."""
    noisy = image + rng.normal(0, 8, image.shape)
    image = np.clip(noisy, 0, 255).astype(np.uint8)
    height, width = image.shape[0] // 4, image.shape[1] // 4
    top, left = rng.integers(image.shape[0] - height), rng.integers(image.shape[1] - width)
    image[top : top + height, left : left + width] = 0
    for name, values in labels.items():
        values[top : top + height, left : left + width] = 0 if name.startswith("distance") else 255
    return image, labels


def auto_contrast(image, labels, rng):
    """torchvision's transforms.v2 on the image. They draw from torch, so their draws come from rng, too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        changed = v2.RandomAutocontrast(0.5)(v2.RandomPosterize(6, 0.2)(torch.from_numpy(image).permute(2, 0, 1)))
    return changed.permute(1, 2, 0).contiguous().numpy(), labels


def shadows(image, labels, rng):
    """Darken one side of a random line, as at dusk or under trees."""
    height, width = image.shape[:2]
    corners = np.array([[rng.integers(width), 0], [rng.integers(width), height], [0, height], [0, 0]])
    mask = cv2.fillPoly(np.zeros((height, width), np.uint8), [corners], 1)
    factor = 1 - rng.uniform(0, 0.6) * mask[..., None]
    return (image * factor).astype(np.uint8), labels
