"""Samples of a split: each image with its label maps, augmented for training."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from data.images import image_size, read_distance, read_image, read_label
from data.images.resize import shrink
from data.label_map import LabelMap
from data.layout import Split, pair_files
from data.transforms import CentreCrop, TrainTransform
from support.errors import UserError


class SegmentationDataset(Dataset):
    """Images and label maps of one split, as a map-style PyTorch data set.

    split: split.folders is {"image": folder, and any of "label", "pseudo", "distance_s", "distance_c": folder}.
    transform: augmentation of a training sample, called as transform(maps, rng); None for evaluation.
    compute: {"distance_s" or "distance_c": (source map, function)}. Each such map is computed from the source map of a
    training sample, not read from a file. It is computed before the transform, by the function called with the source
    map and `scale`: pixels at transform.long_side per pixel of the map.
    extras: functions from a training batch to more tensors of the batch, which then need no time of the training
    process. With loader workers that are not forked, they must be picklable.
    label_map: applied to the values of all label files; None takes them as class numbers.

    dataset[number of the pass, index] returns a training sample. Its augmentation depends on (seed, these two) only.
    dataset[index] returns a sample at the image's own size without augmentation, with "index" as a 0-d array.
    dataset.__getitems__(keys), which a DataLoader calls, returns a whole batch; its collate_fn must be as_is().
    A sample is a dict: "image" (H, W, 3) uint8 RGB, every other map (H, W) uint8. Creating the data set raises
    UserError for a missing file, and reading a sample raises UserError for an invalid one.
    """

    def __init__(
        self,
        split: Split,
        num_classes: int,
        *,
        transform: TrainTransform | CentreCrop | None = None,
        compute: Mapping[str, tuple[str, Callable]] | None = None,
        extras: Sequence[Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]] = (),
        seed: int = 0,
        label_map: LabelMap | None = None,
    ):
        self.num_classes, self.transform, self.compute, self.seed = num_classes, transform, compute or {}, seed
        self.extras, self.label_map = extras, label_map
        self.folders, self.has_list = split.folders, split.listed is not None
        self.names, self.files = pair_files(split)

    def __len__(self) -> int:
        return len(self.files)

    def image_size(self, index: int) -> tuple[int, int]:
        """Return the (height, width) of an image in pixels. Raises UserError if its file cannot be read."""
        return image_size(self.files[index]["image"])

    @property
    def listing(self) -> list[str]:
        """Return one line per sample: "kind=path" of each file, relative to the kind's folder, separated by spaces.

        With a label map, a last line has its digest. Two machines or two runs have the same data set files and numbers
        if the listings are equal.
        """
        lines = [
            " ".join(f"{kind}={path.relative_to(self.folders[kind]).as_posix()}" for kind, path in files.items())
            for files in self.files
        ]
        return lines if self.label_map is None else [*lines, f"label_map={self.label_map.digest}"]

    def __getitem__(self, key: int | tuple[int, int]) -> Mapping[str, np.ndarray]:
        if isinstance(key, int):
            return self.read(key) | {"index": np.array(key)}
        epoch, index = key
        assert self.transform is not None
        return self.transform(self.training_maps(index), self._rng(epoch, index))

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> dict[str, Tensor]:
        """Return a batch: the samples of `keys`, stacked to tensors, with the extras of a training batch.

        Each training sample is warped into the batch's own memory.
        """
        if self.transform is None:
            return default_collate([self[key] for key in keys])
        size = self.transform.crop_size
        batch: dict[str, Tensor] = {}
        for number, key in enumerate(keys):
            assert not isinstance(key, int)
            epoch, index = key
            maps = self.training_maps(index)
            if not batch:
                shapes = {name: (len(keys), size, size, *values.shape[2:]) for name, values in maps.items()}
                batch = {name: torch.empty(shape, dtype=torch.uint8) for name, shape in shapes.items()}
            out = {name: tensor[number].numpy() for name, tensor in batch.items()}
            self.transform(maps, self._rng(epoch, index), out)
        for extra in self.extras:
            batch |= extra(batch)
        return batch

    def _rng(self, epoch: int, index: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, epoch, index))

    def training_maps(self, index: int) -> dict[str, np.ndarray]:
        """Return all maps of a training sample, shrunk to transform.long_side if they are larger."""
        assert self.transform is not None
        long_side = self.transform.long_side
        maps = shrink(self.read(index, long_side), long_side)
        scale = long_side / max(maps["image"].shape[:2]) if long_side else 1.0
        for name, (source, distance) in self.compute.items():
            maps[name] = distance(maps[source], scale=scale)
        return maps

    def read(self, index: int, long_side: int = 0) -> dict[str, np.ndarray]:
        """Return the maps that a sample has files of, at the image's own size. Raises UserError for an invalid file.

        long_side: the image alone may be shrunk to this longer side, as in read_image(); 0: it is not.
        """
        files = self.files[index]
        maps = {"image": read_image(files["image"], long_side)}
        height, width = image_size(files["image"]) if long_side else maps["image"].shape[:2]
        for name, path in files.items():
            if name == "image":
                continue
            is_distance = name.startswith("distance")
            maps[name] = read_distance(path) if is_distance else read_label(path, self.num_classes, self.label_map)
            if maps[name].shape != (height, width):
                shape = "x".join(map(str, maps[name].shape[::-1]))
                raise UserError(f"{path}: {shape} pixels, but its image {files['image']} has {width}x{height}")
        return maps


def as_is(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the batch: the collate_fn for a data set that makes whole batches."""
    return batch
