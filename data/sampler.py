"""Samplers choose which process sees which sample, and when."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import DistributedSampler, Sampler

from support.errors import UserError


class TrainSampler(DistributedSampler):
    """Sampler of one rank's training samples, in an order that does not depend on the number of ranks.

    An epoch is `repeat` passes over the samples. The order of a pass is a permutation drawn from (seed, number of the
    pass). Each global batch is the next batch_size * accum_steps * world_size entries of the epoch's order. Each
    forward pass takes the next batch_size * world_size of these entries: rank 0 takes the first batch_size, and so on.
    An incomplete last global batch is dropped.

    Yields (number of the pass, index), from which the data set derives the sample's augmentation. Needs no process
    group. Raises UserError if an epoch is smaller than one global batch.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        batch_size: int,
        accum_steps: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        repeat: int = 1,
    ):
        entries: Any = range(num_samples * repeat)  # only its length is used
        super().__init__(entries, num_replicas=world_size, rank=rank, shuffle=True, seed=seed, drop_last=True)
        self.batch_size, self.repeat = batch_size, repeat
        self.pass_length, self.epoch_length = num_samples, len(entries)
        self.global_batch = batch_size * accum_steps * world_size
        self.steps_per_epoch = self.epoch_length // self.global_batch  # rounded down: each step has a whole batch
        if self.steps_per_epoch == 0:
            product = f"--batchsize {batch_size} x --accum_steps {accum_steps} x {world_size} process(es)"
            raise UserError(
                f"the training list has {num_samples} image(s) but one optimizer step takes {self.global_batch} "
                f"({product}): lower --batchsize, --accum_steps or --total_batchsize, or use "
                f"--repeat {-(-self.global_batch // num_samples)}"
            )
        self.set_position(0, 0)  # len() must work before the first epoch

    def set_position(self, epoch: int, samples: int) -> None:
        """Make the next iteration start in `epoch`, after the first `samples` entries of the epoch's order.

        Skipping reads no sample. The order that remains does not depend on batch sizes or processes of skipped entries.
        """
        self.set_epoch(epoch)
        self.samples = samples  # not steps: a resumed run may have another batch size
        self.steps_left = (self.epoch_length - samples) // self.global_batch
        self.num_samples = self.steps_left * self.global_batch // self.num_replicas  # for len()

    def is_epoch_done(self, samples: int) -> bool:
        """Return True if fewer samples than one global batch are left after the first `samples` entries of an epoch."""
        return samples + self.global_batch > self.epoch_length

    def order(self, epoch: int) -> np.ndarray:
        """Return the sample indices of an epoch in order, (num_samples * repeat,) int64, equal on all ranks."""
        passes = range(epoch * self.repeat, (epoch + 1) * self.repeat)
        # A generator per pass, because one generator for the run would have to be saved and replayed to resume.
        orders = [np.random.default_rng((self.seed, number)).permutation(self.pass_length) for number in passes]
        return np.concatenate(orders)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = self.order(self.epoch)
        positions = np.arange(self.samples, self.samples + self.steps_left * self.global_batch)
        # Deal out blocks, so that the ranks' forward passes together read the order from left to right.
        for position in positions.reshape(-1, self.num_replicas, self.batch_size)[:, self.rank].ravel():
            # The number of the pass, not of the epoch: a sample that repeats within an epoch is augmented differently.
            yield self.epoch * self.repeat + int(position) // self.pass_length, int(order[position])


class EvalBatches(Sampler):
    """Batch sampler of one rank for evaluation: over all ranks, each sample comes once, without padding.

    A batch has images of one size. Its content depends only on `sizes` and batch_size, so a model computes the same
    with any number of processes. Each batch, largest first, goes to the rank with the fewest pixels so far.

    sizes: (height, width) of every sample. Yields lists of indices.
    """

    def __init__(self, sizes: list[tuple[int, int]], *, batch_size: int, rank: int = 0, world_size: int = 1):
        self.sizes = sizes
        by_size: dict[tuple[int, int], list[int]] = {}  # padding to one size would change what a model predicts
        for index, size in enumerate(sizes):
            by_size.setdefault(size, []).append(index)
        batches = [
            (height * width * len(indices[first : first + batch_size]), indices[first : first + batch_size])
            for (height, width), indices in by_size.items()
            for first in range(0, len(indices), batch_size)
        ]
        self.batches: list[list[int]] = []
        pixels = [0] * world_size
        # Largest first: small batches then fill the gaps, and the ranks finish at about the same time.
        for num_pixels, batch in sorted(batches, key=lambda batch: -batch[0]):
            owner = pixels.index(min(pixels))  # the first minimum, so that all ranks choose alike without a message
            pixels[owner] += num_pixels
            if owner == rank:
                self.batches.append(batch)

    def keep(self, is_wanted: Callable[[int], bool]) -> None:
        """Leave out the batches without a wanted sample. The others stay whole."""
        self.batches = [batch for batch in self.batches if any(map(is_wanted, batch))]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)
