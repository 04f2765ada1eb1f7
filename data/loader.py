"""DataLoaders that make this process's batches."""

import ctypes
import multiprocessing.queues
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import cv2
import torch
from torch.utils.data import DataLoader

from support.processes import end_with_parent, let_threads_rest, num_cores, starting
from support.signals import SIGNALS

# In these versions of Python, a worker may hang if it is forked while another thread enters Python, as gloo's threads
# do after each collective: https://github.com/python/cpython/issues/112275
MAY_HANG = sys.version_info < (3, 10, 15) or (3, 11) <= sys.version_info < (3, 11, 8)


class Loader(DataLoader):
    """DataLoader whose workers survive a signal that arrives while they start.

    Over a TrainSet, it gives shuffled, augmented batches, each a support.batch.Batch, whose H and W are --crop_size;
    sampler.set_position(epoch, samples) chooses the epoch and the number of samples to skip. Over an EvalSet, it gives
    batches of images of one size, each a support.batch.EvalBatch, whose `indices` refer to dataset.names; each image
    occurs once over all processes, whose number changes no batch.
    """

    dataset: Any
    sampler: Any
    batch_sampler: Any
    has_workers = False  # workers start once, and persist

    def __iter__(self):
        if MAY_HANG and self.num_workers and not self.has_workers:
            let_threads_rest()
            self.has_workers = True
        with starting():  # a worker ignores signals only once _start_worker() has run
            return super().__iter__()


def loader_options(
    workers: int, device: torch.device, processes_here: int, *, pin_memory: bool | None = None, prefetch_factor: int = 2
) -> dict:
    """Return the keyword arguments of a DataLoader that do not depend on the data, as a dict.

    If workers is 0, this process decodes, so the function also calls keep_freed_memory().

    workers: number of worker processes; below 0, chosen from the number of cores, at most 4. processes_here: processes
    that share the cores of this machine. pin_memory: None or True pins memory on CUDA; a CPU has no use for it.
    """
    if workers < 0:  # the processes of this machine share its cores, and each worker keeps one of them busy
        workers = min(4, max(1, num_cores() // processes_here))
    if not workers:
        keep_freed_memory()
    return {
        "num_workers": workers,
        "worker_init_fn": _start_worker,
        "pin_memory": device.type == "cuda" and pin_memory is not False,  # copies from pageable memory would block
        "persistent_workers": workers > 0,  # their start would cost seconds in each epoch
        "prefetch_factor": prefetch_factor if workers else None,  # DataLoader refuses a number without workers
    }


def _start_worker(worker_id: int) -> None:
    """Set up signals, OpenCV and the allocator of a loader worker."""
    for number in SIGNALS:  # Ctrl-C reaches all processes, but the parent, whose last step needs this data, decides
        signal.signal(number, signal.SIG_IGN)
    # A worker whose result fills the pipe would wait for a killed parent forever.
    end_with_parent()
    # If /dev/shm is too full to hand over a batch, Python drops it and the parent waits forever: exit instead.
    multiprocessing.queues.Queue._on_queue_feeder_error = lambda *_: os._exit(1)  # type: ignore[attr-defined]
    cv2.setNumThreads(0)  # the workers are the threads: more of them would compete for the cores
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Make malloc keep large freed blocks for the next allocation. Does nothing without the GNU C library.

    By default the kernel clears their pages again for every decoded image, which takes a third of a sample's time.
    """
    # Other C libraries have no mallopt, and Windows refuses CDLL(None).
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    # M_MMAP_THRESHOLD, then M_TRIM_THRESHOLD, in bytes. Before glibc 2.35, the first is at most 32 MiB.
    if mallopt and (mallopt(-3, 2**30) or mallopt(-3, 2**25)):
        mallopt(-1, 2**30)


def batched(items: Iterable, size: int) -> Iterator[list]:
    """Yield lists of `size` consecutive items; the last list may have fewer."""
    iterator = iter(items)  # itertools.batched is new in Python 3.12
    while batch := list(islice(iterator, size)):
        yield batch
