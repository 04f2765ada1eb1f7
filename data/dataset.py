"""Samples of a split: each image with its label maps, augmented for training."""

from collections.abc import Callable, Mapping

import numpy as np
from torch.utils.data import Dataset

from data.images import read_distance, read_image, read_label
from data.layout import Split, pair_files
from errors import UserError


class SegmentationDataset(Dataset):
    """Images and label maps of one split, as a map-style PyTorch data set.

    split: split.folders is {"image": folder, and any of "label", "pseudo", "distance_s", "distance_c": folder}.
    transform: augmentation of a training sample, called as transform(maps, rng); None for evaluation.
    compute: {"distance_s" or "distance_c": (source map, function)}. Each such map is computed from the source map of a
    training sample, not read from a file. It is computed at the image's own size, before the transform.

    dataset[epoch, index] returns a training sample. Its augmentation depends on (seed, epoch, index) only.
    dataset[index] returns a sample at the image's own size without augmentation, with "index" as a 0-d array.
    A sample is a dict of uint8 arrays: "image" (H, W, 3) RGB, every other map (H, W). Creating the data set raises
    UserError for a missing file, and reading a sample raises UserError for an invalid one.
    """

    def __init__(
        self,
        split: Split,
        num_classes: int,
        *,
        transform: Callable | None = None,
        compute: Mapping[str, tuple[str, Callable]] | None = None,
        seed: int = 0,
    ):
        self.num_classes, self.transform, self.compute, self.seed = num_classes, transform, compute or {}, seed
        self.folders = split.folders
        self.names, self.files = pair_files(split)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def listing(self) -> list[str]:
        """Return one line per sample: "kind=path" of each file, relative to the kind's folder, separated by spaces.

        Two machines or two runs have the same data set files if the listings are equal.
        """
        return [
            " ".join(f"{kind}={path.relative_to(self.folders[kind]).as_posix()}" for kind, path in files.items())
            for files in self.files
        ]

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, np.ndarray]:
        if isinstance(key, int):
            return self._read(key) | {"index": np.array(key)}
        epoch, index = key
        assert self.transform is not None
        maps = self._read(index)
        for name, (source, distance) in self.compute.items():
            maps[name] = distance(maps[source])
        return self.transform(maps, np.random.default_rng((self.seed, epoch, index)))

    def _read(self, index: int) -> dict[str, np.ndarray]:
        files = self.files[index]
        maps = {"image": read_image(files["image"])}
        height, width = maps["image"].shape[:2]
        for name, path in files.items():
            if name == "image":
                continue
            maps[name] = read_distance(path) if name.startswith("distance") else read_label(path, self.num_classes)
            if maps[name].shape != (height, width):
                shape = "x".join(map(str, maps[name].shape[::-1]))
                raise UserError(f"{path}: {shape} pixels, but its image {files['image']} has {width}x{height}")
        return maps
