"""Training transforms: TrainTransform augments at random, CentreCrop only crops, OwnTransform calls the user's code."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import cv2
import numpy as np

from support.errors import UserError
from support.labels import IGNORE, MEAN_COLOUR
from support.user_code import describe, load

Maps = Mapping[str, np.ndarray]  # {name: map} of a sample
# Clockwise on the screen, where y points down: a quarter takes (x, y) to (-y, x).
QUARTER_TURNS = [np.linalg.matrix_power(np.array([[0.0, -1.0], [1.0, 0.0]]), number) for number in range(4)]
ROTATED = 0.5  # probability of a rotation
LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601, as in OpenCV
# {label map: value outside the image}. Padding never has weight in a loss. Outside, images have MEAN_COLOUR.
OUTSIDE = {"label": 255, "pseudo": 255, "distance_s": 0, "distance_c": 0}


@dataclass(frozen=True)
class ColourJitter:
    """Change an image's brightness, contrast, saturation and hue at random, with probability p.

    The first three fields are strengths: each factor is drawn from 1 - strength to 1 + strength. Brightness scales the
    image, contrast its differences from MEAN_COLOUR, and saturation each pixel's differences from its grey. Then all
    hues turn by -hue to hue of a full turn, which keeps the greys.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    p: float = 0.8

    def __call__(self, image: np.ndarray, inside: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the changed image, (H, W, 3) uint8 RGB. Keeps the padding, where `inside`, (H, W) uint8, is 0."""
        changes = rng.random() < self.p
        rng.random()  # unused: keeps each seed's samples as in earlier versions
        strengths = np.array([self.brightness, self.contrast, self.saturation, self.hue])
        middle = np.array([1, 1, 1, 0])
        # Draw even if nothing changes, so that later draws for this sample do not depend on p.
        brightness, contrast, saturation, hue = rng.uniform(middle - strengths, middle + strengths)
        if not changes:
            return image
        # All changes are linear in the colour, so one 3x3 matrix and a shift do them in one pass over the pixels.
        mix = saturation * np.eye(3) + (1 - saturation) * LUMA  # each row: a channel's weights of red, green, blue
        if self.hue:
            mix = _turn(hue) @ mix
        shift = mix @ np.array(MEAN_COLOUR) * (1 - contrast)
        changed = cv2.transform(image, np.column_stack([contrast * brightness * mix, shift]))  # saturates at 0 and 255
        # Restore the padding: the CRF loss recognises it by its exact colour.
        return cv2.copyTo(image, (inside == 0).view(np.uint8), changed)


def _turn(hue: float) -> np.ndarray:
    """Return the (3, 3) matrix that turns RGB colours about the grey axis. hue: 1/3 makes red green, and green blue."""
    first = (1 + 2 * np.cos(2 * np.pi * (hue + np.arange(3) / 3))) / 3
    return np.stack([np.roll(first, row) for row in range(3)])


@dataclass(frozen=True)
class TrainTransform:
    """Random scale, rotation, flips, quarter turns, crop, colour and blur; by default only the crop.

    Flags of train.py say how strong they are (flags/training.py). crop_size: side of the square crop in pixels. scale:
    range of the scale factor. rotation: largest angle in degrees. blur: probability of a 5x5 Gaussian blur.
    flip_horizontal, flip_vertical: flip with probability 1/2. quarter_turns: turn by 0, 90, 180 or 270 degrees. jitter:
    changes the image's colours; None keeps them. long_side: longer side of an image at scale factor 1, in pixels; 0:
    its own.

    If the scale is exactly 1 and there is no rotation, pixels are moved but not resampled.
    """

    crop_size: int
    scale: tuple[float, float] = (1.0, 1.0)
    rotation: float = 0.0
    flip_horizontal: bool = False
    flip_vertical: bool = False
    quarter_turns: bool = False
    blur: float = 0.0
    jitter: ColourJitter | None = None
    long_side: int = 0

    def __call__(self, maps: Maps, rng: np.random.Generator, out: Maps | None = None) -> Maps:
        """Return every map of a sample after one random warp and crop: {name: array}; labels keep their values.

        maps: {"image": (H, W, 3) uint8, names in OUTSIDE: (H, W) uint8}. The random draws depend on rng and on the
        image's size, not on labels. out: contiguous arrays to write to, {name: (crop_size, crop_size[, 3])}.
        """
        height, width = maps["image"].shape[:2]
        matrix = self._matrix(height, width, rng)
        is_blurred = rng.random() < self.blur  # before the colours, whose draws depend on flags
        crop, inside = _warp(maps, matrix, self.crop_size, out)
        if self.jitter:  # after the warp: a crop has fewer pixels than most images
            np.copyto(crop["image"], self.jitter(crop["image"], inside, rng))
        if is_blurred:
            cv2.GaussianBlur(crop["image"], (5, 5), 0, dst=crop["image"])
        return crop

    def _matrix(self, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
        """Return a random affine matrix, (2, 3) float64, from pixel (x, y) of the image to pixel (x, y) of the crop."""
        scale = rng.uniform(*self.scale) * _to_long_side(height, width, self.long_side)
        angle = np.deg2rad(rng.uniform(-self.rotation, self.rotation))
        if rng.random() >= ROTATED:  # after the angle is drawn, so that it changes no other draw
            angle = 0.0
        flip_x = -1.0 if rng.random() < 0.5 and self.flip_horizontal else 1.0
        position = rng.random(), rng.random()
        # Newer flags draw last, and only if set: without them, a seed gives the same samples as before.
        flip_y = -1.0 if self.flip_vertical and rng.random() < 0.5 else 1.0
        turns = rng.integers(4) if self.quarter_turns else 0
        # Rotate and scale about the image's centre, turn, flip, then move that centre to its place in the crop.
        # One matrix does all of it, because each resampling would blur the image once more.
        cos, sin = scale * np.cos(angle), scale * np.sin(angle)
        linear = np.array([[flip_x], [flip_y]]) * (QUARTER_TURNS[turns] @ [[cos, -sin], [sin, cos]])
        sides = [scale * side for side in ((height, width) if turns % 2 else (width, height))]
        # Crop a larger image anywhere inside; centre a smaller one. Along each axis:
        #
        #     |<-------------- side -------------->|      the scaled image
        #     |<- offset ->|<- crop_size ->|               the crop; offset < 0 pads a smaller image on both sides
        #     |<--- side / 2 --->|                         the image's centre: side / 2 - offset in the crop
        margins = [side - self.crop_size for side in sides]
        offsets = [at * max(0.0, margin) + min(0.0, margin) / 2 for at, margin in zip(position, margins, strict=True)]
        if scale == 1 and angle == 0:
            offsets = [round(offset) for offset in offsets]  # whole pixels: not resampled
        # cv2's origin is the centre of the first pixel, half a pixel inside the image.
        image_centre = np.array([(width - 1) / 2, (height - 1) / 2])
        crop_centre = np.array([side / 2 - offset - 0.5 for side, offset in zip(sides, offsets, strict=True)])
        return np.column_stack([linear, crop_centre - linear @ image_centre])


@dataclass(frozen=True)
class CentreCrop:
    """Centre crop for training without augmentation; pads a smaller image. The fields are those of TrainTransform."""

    crop_size: int
    long_side: int = 0

    def __call__(self, maps: Maps, rng: np.random.Generator, out: Maps | None = None) -> Maps:
        """Return the centre crop of every map. The arguments are those of TrainTransform; rng is not used."""
        height, width = maps["image"].shape[:2]
        scale = _to_long_side(height, width, self.long_side)
        shift = [(self.crop_size - 1 - scale * (side - 1)) / 2 for side in (width, height)]  # centre on centre
        if scale == 1:
            shift = [math.floor(pixels) for pixels in shift]  # whole pixels: not resampled
        crop, _ = _warp(maps, np.column_stack([scale * np.eye(2), shift]), self.crop_size, out)
        return crop


def _to_long_side(height: int, width: int, long_side: int) -> float:
    """Return the factor that brings an image to the longer side `long_side` in pixels; 1 for 0."""
    return long_side / max(height, width) if long_side else 1.0


def _warp(maps: Maps, matrix: np.ndarray, size: int, out: Maps | None) -> tuple[Maps, np.ndarray]:
    """Return every map, warped by the (2, 3) matrix to size x size, and a map (size, size) uint8: 0 in the padding.

    The image is warped bilinearly, other maps by nearest pixel. The results are written to the arrays in `out`, if any.
    """
    if out is None:  # a batch gives its own memory, which saves a copy
        out = {name: np.empty((size, size, *values.shape[2:]), values.dtype) for name, values in maps.items()}
    # OpenCV warps four channels 2.6 times as fast as three, to the same values.
    image = cv2.cvtColor(maps["image"], cv2.COLOR_RGB2RGBA)
    warped = cv2.warpAffine(image, matrix, (size, size), borderValue=MEAN_COLOUR)
    cv2.cvtColor(warped, cv2.COLOR_RGBA2RGB, dst=out["image"])
    if names := [name for name in maps if name != "image"]:
        _warp_labels([maps[name] for name in names], matrix, [out[name] for name in names], names)
    return out, warped[..., 3]


def _warp_labels(maps: list[np.ndarray], matrix: np.ndarray, out: list[np.ndarray], names: list[str]) -> None:
    """Warp one to four label maps by nearest pixel, and write them to `out`.

    Four channels take the time of one, so several maps become one picture of four channels:

        label, pseudo  --merge-->  [label, pseudo, label, label]  --warp-->  [0, 1, -, -]  --mixChannels-->  out[0:2]
    """
    num_unused = 4 - len(maps) if len(maps) > 1 else 0
    channels = cv2.merge(maps + maps[:1] * num_unused)
    outside = [OUTSIDE[name] for name in names] + [0] * num_unused
    size = out[0].shape[::-1]
    # Nearest pixel, because class numbers between two classes would be other classes.
    warped = cv2.warpAffine(channels, matrix, size, flags=cv2.INTER_NEAREST, borderValue=outside)
    cv2.mixChannels([warped], out, [index for number in range(len(out)) for index in (number, number)])  # n to out[n]


@dataclass(frozen=True)
class OwnTransform:
    """A transform of training samples, and then a function of the user's code.

    The function is called as function(image, labels, rng) and returns (image, labels) of the same shapes and types.
    image: (H, W, 3) uint8 RGB, a crop. labels: {name: (H, W) uint8}, the label maps of --dataset; in "label" and
    "pseudo", values are below num_classes, or 255 = ignore. rng: a numpy.random.Generator that --seed, the pass over
    the list and the image's index determine. source: FILE.py:NAME or PACKAGE.MODULE:NAME, imported in each worker.
    """

    first: TrainTransform | CentreCrop
    source: str
    num_classes: int

    @property
    def crop_size(self) -> int:
        return self.first.crop_size

    @property
    def long_side(self) -> int:
        return self.first.long_side

    def __call__(self, maps: Maps, rng: np.random.Generator, out: Maps | None = None) -> Maps:
        """Return every map of a sample after both. The arguments are those of TrainTransform.

        Raises UserError if the function fails or returns something else.
        """
        warped = dict(self.first(maps, rng, out))
        labels = {name: values for name, values in warped.items() if name != "image"}
        try:
            result = load_transform(self.source)(warped["image"], labels, rng)
        except UserError:
            raise
        except Exception as error:  # of any class: it is the user's code
            raise UserError(f"--transform {self.source}: {describe(error)}") from error
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            raise UserError(f"--transform {self.source}: returned a {type(result).__name__}: return (image, labels)")
        changed = {"image": result[0], **result[1]}
        for name, values in warped.items():
            got = changed.get(name)
            if not isinstance(got, np.ndarray) or (got.shape, got.dtype) != (values.shape, values.dtype):
                kind = f"{got.dtype} of shape {got.shape}" if isinstance(got, np.ndarray) else type(got).__name__
                expected = f"{values.dtype} of shape {values.shape}"
                raise UserError(f"--transform {self.source}: its {name} is {kind}: it must be {expected}")
            if name in ("label", "pseudo") and cv2.countNonZero(cv2.inRange(got, self.num_classes, IGNORE - 1)):
                wrong = got[(got >= self.num_classes) & (got != IGNORE)].flat[0]
                problem = f"its {name} has the value {wrong}: classes are 0..{self.num_classes - 1}"
                raise UserError(f"--transform {self.source}: {problem}")
            if got is not values:
                np.copyto(values, got)  # `out` is the batch's own memory
        return warped


@functools.cache
def load_transform(source: str) -> Callable:
    """Return the function that a --transform names. Raises UserError if it cannot be imported."""
    return load("--transform", source).value
