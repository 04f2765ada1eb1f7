"""Loaders and threads that do a process's share of the work, for every program."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import cv2
import torch
from torch.utils.data import DataLoader, Dataset

from distributed.group import Group
from distributed.signals import WorkerSignals


def share_out(work: Callable, items: list, group: Group, bar: Callable[[Iterable], Iterable] = iter) -> dict[int, Any]:
    """work(item) of every item, by its index, on every rank: each rank does its share, by threads.

    bar: what shows how far this rank's share has come.
    """
    mine = range(group.rank, len(items), group.world_size)
    with ThreadPoolExecutor(16) as pool:
        results = bar(pool.map(work, [items[index] for index in mine]))
        shares = group.gather(dict(zip(mine, results, strict=True)))
    return {index: result for share in shares for index, result in share.items()}


def make_loader(
    dataset: Dataset, workers: int, group: Group, *, pin_memory: bool | None = None, prefetch_factor: int = 2, **batches
) -> DataLoader:
    """A loader of this process. The arguments are the flags of these names.

    batches: sampler and batch_size, or batch_sampler, and the like.
    """
    if workers < 0:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = min(4, max(1, cores // group.local_world_size))
    return DataLoader(
        dataset,
        **batches,
        num_workers=workers,
        worker_init_fn=_WorkerInit(),
        pin_memory=group.device.type == "cuda" if pin_memory is None else pin_memory,
        prefetch_factor=prefetch_factor if workers else None,
        persistent_workers=workers > 0,
        # Of its own, so that starting workers draws nothing from the generator that dropout draws from.
        generator=torch.Generator(),
    )


class _WorkerInit(WorkerSignals):
    def __call__(self, worker_id: int) -> None:
        super().__call__(worker_id)
        cv2.setNumThreads(0)  # the workers themselves are the parallelism


def batched(items: Iterable, size: int) -> Iterator[list]:
    """Lists of `size` items each; the last may have fewer."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
