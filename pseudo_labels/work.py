"""The work on the images of pseudo.py: a draft of each, the thresholds over all, the labels, their scores."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

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
from pseudo_labels import confidence, scores
from pseudo_labels.drafts import Prediction, Stroked, StrokedImages, make_draft, predict
from pseudo_labels.folder import PseudoFolder
from runs.log import progress_bar
from support.errors import UserError
from support.labels import IGNORE
from support.threads import ThreadPool

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
        pending = [batch for batch in batches if not all(folder.has_draft(names[index]) for index in batch)]
        spread = self.flags.strokes == "walker"
        images = StrokedImages(self.dataset, spread=spread, with_model=self.predictor is not None)
        loader = make_loader(DataLoader, images, self.flags.workers, group, batch_sampler=pending, collate_fn=list)
        writes: list[Future] = []

        def write(item: Stroked, prediction: Prediction | None) -> None:
            folder.write_draft(names[item.index], make_draft(item, prediction))

        with ThreadPool(NUM_THREADS) as pool, self._bar("images", sum(map(len, pending))) as bar:
            for batch in loader if pending else ():
                if group.stop:
                    break
                predictions = self._predict(batch)
                for done in writes:  # of the batch before, made while this one was predicted
                    done.result()
                writes = [pool.submit(write, *pair) for pair in zip(batch, predictions, strict=True)]
                bar.update(len(batch))
        for done in writes:
            done.result()
        group.raise_if_stopped()

    def _predict(self, batch: list[Stroked]) -> list[Prediction] | list[None]:
        if not self.predictor:
            return [None] * len(batch)
        allowed: list[list[int]] = [[] for _ in batch]
        if self.flags.only_stroked_classes:
            allowed = [confidence.stroked_classes(item.scribble, self.cfg.background_class) for item in batch]
        return predict(batch, allowed, self.predictor, self.cfg.numclasses, self.group.device)

    def floors(self) -> np.ndarray:
        """Return confidence.floors() over the drafts of all images, (C,) int64."""
        num_classes = self.dataset.num_classes

        def count(index: int) -> np.ndarray:
            draft = self.folder.read_draft(self.dataset.names[index])
            return confidence.histogram(draft.label, draft.levels, self._scribble(index), num_classes)

        counts = sum(self._each(count, "thresholds"), np.zeros((num_classes, confidence.NUM_LEVELS), np.int64))
        return confidence.floors(self._sum(counts), self.flags.threshold, self.flags.keep)

    def write(self, floors: np.ndarray) -> None:
        """Write the labels that are missing. floors: result of floors()."""

        def write(index: int) -> None:
            name = self.dataset.names[index]
            if not self.folder.is_done(name):
                draft = self.folder.read_draft(name)
                self.folder.write(name, confidence.merge(self._scribble(index), draft.label, draft.levels, floors))

        for _ in self._each(write, "labels"):
            pass
        self.group.raise_if_stopped()

    def score(self, masks: dict[str, Path]) -> dict[str, Any]:
        """Return the share of labelled pixels and the scores of each way of making.

        The result has "images", "labelled" and "stroked" (shares of all pixels, 0..1), and "ways": {way:
        scores.of_counts()}, empty without masks. Besides the labels, drafts are scored, if the folder has them.
        masks: {name: path of the dense mask}, of some images or none.
        """
        names, num_classes = self.dataset.names, self.dataset.num_classes
        maps: dict[str, str] = {}  # {way: field of Draft}
        if self.group.broadcast(all(map(self.folder.has_draft, names))):
            maps = {"model": "model"} if self.predictor else {}
            maps |= {} if self.flags.strokes == "none" else {"joined" if self.predictor else "strokes": "label"}

        def count(index: int) -> tuple[np.ndarray, np.ndarray | int]:
            name = names[index]
            label = read_label(self.folder.label_path(name), num_classes)
            totals = [label.size, (label != IGNORE).sum(), (self._scribble(index) != IGNORE).sum()]
            if name not in masks:
                return np.array(totals), 0
            mask = read_label(masks[name], num_classes)
            if mask.shape != label.shape:
                sizes = ("x".join(map(str, values.shape[::-1])) for values in (mask, label))
                raise UserError(f"{masks[name]}: {' pixels, but its image has '.join(sizes)}")
            draft = self.folder.read_draft(name) if maps else None
            found = [*(getattr(draft, field) for field in maps.values()), label]
            return np.array(totals), np.stack([scores.count(values, mask, num_classes) for values in found])

        totals, counts = np.zeros(3, np.int64), np.zeros((len(maps) + 1, num_classes, num_classes + 1), np.int64)
        for own_totals, own_counts in self._each(count, "scores"):
            totals += own_totals
            counts += own_counts
        (pixels, labelled, stroked), counts = self._sum(totals), self._sum(counts)
        ways = zip([*maps, scores.FINAL], map(scores.of_counts, counts), strict=True)
        shares = {"labelled": float(labelled / pixels), "stroked": float(stroked / pixels)}
        return {"images": len(names), **shares, "ways": dict(ways) if masks else {}}

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
