"""Loaders of this process's batches."""

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import cv2
import torch
from torch.utils.data import DataLoader

from data.dataset import SegmentationDataset
from data.sampler import TrainSampler


class TrainLoader(DataLoader):
    """Shuffled, augmented batches of uint8 maps: {"image": (B, H, W, 3), each name in MAPS: (B, H, W)}.

    H and W are --crop_size. sampler.set_position(epoch, samples) sets the epoch's order and where to begin.
    """

    dataset: SegmentationDataset
    sampler: TrainSampler


class EvalLoader(DataLoader):
    """Batches {"image": (B, H, W, 3), "label": (B, H, W), "index": (B,)} of images of one size, each image once.

    The batches do not depend on the number of processes. "label" is the dense mask, "index" the place in the list.
    """

    dataset: SegmentationDataset


def loader_options(
    workers: int,
    device: torch.device,
    *,
    processes_here: int,
    worker_init: Callable[[int], None],
    pin_memory: bool | None = None,
    prefetch_factor: int = 2,
) -> dict:
    """Return the options of a DataLoader that do not depend on the data.

    workers, pin_memory, prefetch_factor: as the flags. processes_here: processes that share the cores of this machine.
    """
    if workers < 0:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = min(4, max(1, cores // processes_here))
    return {
        "num_workers": workers,
        "worker_init_fn": WorkerInit(worker_init),
        "pin_memory": device.type == "cuda" if pin_memory is None else pin_memory,
        "prefetch_factor": prefetch_factor if workers else None,
        "persistent_workers": workers > 0,
        # A generator of its own, because dropout must not depend on how many workers are started.
        "generator": torch.Generator(),
    }


class WorkerInit:
    """Call `init` in a worker, and give it one thread: the workers are the parallelism."""

    def __init__(self, init: Callable[[int], None]):
        self.init = init

    def __call__(self, worker_id: int) -> None:
        self.init(worker_id)
        cv2.setNumThreads(0)


def batched(items: Iterable, size: int) -> Iterator[list]:
    """Yield lists of `size` items; the last may have fewer."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
