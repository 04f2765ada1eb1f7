"""Which process sees which sample, and when."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import DistributedSampler, Sampler

from errors import UserError


class TrainSampler(DistributedSampler):
    """One process's share of an order of samples that does not depend on the number of processes.

    An epoch's order is one permutation, drawn from (seed, epoch). Each global batch is the next batch_size *
    accum_steps * world_size entries of it; each forward pass takes the next batch_size * world_size of
    those, rank 0 the first batch_size, and so on. What is too little for a last global batch is left out; the next
    epoch's permutation is another one.

    Yields (epoch, index), from which the data set derives the sample's augmentation. Also serves one
    process without a group: nothing here talks to other processes.
    """

    def __init__(
        self, num_samples: int, *, batch_size: int, accum_steps: int, seed: int, rank: int = 0, world_size: int = 1
    ):
        super().__init__(
            range(num_samples),  # type: ignore[arg-type]  # only its length is used
            num_replicas=world_size,
            rank=rank,
            shuffle=True,
            seed=seed,
            drop_last=True,
        )
        self.batch_size = batch_size
        self.global_batch = batch_size * accum_steps * world_size
        self.steps_per_epoch = num_samples // self.global_batch
        if self.steps_per_epoch == 0:
            raise UserError(
                f"the training list has {num_samples} image(s) but one optimizer step takes {self.global_batch} "
                f"(--batchsize {batch_size} x --accum_steps {accum_steps} x {world_size} process(es)): lower --batchsize"
            )
        self.set_position(0, 0)

    def set_position(self, epoch: int, samples: int) -> None:
        """Begin the next iteration in this epoch, after its first `samples` entries, at no cost for those.

        With another number of processes, batch size or accumulation than those were taken with, the rest is
        divided anew: the same samples in the same order.
        """
        self.set_epoch(epoch)
        self.samples = samples
        self.steps = (len(self.dataset) - samples) // self.global_batch  # type: ignore[arg-type]
        self.num_samples = self.steps * self.global_batch // self.num_replicas  # of this process, for len()

    def is_through(self, samples: int) -> bool:
        """Whether an epoch of which so many entries were taken has no global batch left."""
        return samples + self.global_batch > len(self.dataset)  # type: ignore[arg-type]

    def order(self, epoch: int) -> np.ndarray:
        """The permutation (num_samples,) of all samples in an epoch, the same on all ranks."""
        return np.random.default_rng((self.seed, epoch)).permutation(len(self.dataset))  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = self.order(self.epoch)[self.samples : self.samples + self.steps * self.global_batch]
        for index in order.reshape(-1, self.num_replicas, self.batch_size)[:, self.rank].ravel():
            yield self.epoch, int(index)


class EvalBatches(Sampler):
    """One process's batches for evaluation: each sample once over all ranks, none padded in.

    A batch has images of one size, and which images share one depends on the sizes of all and on batch_size only, so
    that a model computes the same at any number of processes. Whole batches are dealt to the ranks, largest first,
    each to the rank that has fewest pixels so far.

    sizes: (height, width) of every sample. Yields lists of indices, which the other ranks' do not overlap.
    """

    def __init__(self, sizes: list[tuple[int, int]], *, batch_size: int, rank: int = 0, world_size: int = 1):
        of_size: dict[tuple[int, int], list[int]] = {}
        for index, size in enumerate(sizes):
            of_size.setdefault(size, []).append(index)
        batches = [
            (height * width * len(indices[first : first + batch_size]), indices[first : first + batch_size])
            for (height, width), indices in of_size.items()
            for first in range(0, len(indices), batch_size)
        ]
        shares: list[list[list[int]]] = [[] for _ in range(world_size)]
        pixels = [0] * world_size
        for num_pixels, batch in sorted(batches, key=lambda batch: -batch[0]):
            least = pixels.index(min(pixels))
            shares[least].append(batch)
            pixels[least] += num_pixels
        self.batches = shares[rank]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)
