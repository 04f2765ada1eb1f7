"""Which process sees which sample, and when."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import DistributedSampler, Sampler

from errors import UserError


class TrainSampler(DistributedSampler):
    """One process's share of an order of samples that does not depend on the number of processes.

    Global batch g of an epoch is the g-th run of batch_size * accum_steps * world_size entries of one
    permutation, drawn from (seed, epoch). Each forward pass takes the next batch_size * world_size of
    them, rank 0 the first batch_size, and so on. The last, smaller global batch is left out; the next
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
        self.steps = num_samples // self.global_batch
        if self.steps == 0:
            raise UserError(
                f"the training list has {num_samples} image(s) but one optimizer step takes {self.global_batch} "
                f"(--batchsize {batch_size} x --accum_steps {accum_steps} x {world_size} process(es)): lower --batchsize"
            )
        self.num_samples = self.steps * self.global_batch // world_size

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = np.random.default_rng((self.seed, self.epoch)).permutation(len(self.dataset))  # type: ignore[arg-type]
        order = order[: self.steps * self.global_batch].reshape(-1, self.num_replicas, self.batch_size)
        for index in order[:, self.rank].ravel():
            yield self.epoch, int(index)


class EvalSampler(Sampler):
    """Every world_size-th sample from `rank` on: each sample once over all ranks, none padded in."""

    def __init__(self, num_samples: int, *, rank: int = 0, world_size: int = 1):
        self.indices = range(rank, num_samples, world_size)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)
