"""Extra maps of a training sample for the sparse losses: the padding, the classes present, a recoloured image."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from data.augment.jitter import ColourJitter
from data.augment.transforms import CentreCrop, TrainTransform
from data.histogram import label_histogram


@dataclass(frozen=True)
class SparseTransform:
    """A training transform whose samples also have "inside", and "present" and "strong" if wanted.

    - "inside": (H, W) uint8, 1 in the image and 0 in its padding
    - "present": (num_classes,) uint8, 1 for a class in the sample's "label", anywhere in the image and not in the crop
      alone. With num_classes 0 it is left out.
    - "strong": the augmented image, changed by `jitter`, which draws from rng after `transform`; None leaves it out
    """

    transform: TrainTransform | CentreCrop
    num_classes: int = 0
    jitter: ColourJitter | None = None

    @property
    def crop_size(self) -> int:
        return self.transform.crop_size

    @property
    def long_side(self) -> int:
        return self.transform.long_side

    def inputs(self, maps: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return the maps to call the transform with. Here "strong" is the image itself."""
        made = {"inside": np.ones(maps["image"].shape[:2], np.uint8)}
        if self.num_classes:
            made["present"] = (label_histogram(maps["label"], self.num_classes) > 0).astype(np.uint8)
        return {**maps, **made, **({"strong": maps["image"]} if self.jitter else {})}

    def __call__(
        self, maps: Mapping[str, np.ndarray], rng: np.random.Generator, out: Mapping[str, np.ndarray] | None = None
    ) -> Mapping[str, np.ndarray]:
        """Return a sample's maps after augmentation, as TrainTransform does, with those listed above."""
        warped = {name: values for name, values in maps.items() if name not in ("present", "strong")}
        result = self.transform(warped, rng, out)
        made = {"present": maps["present"]} if self.num_classes else {}
        if self.jitter:
            made["strong"] = self.jitter(result["image"], result["inside"], rng)
        if out is None:
            return {**result, **made}
        for name, values in made.items():
            out[name][...] = values
        return out
