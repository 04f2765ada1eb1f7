"""Resize images and label maps to --long_side."""

from collections.abc import Mapping, Sequence

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from support.errors import UserError

LARGE_IMAGE_CROPS = 25  # an image with more pixels than this many crops is large: a crop shows less than 4 % of it
MAX_PIXELS, MAX_GROWTH = 2**26, 64  # a resized image may have so many pixels, or so many times its own
CROPS_PER_SIDE = 3  # for the longer side that is suggested: a crop then shows about a seventh of a photo


def scaled_size(size: tuple[int, int], long_side: float) -> tuple[int, int]:
    """Return (height, width) `size` scaled to a longer side of `long_side` pixels; each side is at least 1."""
    height, width = (max(1, round(long_side * side / max(size))) for side in size)
    return height, width


def check_pixels(pixels: int, size: tuple[int, int], flags: str) -> None:
    """Raise UserError if an image of (height, width) `size` would get so many pixels that memory may run out.

    flags: the flags that ask for them, for the message.
    """
    if pixels > (most := max(MAX_PIXELS, MAX_GROWTH * size[0] * size[1])):
        raise UserError(
            f"{flags}: an image of {size[1]}x{size[0]} pixels would become {pixels / 1e6:.0f} million pixels (limit "
            f"{most / 1e6:.0f} million): choose a smaller size"
        )


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize images (B, H, W, C) to `size`, bilinearly. Shrinking averages pixels, which avoids aliasing.

    Returns (B, *size, C): uint8 for uint8 images on a CPU, which takes a tenth of the time, else float32.
    """
    values = images.permute(0, 3, 1, 2)  # (B, H, W, C) -> (B, C, H, W)
    values = values if images.is_cpu and images.dtype == torch.uint8 else values.float()
    resized = F.interpolate(values, size=size, mode="bilinear", antialias=True, align_corners=False)
    return resized.permute(0, 2, 3, 1)


def shrink(maps: Mapping[str, np.ndarray], long_side: int) -> dict[str, np.ndarray]:
    """Shrink the maps of a sample to a longer side of at most `long_side` pixels; 0: return them unchanged.

    maps: {"image": (H, W, 3), label maps: (H, W), which may be larger than the image}, uint8. The image is averaged, as
    in resize(); a label map keeps the value at each pixel's centre. The augmentation's warp enlarges smaller images.
    """
    height, width = maps["image"].shape[:2]
    longer = max(height, width)
    size = scaled_size((height, width), min(long_side or longer, longer))
    return {name: values if values.shape[:2] == size else _shrunk(values, size) for name, values in maps.items()}


def _shrunk(values: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return an image (H, W, 3) or a label map (H, W), uint8, resized to (height, width) `size`."""
    if values.ndim == 2:
        return cv2.resize(values, size[::-1], interpolation=cv2.INTER_NEAREST_EXACT)
    return np.ascontiguousarray(resize(torch.from_numpy(values)[None], size)[0].numpy())


def suggest_long_side(sizes: Sequence[tuple[int, int]], crop_size: int) -> tuple[int, str]:
    """Return (the --long_side to suggest, a line that says why) if images are much larger than a crop, else (0, "").

    sizes: (height, width) of each image. Images are large if more than half of them have more pixels than
    LARGE_IMAGE_CROPS crops: Cityscapes' 2048x1024 for crops below 290 pixels, and 12 megapixels for crops below 690.
    """
    by_area = sorted(sizes, key=lambda size: size[0] * size[1])
    if not by_area:
        return 0, ""
    height, width = by_area[(len(by_area) - 1) // 2]
    if height * width <= LARGE_IMAGE_CROPS * crop_size**2:
        return 0, ""
    long_side = max(100, round(CROPS_PER_SIDE * crop_size, -2))
    share = 100 * crop_size**2 / (height * width)
    return long_side, (
        f"images are large: a crop of --crop_size {crop_size} shows {share:.2g} % of {width}x{height} pixels. "
        f"--long_side {long_side} shrinks them in training, validation and prediction; to keep small details, use "
        f"--window {crop_size} instead, which predicts them by windows"
    )
