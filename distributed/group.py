"""The group of processes that train together, and what they do together.

Without a process group, each method works as in a group of one, so callers need no special case.
"""

import contextlib
import inspect
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from support.processes import ThreadPool
from support.signals import StopRequest
from support.terminal import warn

POLL_SECONDS = 0.2  # how often ranks synchronize while rank 0 works for all of them
MESSAGE_SECONDS = 10.0  # how long the others wait for rank 0 before they print why

T = TypeVar("T")
Item = TypeVar("Item")


class Stopped(Exception):
    """A signal told at least one rank to stop; all ranks raise this exception at the same place."""


@dataclass(frozen=True)
class Group:
    """This process's place in its process group, and the collectives of the group.

    Without a group, `backend` is None and the collectives act on this process alone. `stop` holds the reason to stop
    once a signal to any rank asks for it; ranks learn of it at different moments, so compare it in a collective before
    acting on it. `local_world_size` counts the processes on this machine. `launcher` gave this process its rank.
    note("step 7") says where this rank is, for the other ranks' message if it stands still.
    """

    device: torch.device
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    backend: str | None = None
    stop: StopRequest = field(default_factory=StopRequest)
    local_world_size: int = 1
    launcher: str = ""
    note: Callable[[str], None] = lambda place: None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over ranks, as a new tensor on the same device. Collective.

        gloo sums CPU tensors, without waiting for a GPU.
        """
        total = tensor.detach().clone()
        if self.backend:
            dist.all_reduce(total)
        return total

    def broadcast(self, value):
        """Return rank 0's `value` (any picklable object) on every rank. Collective."""
        values = [value]
        if self.backend:
            dist.broadcast_object_list(values, device=torch.device("cpu"))
        return values[0]

    def gather(self, value) -> list:
        """Return the list of all ranks' values (any picklable objects), in rank order, on every rank. Collective."""
        values = [value] * self.world_size
        if self.backend:
            dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        self.sum(torch.zeros(1))

    def raise_if_stopped(self) -> None:
        """Raise Stopped on all ranks if any rank got a signal. Collective."""
        reasons = [reason for reason in self.gather(self.stop.reason) if reason]
        if reasons:
            raise Stopped(", ".join(dict.fromkeys(reasons)))

    def sum_or_stop(self, values: Tensor) -> Tensor:
        """Return the sum of a 1-D tensor over ranks; raise Stopped on all ranks if any rank got a signal.

        Collective.
        """
        sums = self.sum(torch.cat([values, values.new_tensor([bool(self.stop)])]))
        if sums[-1]:
            self.raise_if_stopped()
        return sums[:-1]

    def map(
        self, work: Callable[[Item], T], items: Sequence[Item], bar: Callable[[Iterable[T]], Iterable[T]] = iter
    ) -> list[T | None]:
        """Return [work(item) for each item] on every rank. Each rank computes a share in threads. Collective.

        bar: wraps the iterable of this rank's results, to show progress. If ranks have different numbers of items,
        results that no rank computed are None.
        """
        own = range(self.rank, len(items), self.world_size)
        with ThreadPool(16) as pool:
            shares = self.gather(dict(zip(own, bar(pool.map(work, [items[index] for index in own])), strict=True)))
        results = {index: result for share in shares for index, result in share.items()}
        return [results.get(index) for index in range(len(items))]

    def run_on_rank_0(self, work: Callable[[], T], task: str) -> T | None:
        """Return work() on rank 0 and None on other ranks, which wait even beyond --dist_timeout. Collective.

        A barrier would time out, so work() runs in a thread while the ranks repeat short collectives. If work() raises,
        so does this method, and the lifeline ends the other ranks. task: what rank 0 does, for a line on the terminal.
        """
        if self.world_size == 1:
            return work()
        message_at = time.monotonic() + MESSAGE_SECONDS
        with ThreadPool(1) as pool:
            future = pool.submit(work) if self.is_main else None
            while self.sum(torch.tensor([future is not None and not future.done()], dtype=torch.int64)):
                time.sleep(POLL_SECONDS)
                if not self.is_main and time.monotonic() > message_at:
                    message_at = math.inf
                    warn(f"rank {self.rank}: waiting for rank 0, which is {task}")
        return future.result() if future else None

    def wrap(self, raw_model: nn.Module) -> nn.Module:
        """Return the model in DistributedDataParallel, rank 0's weights on all ranks; without a group, the model."""
        if not self.backend:
            return raw_model
        for buffer in raw_model.buffers():
            dist.broadcast(buffer, 0)
        # Averaging buffers before each use is enough, so DDP need not broadcast them in every forward pass. torch
        # renamed the option after 2.11.
        options = inspect.signature(DistributedDataParallel).parameters
        sync_buffers = "forward_sync_buffers" if "forward_sync_buffers" in options else "broadcast_buffers"
        return DistributedDataParallel(
            raw_model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **{sync_buffers: False},  # type: ignore[arg-type]
        )

    def average_buffers(self, raw_model: nn.Module) -> None:
        """Replace each floating-point buffer, such as batch-norm statistics, by its mean over ranks. Collective."""
        for buffer in raw_model.buffers():
            if buffer.is_floating_point():
                # The float64 mean of equal float32 values is exact; the float32 mean of three may not be.
                buffer.copy_(self.sum(buffer.double()) / self.world_size)


def gradient_sync(model: nn.Module, enabled: bool):
    """Return a context for a forward and backward pass, in which DDP all-reduces gradients only if `enabled`."""
    if enabled or not isinstance(model, DistributedDataParallel):
        return contextlib.nullcontext()
    return model.no_sync()
