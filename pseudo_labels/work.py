"""The work on the images of pseudo.py: the correction of the model, and a label of each image."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

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
from pseudo_labels import correction
from pseudo_labels.files import PseudoFolder
from pseudo_labels.labelling import Stroked, StrokedImages, make_label, predict
from runs.log import progress_bar
from support.errors import UserError
from support.labels import IGNORE
from support.processes import ThreadPool

log = logging.getLogger("segtrain")

NUM_THREADS = 4  # of each rank: decode and compress PNGs
NUM_IMAGES = 128  # from at most so many, the shares of the classes are estimated


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

    def factors(self, names: Sequence[str]) -> Tensor:
        """Return correction.factors(), (C,) float32, and log the shares of the classes `names` that they depend on."""
        group, num_classes, images = self.group, self.dataset.num_classes, StrokedImages(self.dataset)

        def count(index: int) -> np.ndarray:
            return value_histogram(self._scribble(index))[:num_classes]

        strokes = self._total(count, num_classes, "strokes")
        if not strokes.any():
            raise UserError(f"{self.dataset.folders['label']}: no image has a stroke: draw some, or set --train_path")
        chosen = np.linspace(0, len(images) - 1, min(NUM_IMAGES, len(images))).round().astype(int).tolist()
        own, labelled = chosen[group.rank :: group.world_size], np.zeros(num_classes, np.int64)
        with self._bar("class shares", len(own)) as bar:
            for item in map(images.__getitem__, own):
                if group.stop:
                    break
                probs = predict([item], self.predictor, num_classes, group.device)[0].cpu()
                label = make_label(item, probs, None, self.cfg.background_class)
                labelled += value_histogram(label)[:num_classes]
                bar.update()
        group.raise_if_stopped()
        pixels = group.sum(torch.from_numpy(labelled)).numpy()
        pairs = zip(names, 100 * strokes / strokes.sum(), 100 * pixels / max(pixels.sum(), 1), strict=False)
        shares = ", ".join(f"{name} {stroke:.1f} -> {pixel:.1f}" for name, stroke, pixel in pairs)
        log.info(f"% of the strokes -> % of the pixels, estimated: {shares}")
        return torch.from_numpy(correction.factors(pixels, strokes)).float()

    def label(self, factors: Tensor | None) -> None:
        """Write the labels that are missing. factors: result of factors(), or None for a model that needs none."""
        group, folder, names = self.group, self.folder, self.dataset.names
        # Batches are those of all images, and redone whole: a model's result may depend on the batch's size.
        sizes = [size or (0, 0) for size in group.map(self.dataset.image_size, range(len(self.dataset)))]
        options = {"rank": group.rank, "world_size": group.world_size}
        batches = EvalBatches(sizes, batch_size=self.predictor.images_at_once, **options)
        pending = [batch for batch in batches if not all(folder.label_path(names[index]).is_file() for index in batch)]
        images = StrokedImages(self.dataset)
        loader = make_loader(DataLoader, images, self.flags.workers, group, batch_sampler=pending, collate_fn=list)
        writes: list[Future] = []

        def write(item: Stroked, probs: Tensor) -> None:
            name = names[item.position]
            if not folder.label_path(name).is_file():
                folder.write_label(name, make_label(item, probs, factors, self.cfg.background_class))

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

    def labelled(self) -> float:
        """Return the share of all pixels that are labelled."""

        def count(index: int) -> np.ndarray:
            label = read_label(self.folder.label_path(self.dataset.names[index]), self.dataset.num_classes)
            return np.array([(label != IGNORE).sum(), label.size])

        labelled, pixels = self._total(count, 2, "counting")
        return float(labelled / pixels)

    def _scribble(self, index: int) -> np.ndarray:
        return read_label(self.dataset.files[index]["label"], self.dataset.num_classes)

    def _total(self, count: Callable[[int], np.ndarray], size: int, title: str) -> np.ndarray:
        """Return the sum of count(index), (size,) int64, over all ranks. Raises Stopped after a signal."""
        total = np.zeros(size, np.int64)
        own = range(self.group.rank, len(self.dataset), self.group.world_size)
        with ThreadPool(NUM_THREADS) as pool, self._bar(title, len(own)) as bar:
            for indices in batched(own, 4 * NUM_THREADS):
                if self.group.stop:
                    break
                for counts in pool.map(count, indices):
                    total += counts
                    bar.update()
        self.group.raise_if_stopped()
        return self.group.sum(torch.from_numpy(total)).numpy()

    def _bar(self, title: str, total: int):
        return progress_bar(None, total=total, title=title, unit="image", enabled=self.group.is_main)
