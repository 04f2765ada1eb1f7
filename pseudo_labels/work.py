"""The work on the images of pseudo.py: a draft of each, the thresholds over all, the labels."""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from builders.loaders import make_loader
from config import Config
from config.programs import PseudoFlags
from data.dataset import SegmentationDataset
from data.histogram import value_histogram
from data.images import read_label
from data.loader import batched
from data.sampler import EvalBatches
from distributed.group import Group
from evaluation.predictor import Predictor
from pseudo_labels import confidence, correction
from pseudo_labels.drafts import Stroked, StrokedImages, corrected_walk, make_draft, predict
from pseudo_labels.files import PseudoFolder
from runs.log import progress_bar
from support.labels import IGNORE
from support.processes import ThreadPool

T = TypeVar("T")
log = logging.getLogger("segtrain")

NUM_THREADS = 4  # of each rank: decode and compress PNGs
MOST_IMAGES = 128  # from which the correction is estimated


@dataclass
class Work:
    """What all ranks of `group` do on a folder's drafts and labels. The methods are collective and may raise Stopped.

    dataset: images, with their scribbles as "label". predictor: the model.
    """

    folder: PseudoFolder
    dataset: SegmentationDataset
    group: Group
    cfg: Config
    predictor: Predictor
    flags: PseudoFlags

    def weights(self, names: Sequence[str]) -> Tensor:
        """Return correction.estimate() for a model of these strokes, (C,) float32, and log. names: of the classes."""
        group, num_classes = self.group, self.dataset.num_classes

        def count(index: int) -> np.ndarray:
            return value_histogram(self._scribble(index))[:num_classes]

        pixels = self._sum(sum(self._each(count, "strokes"), np.zeros(num_classes, np.int64)))
        strokes = pixels / max(1, pixels.sum())
        images = StrokedImages(self.dataset)
        chosen = np.linspace(0, len(images) - 1, min(MOST_IMAGES, len(images))).round().astype(int).tolist()
        own: dict[int, tuple[Stroked, Tensor]] = {}
        places = range(group.rank, len(chosen), group.world_size)  # as in Group.map
        with self._bar("class shares", len(places)) as bar:
            for place in places:
                if group.stop:
                    break
                item = images[chosen[place]]
                own[place] = item, predict([item], self.predictor, num_classes, group.device)[0].half().cpu()
                bar.update()
        group.raise_if_stopped()

        def label(weights: np.ndarray) -> np.ndarray:
            def shares(place: int) -> np.ndarray:
                walk, _ = corrected_walk(*own[place], torch.from_numpy(weights).float(), self.cfg.background_class)
                return np.bincount(walk.classes, walk.probs.mean((1, 2), dtype=np.float64), num_classes)

            return np.array(group.map(shares, range(len(chosen)))).mean(0)

        factors = correction.estimate(label, strokes)
        triples = zip(names, 100 * strokes, factors, strict=False)
        shares = ", ".join(f"{name} {share:.1f} -> {share * factor:.1f}" for name, share, factor in triples)
        log.info(f"% of the strokes -> % of the pixels, as estimated from the model's labels: {shares}")
        return torch.from_numpy(factors).float()

    def draft(self, weights: Tensor) -> None:
        """Write the drafts that are missing. weights: they multiply the model's probabilities, (C,) float32."""
        group, folder, names = self.group, self.folder, self.dataset.names
        # Batches are those of all images, and done again whole: a model's result may depend on the batch's size.
        sizes = [size or (0, 0) for size in group.map(self.dataset.image_size, range(len(self.dataset)))]
        options = {"rank": group.rank, "world_size": group.world_size}
        batches = EvalBatches(sizes, batch_size=self.predictor.images_at_once, **options)
        pending = [batch for batch in batches if not all(folder.draft_path(names[index]).is_file() for index in batch)]
        images = StrokedImages(self.dataset)
        loader = make_loader(DataLoader, images, self.flags.workers, group, batch_sampler=pending, collate_fn=list)
        writes: list[Future] = []

        def write(item: Stroked, probs: Tensor) -> None:
            folder.write_draft(names[item.position], make_draft(item, probs, weights, self.cfg.background_class))

        with ThreadPool(NUM_THREADS) as pool, self._bar("images", sum(map(len, pending))) as bar:
            for batch in loader if pending else ():
                if group.stop:
                    break
                probs = predict(batch, self.predictor, self.dataset.num_classes, group.device).cpu()
                for done in writes:  # of the batch before, made while this one was predicted
                    done.result()
                writes = [pool.submit(write, *pair) for pair in zip(batch, probs, strict=True)]
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
