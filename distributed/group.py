"""The group of processes that train together, and what they do together.

Without a process group, each method works as in a group of one, so callers need no special case.
"""

import contextlib
import inspect
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from support.processes import ThreadPool
from support.progress import progress_bar
from support.signals import StopRequest
from support.terminal import warn

POLL_SECONDS = 0.2  # how often ranks synchronize while rank 0 works for all of them
MESSAGE_SECONDS = 10.0  # how long the others wait for rank 0 before they print why
NUM_THREADS = 16  # more than cores: reading files mostly waits for the disk or the network

T = TypeVar("T")
Item = TypeVar("Item")


class Stopped(Exception):
    """A signal told at least one rank to stop; all ranks raise this exception at the same place."""


@dataclass(frozen=True)
class Group:
    """This process's place in its process group, and the collectives of the group.

    Without a group, `backend` is None and the collectives act on this process alone. `stop` holds the reason to stop
    once a signal to any rank asks for it. Ranks see a signal at different times, so synchronize before acting on it.
    `local_world_size` counts the processes on this machine. `launcher` gave this process its rank. note("step 7")
    records where this rank is; this rank's error says so if another process stands still. advise(text) records what the
    ranks print if another rank is lost: rank 0's text, or their own if rank 0 is lost.
    """

    device: torch.device
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    backend: str | None = None  # also says whether there is a group: torchrun may start a group of one
    stop: StopRequest = field(default_factory=StopRequest)
    local_world_size: int = 1
    launcher: str = ""
    note: Callable[[str], None] = lambda place: None
    advise: Callable[[str], None] = lambda advice: None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over ranks. A CPU tensor's sum (by gloo) waits for no GPU. Collective."""
        total = tensor.detach().clone()  # all_reduce works in place, and no argument may change
        if self.backend:
            dist.all_reduce(total)
        return total

    def broadcast(self, value):
        """Return rank 0's `value` (any picklable object) on every rank. Collective."""
        values = [value]
        if self.backend:
            dist.broadcast_object_list(values, device=torch.device("cpu"))  # NCCL would wait for the GPU's queue
        return values[0]

    def gather(self, value) -> list:
        """Return the list of all ranks' values (any picklable objects), in rank order, on every rank. Collective."""
        values = [value] * self.world_size
        if self.backend:
            dist.all_gather_object(values, value)  # overwrites all entries, this rank's too
        return values

    def barrier(self) -> None:
        self.sum(torch.zeros(1))  # NCCL's barrier would run on the GPU; a sum on the CPU uses gloo

    def raise_if_stopped(self) -> None:
        """Raise Stopped on all ranks if any rank got a signal. Collective."""
        reasons = [reason for reason in self.gather(self.stop.reason) if reason]
        if reasons:
            raise Stopped(", ".join(dict.fromkeys(reasons)))  # most ranks have the same: the lifeline relays it

    def sum_or_stop(self, values: Tensor) -> Tensor:
        """Return the sum of a 1-D tensor over ranks; raise Stopped on all ranks if any got a signal. Collective."""
        # The flag travels with the values: a second collective in each step would cost as much as the first.
        sums = self.sum(torch.cat([values, values.new_tensor([bool(self.stop)])]))
        if sums[-1]:  # equal on all ranks, so all of them enter the next collective or none does
            self.raise_if_stopped()
        return sums[:-1]

    def share_work(
        self, work: Callable[[Item], T], items: Sequence[Item], title: str = "", unit: str = "image"
    ) -> list[T | None]:
        """Return [work(item) for each item] on every rank. Each rank computes a share in threads. Collective.

        title, unit: of rank 0's progress bar; without a title there is none. If ranks have different numbers of items,
        results that no rank computed are None.
        """
        # Take every n-th item: neighbours in a list, such as the frames of a film, often cost the same.
        indices = range(self.rank, len(items), self.world_size)
        with ThreadPool(NUM_THREADS) as pool:
            found = pool.map(work, [items[index] for index in indices])
            enabled = self.is_main and title != ""
            bar = progress_bar(found, total=len(indices), title=title, unit=unit, enabled=enabled)
            results = dict(zip(indices, bar, strict=True))
        # Send the index with each result, because ranks whose lists differ in length would shift the results.
        gathered = {index: result for share in self.gather(results) for index, result in share.items()}
        return [gathered.get(index) for index in range(len(items))]

    def run_on_rank_0(self, work: Callable[[], T], task: str) -> T | None:
        """Return work() on rank 0 and None on other ranks, which wait even beyond --dist_timeout. Collective.

        A barrier would time out, so work() runs in a thread while the ranks repeat short collectives. If work() raises,
        this method raises on rank 0, and the lifeline ends the other ranks. task: printed by ranks that wait long.
        """
        if self.world_size == 1:
            return work()  # no other rank waits, so no thread is needed
        message_at = time.monotonic() + MESSAGE_SECONDS
        with ThreadPool(1) as pool:
            future = pool.submit(work) if self.is_main else None
            # Each sum starts a new timeout, so the wait as a whole has no limit.
            while self.sum(torch.tensor([future is not None and not future.done()], dtype=torch.int64)):
                time.sleep(POLL_SECONDS)
                if not self.is_main and time.monotonic() > message_at:
                    message_at = math.inf  # print the message once
                    warn(f"rank {self.rank}: waiting for rank 0, which is {task}")
        return future.result() if future else None  # raises what work() raised

    def wrap(self, raw_model: nn.Module) -> nn.Module:
        """Return the model in DistributedDataParallel, rank 0's weights on all ranks; without a group, the model."""
        if not self.backend:
            return raw_model
        for buffer in raw_model.buffers():  # the option below makes some versions of DDP skip them
            dist.broadcast(buffer, 0)
        # Averaging buffers before each use is enough, so DDP need not broadcast them in every forward pass. torch
        # renamed the option after 2.11.
        options = inspect.signature(DistributedDataParallel).parameters
        sync_buffers = "forward_sync_buffers" if "forward_sync_buffers" in options else "broadcast_buffers"
        return DistributedDataParallel(
            raw_model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,  # saves the memory of one copy of all gradients
            **{sync_buffers: False},  # type: ignore[arg-type]
        )

    def average_buffers(self, raw_model: nn.Module) -> None:
        """Replace each floating-point buffer, such as batch-norm statistics, by its mean over ranks. Collective."""
        for buffer in raw_model.buffers():
            if buffer.is_floating_point():  # integers count batches, and all ranks count the same
                # The float64 mean of equal float32 values is exact; the float32 mean of three may not be.
                buffer.copy_(self.sum(buffer.double()) / self.world_size)


def gradient_sync(model: nn.Module, enabled: bool):
    """Return a context for a forward and backward pass, in which DDP all-reduces gradients only if `enabled`."""
    if enabled or not isinstance(model, DistributedDataParallel):
        return contextlib.nullcontext()
    return model.no_sync()  # gradients add up locally, so only the last micro-batch pays for the all-reduce
