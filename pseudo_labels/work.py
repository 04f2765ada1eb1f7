"""The work on the images of pseudo.py: a draft of each, the thresholds over all, the labels."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader

from builders.loaders import make_loader
from config import Config
from config.programs import PseudoFlags
from data.dataset import SegmentationDataset
from data.images import read_label
from data.loader import batched
from data.sampler import EvalBatches
from distributed.group import Group
from evaluation.predictor import Predictor
from pseudo_labels import confidence
from pseudo_labels.drafts import Prediction, Stroked, StrokedImages, make_draft, predict
from pseudo_labels.files import PseudoFolder
from runs.log import progress_bar
from support.labels import IGNORE
from support.processes import ThreadPool

T = TypeVar("T")

NUM_THREADS = 4  # of each rank: decode and compress PNGs


@dataclass
class Work:
    """What all ranks of `group` do on a folder's drafts and labels. The methods are collective and may raise Stopped.

    dataset: images, with their scribbles as "label". predictor: the model, or None.
    """

    folder: PseudoFolder
    dataset: SegmentationDataset
    group: Group
    cfg: Config
    predictor: Predictor | None
    flags: PseudoFlags

    def draft(self) -> None:
        """Write the drafts that are missing."""
        group, folder, names = self.group, self.folder, self.dataset.names
        # Batches are those of all images, and done again whole: a model's result may depend on the batch's size.
        sizes = [size or (0, 0) for size in group.map(self.dataset.image_size, range(len(self.dataset)))]
        images_at_once = self.predictor.images_at_once if self.predictor else 1
        batches = EvalBatches(sizes, batch_size=images_at_once, rank=group.rank, world_size=group.world_size)
        pending = [batch for batch in batches if not all(folder.draft_path(names[index]).is_file() for index in batch)]
        images = StrokedImages(self.dataset, with_model=self.predictor is not None)
        loader = make_loader(DataLoader, images, self.flags.workers, group, batch_sampler=pending, collate_fn=list)
        writes: list[Future] = []

        def write(item: Stroked, prediction: Prediction | None) -> None:
            draft = make_draft(item, prediction) if prediction else item.draft
            assert draft is not None
            folder.write_draft(names[item.position], draft)

        with ThreadPool(NUM_THREADS) as pool, self._bar("images", sum(map(len, pending))) as bar:
            for batch in loader if pending else ():
                if group.stop:
                    break
                predictions: list = [None] * len(batch)
                if self.predictor:
                    background = self.cfg.background_class
                    predictions = predict(batch, self.predictor, self.cfg.numclasses, background, group.device)
                for done in writes:  # of the batch before, made while this one was predicted
                    done.result()
                writes = [pool.submit(write, *pair) for pair in zip(batch, predictions, strict=True)]
                bar.update(len(batch))
        for done in writes:
            done.result()
        group.raise_if_stopped()

    def floors(self) -> np.ndarray:
        """Return confidence.floors() over the drafts of all images, (C,) int64."""
        num_classes = self.dataset.num_classes

        def count(index: int) -> np.ndarray:
            draft = self.folder.read_draft(self.dataset.names[index])
            return confidence.histogram(draft.label, draft.levels, self._scribble(index), num_classes)

        counts = sum(self._each(count, "thresholds"), np.zeros((num_classes, confidence.NUM_LEVELS), np.int64))
        return confidence.floors(self._sum(counts), self.flags.threshold)

    def write(self, floors: np.ndarray) -> None:
        """Write the labels that are missing. floors: result of floors()."""

        def write(index: int) -> None:
            name = self.dataset.names[index]
            if not self.folder.label_path(name).is_file():
                draft = self.folder.read_draft(name)
                label = confidence.merge(self._scribble(index), draft.label, draft.levels, floors)
                self.folder.write_label(name, label)

        for _ in self._each(write, "labels"):
            pass
        self.group.raise_if_stopped()

    def labelled(self) -> float:
        """Return the share of all pixels that are labelled."""

        def count(index: int) -> np.ndarray:
            label = read_label(self.folder.label_path(self.dataset.names[index]), self.dataset.num_classes)
            return np.array([(label != IGNORE).sum(), label.size])

        labelled, pixels = self._sum(sum(self._each(count, "counting"), np.zeros(2, np.int64)))
        return float(labelled / pixels)

    def _scribble(self, index: int) -> np.ndarray:
        return read_label(self.dataset.files[index]["label"], self.dataset.num_classes)

    def _sum(self, counts: np.ndarray) -> np.ndarray:
        """Return the sum over ranks. Collective; raises Stopped on all ranks after a signal to any."""
        self.group.raise_if_stopped()
        return self.group.sum(torch.from_numpy(counts)).numpy()

    def _each(self, work: Callable[[int], T], title: str) -> Iterator[T]:
        """Yield work(index) of each image of this rank, in order, computed in threads. A signal ends it early."""
        own = range(self.group.rank, len(self.dataset), self.group.world_size)
        with ThreadPool(NUM_THREADS) as pool, self._bar(title, len(own)) as bar:
            for indices in batched(own, 4 * NUM_THREADS):
                if self.group.stop:
                    return
                for result in pool.map(work, indices):
                    yield result
                    bar.update()

    def _bar(self, title: str, total: int):
        return progress_bar(None, total=total, title=title, unit="image", enabled=self.group.is_main)
