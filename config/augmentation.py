"""The flags of train.py that set the augmentation."""

from dataclasses import dataclass

from config.flags import flag


@dataclass
class AugmentationFlags:
    """Augmentation."""

    augment: bool = flag(True, "change training samples at random; --no_augment: centre crop")
    scale: tuple[float, ...] = flag((0.5, 2.0), "least and largest scale factor; 1 1: keep the size", gt=0)
    rotation: float = flag(10.0, "largest angle in degrees, both ways; half of the samples are rotated", ge=0, le=180)
    flip_horizontal: bool = flag(True, "flip half of the samples left to right")
    flip_vertical: bool = flag(False, "flip half of the samples upside down (images without an up, as from the air)")
    quarter_turns: bool = flag(False, "turn by 0, 90, 180 or 270 degrees (images without an up)")
    blur: float = flag(0.5, "share of the samples with a 5x5 Gaussian blur", ge=0, le=1)
    brightness: float = flag(0.0, "multiply values by a random factor from 1 - N to 1 + N; try N = 0.4", ge=0, le=1)
    contrast: float = flag(0.0, "multiply differences from the mean colour by such a factor", ge=0, le=1)
    saturation: float = flag(0.0, "multiply differences from grey by such a factor (RGB images)", ge=0, le=1)
    hue: float = flag(0.0, "turn hues by at most N of a full turn, both ways, such as 0.05 (RGB images)", ge=0, le=0.5)
