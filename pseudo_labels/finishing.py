"""From drafts to pseudo-labels: the thresholds over all images, the labels, their scores."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from data.dataset import SegmentationDataset
from data.images import read_label
from data.loader import batched
from distributed.group import Group
from pseudo_labels import confidence, scores
from pseudo_labels.folder import PseudoFolder
from runs.log import progress_bar
from support.errors import UserError
from support.labels import IGNORE
from support.threads import ThreadPool

T = TypeVar("T")

NUM_THREADS = 4  # of each rank: decode and compress PNGs


@dataclass
class Finishing:
    """The work on a folder's drafts and labels, shared by all ranks of `group`.

    dataset: images, with their scribbles as "label".
    """

    folder: PseudoFolder
    dataset: SegmentationDataset
    group: Group

    def floors(self, threshold: float, keep: float) -> np.ndarray:
        """Return confidence.floors() over the drafts of all images, (C,) int64. Collective; may raise Stopped."""
        num_classes = self.dataset.num_classes

        def count(index: int) -> np.ndarray:
            draft = self.folder.read_draft(self.dataset.names[index])
            return confidence.histogram(draft.label, draft.levels, self._scribble(index), num_classes)

        counts = sum(self._each(count, "thresholds"), np.zeros((num_classes, confidence.NUM_LEVELS), np.int64))
        return confidence.floors(self._sum(counts), threshold, keep)

    def write(self, floors: np.ndarray) -> None:
        """Write the labels that are missing. floors: result of floors(). Collective; may raise Stopped."""

        def write(index: int) -> None:
            name = self.dataset.names[index]
            if not self.folder.is_done(name):
                draft = self.folder.read_draft(name)
                label = confidence.merge(self._scribble(index), draft.label, draft.levels, floors)
                self.folder.write(name, label)

        for _ in self._each(write, "labels"):
            pass
        self.group.raise_if_stopped()

    def score(self, masks: dict[str, Path], drafts: dict[str, str]) -> dict[str, Any]:
        """Return the share of labelled pixels and the scores of each way of making. Collective; may raise Stopped.

        The result has "images", "labelled" and "stroked" (shares of all pixels, 0..1), "scored" (images with a mask)
        and "ways": {way: scores.of_counts()}, empty without masks.
        masks: {name: path of the dense mask}, of some images or none. drafts: {way: field of Draft} to score too.
        """
        names, num_classes = self.dataset.names, self.dataset.num_classes
        ways = [*drafts, scores.FINAL]

        def count(index: int) -> tuple[np.ndarray, np.ndarray]:
            name = names[index]
            label = read_label(self.folder.label_path(name), num_classes)
            stroked = np.count_nonzero(self._scribble(index) != IGNORE)
            totals = [label.size, np.count_nonzero(label != IGNORE), stroked]
            counts = np.zeros((len(ways), num_classes, num_classes + 1), np.int64)
            if name in masks:
                mask = read_label(masks[name], num_classes)
                if mask.shape != label.shape:
                    sizes = ("x".join(map(str, values.shape[::-1])) for values in (mask, label))
                    raise UserError(f"{masks[name]}: {' pixels, but its image has '.join(sizes)}")
                draft = self.folder.read_draft(name) if drafts else None
                maps = [*(getattr(draft, map_name) for map_name in drafts.values()), label]
                counts += [scores.count(values, mask, num_classes) for values in maps]
            return np.array(totals), counts

        sums = [np.zeros(3, np.int64), np.zeros((len(ways), num_classes, num_classes + 1), np.int64)]
        for parts in self._each(count, "scores"):
            sums = [total + part for total, part in zip(sums, parts, strict=True)]
        (pixels, labelled, stroked), counts = self._sum(sums[0]), self._sum(sums[1])
        return {
            "images": len(names),
            "labelled": float(labelled / pixels),
            "stroked": float(stroked / pixels),
            "scored": sum(name in masks for name in names),
            "ways": {way: scores.of_counts(own) for way, own in zip(ways, counts, strict=True)} if masks else {},
        }

    def _scribble(self, index: int) -> np.ndarray:
        return read_label(self.dataset.files[index]["label"], self.dataset.num_classes)

    def _sum(self, counts: np.ndarray) -> np.ndarray:
        """Return the sum over ranks. Collective; raises Stopped on all ranks after a signal to any."""
        self.group.raise_if_stopped()
        return self.group.sum(torch.from_numpy(counts)).numpy()

    def _each(self, work: Callable[[int], T], title: str) -> Iterator[T]:
        """Yield work(index) of each image of this rank, in order, computed in threads. A signal ends it early."""
        own = range(self.group.rank, len(self.dataset), self.group.world_size)
        with (
            ThreadPool(NUM_THREADS) as pool,
            progress_bar(None, total=len(own), title=title, unit="image", enabled=self.group.is_main) as bar,
        ):
            for indices in batched(own, 4 * NUM_THREADS):
                if self.group.stop:
                    return
                for result in pool.map(work, indices):
                    yield result
                    bar.update()
