"""Data sets that read a split's images with their label maps, augmented for training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from data.histogram import count_batch
from data.images import read_distance, read_label
from data.images.deep import any_header
from data.images.reader import ImageReader
from data.images.resize import shrink
from data.label_map import LabelMap
from data.layout import Split
from data.transforms import CentreCrop, OwnTransform, TrainTransform
from support.batch import Batch, EvalBatch
from support.errors import UserError


class SegmentationDataset(Dataset):
    """The files of a split, which read() reads and checks. TrainSet and EvalSet make samples and batches of them.

    split: split.folders is {"image": folder, and any of "label", "pseudo", "distance_s", "distance_c": folder}.
    label_map: applied to the values of all label files; None takes them as class numbers. reader: reads the images.

    A sample is a dict: "image" (H, W, 3) uint8 RGB, every other map (H, W) uint8. Creating the data set raises
    UserError for a missing file, and reading a sample raises UserError for an invalid one.
    """

    def __init__(
        self,
        split: Split,
        num_classes: int,
        *,
        label_map: LabelMap | None = None,
        reader: ImageReader = ImageReader(),  # noqa: B008
    ):
        self.num_classes, self.label_map, self.reader = num_classes, label_map, reader
        self.folders, self.has_list = split.folders, split.listed is not None
        self.names, self.files = split.pairs

    def __len__(self) -> int:
        return len(self.files)

    def image_size(self, index: int) -> tuple[int, int]:
        """Return the (height, width) of an image in pixels. Raises UserError if its file cannot be read."""
        return self.reader.header(self.files[index]["image"]).size

    def checked_size(self, index: int) -> tuple[int, int]:
        """Return image_size(). Raises UserError if a label has another size or cannot be read."""
        size, files = self.image_size(index), self.files[index]
        for name, path in files.items():
            found = size if name == "image" else any_header(path).size
            if found != size:
                raise mismatch(path, found, files["image"], size)
        return size

    @property
    def listing(self) -> list[str]:
        """Return one line per sample: "kind=path" of each file, relative to the kind's folder, separated by spaces.

        A last line has the label map's digest, if any. Equal listings mean the same files and numbers.
        """
        lines = [
            " ".join(f"{kind}={path.relative_to(self.folders[kind]).as_posix()}" for kind, path in files.items())
            for files in self.files
        ]
        return lines if self.label_map is None else [*lines, f"label_map={self.label_map.digest}"]

    def read(self, index: int, long_side: int = 0) -> dict[str, np.ndarray]:
        """Return the maps that a sample has files of, at the image's own size. Raises UserError for an invalid file.

        long_side: the image alone may be shrunk to this longer side, as by ImageReader.read(); 0: it is not.
        """
        files = self.files[index]
        maps = {"image": self.reader.read(files["image"], long_side)}
        height, width = self.image_size(index) if long_side else maps["image"].shape[:2]
        for name, path in files.items():
            if name == "image":
                continue
            is_distance = name.startswith("distance")
            maps[name] = read_distance(path) if is_distance else read_label(path, self.num_classes, self.label_map)
            if maps[name].shape != (height, width):
                raise mismatch(path, maps[name].shape, files["image"], (height, width))
        return maps


def mismatch(label: Path, label_size: tuple[int, ...], image: Path, size: tuple[int, ...]) -> UserError:
    """Return the error on a label whose (height, width) is not its image's."""
    found, wanted = (f"{width}x{height}" for height, width in (label_size, size))
    remedy = "resize the label by nearest neighbour, or find the right one"
    return UserError(f"{label}: {found} pixels, but its image {image} has {wanted}: {remedy}")


class TrainSet(SegmentationDataset):
    """Augmented training samples: train_set[pass over the list, index]. They depend on (seed, these two) only.

    transform: the augmentation, called as transform(maps, rng).
    computed_maps: {"distance_s" or "distance_c": (source map, function)}. These maps have no files. Before the
    transform, function(source map, scale=...) computes them; scale: pixels at transform.long_side per pixel of the map.
    derived_fields: {field of a Batch: (source map, function)}. function(the batch's source map) computes the field in
    the loader's workers, so that the training process spends no time on it. reading: label_map and reader, as in
    SegmentationDataset.
    The functions must be picklable if the workers are not forked.
    """

    def __init__(
        self,
        split: Split,
        num_classes: int,
        *,
        transform: TrainTransform | CentreCrop | OwnTransform,
        computed_maps: Mapping[str, tuple[str, Callable]] | None = None,
        derived_fields: Mapping[str, tuple[str, Callable[[Tensor], Any]]] | None = None,
        seed: int = 0,
        **reading: Any,
    ):
        super().__init__(split, num_classes, **reading)
        self.transform, self.seed = transform, seed
        self.computed_maps, self.derived_fields = computed_maps or {}, derived_fields or {}

    def __getitem__(self, key: tuple[int, int]) -> Mapping[str, np.ndarray]:
        return self.transform(self.training_maps(key[1]), np.random.default_rng((self.seed, *key)))

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> Batch:
        """Return the batch of these samples. A DataLoader calls this; its collate_fn must be identity_collate()."""
        size = self.transform.crop_size
        stacked: dict[str, Any] = {}  # map: (B, H, W), or (B, H, W, 3) for the image
        for number, (epoch, index) in enumerate(keys):
            maps = self.training_maps(index)
            if not stacked:
                shapes = {name: (len(keys), size, size, *values.shape[2:]) for name, values in maps.items()}
                stacked = {name: torch.empty(shape, dtype=torch.uint8) for name, shape in shapes.items()}
            # Warp into the batch's own memory, which saves a copy of each sample.
            out = {name: values[number].numpy() for name, values in stacked.items()}
            self.transform(maps, np.random.default_rng((self.seed, epoch, index)), out)
        batch = Batch(**stacked)
        derived = {name: function(stacked[source]) for name, (source, function) in self.derived_fields.items()}
        return replace(batch, counts=count_batch(batch), **derived)

    def training_maps(self, index: int) -> dict[str, np.ndarray]:
        """Return all maps of a sample before its transform, shrunk to transform.long_side if they are larger."""
        long_side = self.transform.long_side
        maps = shrink(self.read(index, long_side), long_side)
        scale = long_side / max(maps["image"].shape[:2]) if long_side else 1.0
        for name, (source, distance) in self.computed_maps.items():
            maps[name] = distance(maps[source], scale=scale)
        return maps


class EvalSet(SegmentationDataset):
    """Samples at their images' own size, without augmentation: eval_set[index] has "image" and "label"."""

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.read(index)

    def __getitems__(self, indices: Sequence[int]) -> EvalBatch:
        """Return the batch of these samples. A DataLoader calls this; its collate_fn must be identity_collate()."""
        samples = [self.read(index) for index in indices]
        image, label = (default_collate([sample[name] for sample in samples]) for name in ("image", "label"))
        return EvalBatch(image, label, list(indices))


def identity_collate(batch: Batch | EvalBatch) -> Batch | EvalBatch:
    """Return the batch: the collate_fn for a data set that makes whole batches."""
    return batch
