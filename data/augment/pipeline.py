"""A pipeline of the package Albumentations as the last step of the augmentation."""

import functools
import json
import os
import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from support import shell
from support.errors import UserError, in_one_line
from support.labels import IGNORE

# What transforms fill masks with, and how they resample them: class numbers cannot be blended.
MASK_SETTINGS = {"fill_mask": IGNORE, "mask_interpolation": 0}


@dataclass(frozen=True)
class Pipeline:
    """An Albumentations pipeline that changes the maps of a sample, drawn from the sample's own random generator.

    text: the pipeline as JSON, as albumentations.save writes it. Its transforms resample label maps by the nearest
    pixel, and fill them as padding, whatever the file says.
    """

    text: str

    def __call__(self, maps: dict[str, np.ndarray], outside: dict[str, int], rng: np.random.Generator) -> None:
        """Apply the pipeline to the maps of a crop, in place: {"image": (H, W, C), other maps: (H, W) uint8}.

        outside: {map: value of its padding}. Raises UserError if the package or a transform fails, or if the result
        has another shape or type.
        """
        names = [name for name in maps if name != "image"]
        # Transforms fill this mask with IGNORE where they fill the others: there each map gets its own padding value.
        unfilled = np.zeros(maps["image"].shape[:2], np.uint8)
        compose = _compose(self.text)
        try:
            compose.set_random_state(rng, random.Random(int(rng.integers(2**63))))
            result = compose(image=maps["image"], masks=[*(maps[name] for name in names), unfilled])
        except Exception as error:  # its transforms raise errors of any class
            raise UserError(f"--augment_file: {type(error).__name__}: {in_one_line(error)}") from None
        *masks, filled = result["masks"]
        for name, values in {"image": result["image"], **dict(zip(names, masks, strict=True))}.items():
            if (values.shape, values.dtype) != (maps[name].shape, maps[name].dtype):
                raise UserError(
                    f"--augment_file: the pipeline turns {_kind(maps[name])} into {_kind(values)} ({name}): remove "
                    "transforms that crop, resize, normalize or convert; --crop_size sets the size"
                )
            maps[name][...] = values
            if name != "image" and outside[name] != IGNORE:
                maps[name][filled == IGNORE] = outside[name]


def _kind(values: np.ndarray) -> str:
    return f"{'x'.join(map(str, values.shape))} {values.dtype}"


@functools.cache
def _compose(text: str) -> Any:
    """Return the albumentations.Compose of a pipeline's JSON text. Raises UserError if it cannot be made."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # otherwise the import asks a server for its newest version
    try:
        import albumentations
    except ImportError as error:
        raise UserError(f"--augment_file: {error}: {shell.install_command('augment')}") from None
    content = json.loads(text)
    try:
        transform = albumentations.from_dict(content | {"transform": _with_mask_settings(content["transform"])})
        return albumentations.Compose([transform])
    except Exception as error:
        raise UserError(
            f"--augment_file: albumentations {albumentations.__version__} cannot build the pipeline, saved by "
            f"{content.get('__version__', 'another version')}: {type(error).__name__}: {in_one_line(error)}"
        ) from None


def _with_mask_settings(value: Any) -> Any:
    """Return a saved transform with MASK_SETTINGS in it and in its parts. A setting of None stays: masks are kept."""
    if isinstance(value, list):
        return [_with_mask_settings(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: MASK_SETTINGS[key] if key in MASK_SETTINGS and item is not None else _with_mask_settings(item)
        for key, item in value.items()
    }
