"""Label the images of pseudo.py, on all ranks."""

import math
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from data.dataset import SegmentationDataset
from data.images import read_label
from data.loader import Loader
from data.sampler import EvalBatches
from distributed.group import Group
from flags import Config
from flags.programs import PseudoFlags
from inference.predictor import Predictor, window_steps
from inference.pseudo.files import PseudoFolder
from inference.pseudo.labelling import Stroked, StrokedImages, make_label, predict
from support.errors import UserError
from support.labels import IGNORE
from support.processes import ThreadPool
from support.progress import progress_bar
from training.data import make_loader

NUM_THREADS = 4  # of each rank: make and compress labels


@dataclass
class Work:
    """What all ranks of `group` do on a folder's labels. The methods are collective and may raise Stopped.

    dataset: images, with their scribbles as "label". predictor: the model.
    """

    folder: PseudoFolder
    dataset: SegmentationDataset
    group: Group
    cfg: Config
    predictor: Predictor
    flags: PseudoFlags

    def check_strokes(self) -> None:
        """Raise UserError if no image has a stroke."""

        def has_stroke(index: int) -> bool:
            return bool((read_label(self.dataset.files[index]["label"], self.dataset.num_classes) != IGNORE).any())

        if not self._map(has_stroke, "strokes").any():
            raise UserError(f"{self.dataset.folders['label']}: no image has a stroke: draw some, or set --train_path")

    def label(self) -> None:
        """Write the labels that are missing."""
        group, folder, names = self.group, self.folder, self.dataset.names
        # Batches are those of all images, and redone whole: a model's result may depend on the batch's size.
        sizes = [size or (0, 0) for size in group.share_work(self.dataset.image_size, range(len(self.dataset)))]
        options = {"rank": group.rank, "world_size": group.world_size}
        batches = EvalBatches(sizes, batch_size=self.predictor.images_at_once, **options)
        pending = [batch for batch in batches if not all(folder.label_path(names[index]).is_file() for index in batch)]
        images = StrokedImages(self.dataset)
        loader = make_loader(Loader, images, self.flags, group, batch_sampler=pending, collate_fn=list)
        writes: list[Future] = []

        def write(item: Stroked, probs: Tensor) -> None:
            name = names[item.position]
            if not folder.label_path(name).is_file():
                folder.write_label(name, make_label(item, probs, self.cfg.background_class))

        with ThreadPool(NUM_THREADS) as pool, window_steps(self.predictor, sizes, pending, "images", group) as step:
            for batch in loader if pending else ():
                if group.stop:
                    break
                probs = predict(batch, self.predictor, self.dataset.num_classes, group.device, step).cpu()
                for done in writes:  # of the batch before, made while this one was predicted
                    done.result()
                writes = [pool.submit(write, *pair) for pair in zip(batch, probs, strict=True)]
        for done in writes:
            done.result()
        group.raise_if_stopped()

    def labelled(self) -> float:
        """Return the share of all pixels that are labelled."""

        def count(index: int) -> np.ndarray:
            label = read_label(self.folder.label_path(self.dataset.names[index]), self.dataset.num_classes)
            return np.array([(label != IGNORE).sum(), label.size])

        labelled, pixels = self._map(count, "counting").sum(0)
        return float(labelled / pixels)

    def _map(self, work: Callable[[int], Any], title: str) -> np.ndarray:
        """Return work(index) of each image, as rows, on every rank, with a progress bar. May raise Stopped."""
        bar = partial(self._bar, title, math.ceil(len(self.dataset) / self.group.world_size))
        results = self.group.share_work(
            lambda index: None if self.group.stop else work(index), range(len(self.dataset)), bar
        )
        self.group.raise_if_stopped()
        return np.array(results)

    def _bar(self, title: str, total: int, items: Iterable | None = None):
        return progress_bar(items, total=total, title=title, unit="image", enabled=self.group.is_main)
