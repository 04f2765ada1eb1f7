"""The process group: its life, its collectives, and one end for all ranks when one of them fails.

Everything outside this file calls the helpers of `Group`, which answer for one process when there is no
group, so that no caller branches on it.
"""

import contextlib
import inspect
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from engine.rendezvous import find_device, meet, place, wait_for_all
from errors import UserError

POLL_SECONDS = 0.5  # how often a rank looks whether another one failed
LEAVE_SECONDS = 5.0  # how long a failing rank waits for the others to have seen it


@dataclass(frozen=True)
class Group:
    """This process and the group it is in; `backend` is None where there is no group."""

    device: torch.device
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    backend: str | None = None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over ranks; the input is left as it is. CPU tensors travel over gloo and wait for no GPU."""
        total = tensor.detach().clone()
        if self.backend:
            dist.all_reduce(total)
        return total

    def broadcast(self, value):
        """Rank 0's value (any picklable object) on every rank."""
        box = [value]
        if self.backend:
            dist.broadcast_object_list(box, device=torch.device("cpu"))
        return box[0]

    def gather(self, value) -> list:
        """Every rank's value (any picklable object), in rank order, on every rank."""
        values = [value] * self.world_size
        if self.backend:
            dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        self.sum(torch.zeros(1))

    def wrap(self, raw_model: nn.Module) -> nn.Module:
        """The DistributedDataParallel wrapper of the model, with rank 0's weights on all ranks; or the model."""
        if not self.backend:
            return raw_model
        for buffer in raw_model.buffers():
            dist.broadcast(buffer, 0)
        # No broadcast of buffers in every forward pass: average_buffers() before each use is enough. The
        # option was renamed after torch 2.11.
        options = inspect.signature(DistributedDataParallel).parameters
        sync_buffers = "forward_sync_buffers" if "forward_sync_buffers" in options else "broadcast_buffers"
        return DistributedDataParallel(
            raw_model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **{sync_buffers: False},  # type: ignore[arg-type]
        )

    def average_buffers(self, raw_model: nn.Module) -> None:
        """Make the running statistics of batch norm the mean over ranks, so that all ranks hold one model."""
        for buffer in raw_model.buffers():
            if buffer.is_floating_point():
                # In float64 the mean of equal float32 values is that value; in float32, of three, it may not be.
                buffer.copy_(self.sum(buffer.double()) / self.world_size)

    def check_weights(self, raw_model: nn.Module) -> None:
        """Check that every rank holds the same parameters and buffers, by the sum of each, and finite ones."""
        sums = torch.stack([value.detach().double().sum() for value in raw_model.state_dict().values()])
        if not sums.isfinite().all():
            raise UserError(
                "the weights are no longer finite: lower --lr, warm up for longer, or use --amp bf16 or none"
            )
        assert all(other == sums.tolist() for other in self.gather(sums.tolist())), (
            "ranks hold different weights: gradients did not sync"
        )


def gradient_sync(model: nn.Module, enabled: bool):
    """Context of a forward and backward pass that sums gradients over ranks, or leaves that to a later one."""
    if enabled or not isinstance(model, DistributedDataParallel):
        return contextlib.nullcontext()
    return model.no_sync()


@contextlib.contextmanager
def process_group(
    *,
    distributed: bool | None = None,
    device: str = "auto",
    backend: str = "auto",
    dist_url: str = "env://",
    world_size: int = 0,
    rank: int = -1,
    local_rank: int = -1,
    timeout: float = 600.0,
) -> Iterator[Group]:
    """Join the process group for the body of a `with`, and leave it whatever happens.

    distributed: True joins, False never does, None joins under a launcher (RANK and WORLD_SIZE set).
    With True and no launcher, the group is this one process, on a free port. The other arguments are
    the flags of the same name; `timeout` is in seconds. When the body fails on one rank, the others
    print that rank's error and end with the same exit status. Raises UserError on settings that cannot work.
    """
    under_launcher = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if distributed is False or (distributed is None and not under_launcher):
        yield Group(find_device(device, local_rank=0, local_world_size=1))
        return

    rank, local_rank, world_size, dist_url = place(dist_url, world_size, rank, local_rank)
    connect = meet(dist_url, rank, world_size, timedelta(seconds=timeout))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store, status_store = (dist.PrefixStore(f"segtrain/{world_size}/{attempt}", connect()) for _ in range(2))
    if store.add(f"joined/{rank}", 1) > 1:
        raise UserError(
            f"rank {rank} has already joined at {dist_url}: two processes have the same RANK, or the address "
            "belongs to another or an earlier run; choose another MASTER_PORT or --dist_url"
        )
    watch = _FailureWatch(status_store, rank, world_size)
    try:
        wait_for_all(store, rank, world_size, dist_url, timeout)
        where = find_device(device, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", local_rank + 1)))
        if backend == "auto":
            backend = "nccl" if where.type == "cuda" else "gloo"
        if backend == "nccl" and where.type != "cuda":
            raise UserError(f"--backend nccl on device {where}: NCCL needs CUDA, use --backend gloo")
        dist.init_process_group(
            # CPU tensors always have gloo: small sums then need not wait for the GPU.
            "cpu:gloo,cuda:nccl" if backend == "nccl" else backend,
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout),
        )
        group = Group(where, rank, local_rank, world_size, backend)
        yield group
        watch.stop()  # before the barrier: after it, rank 0 may end and take the store along
        group.barrier()
    except BaseException as error:
        watch.publish(error)
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


class _FailureWatch:
    """Ends all ranks with one message when one fails: a waiting collective would otherwise hang or garble it.

    A rank that fails writes its error to the store. A thread of every other rank looks for that, prints it
    and ends the process, wherever its main thread waits.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int):
        self.store, self.rank, self.world_size = store, rank, world_size
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join()

    def publish(self, error: BaseException) -> None:
        """Tell the other ranks, and wait until they have heard."""
        self.stop()
        if not isinstance(error, Exception) or self.world_size == 1:
            return  # Ctrl-C and the like reach every rank by themselves
        status, text = (2, str(error)) if isinstance(error, UserError) else (1, f"{type(error).__name__}: {error}")
        try:
            self.store.set("failed", f"{status} on rank {self.rank}: {' '.join(text.split())}")
            deadline = time.monotonic() + LEAVE_SECONDS
            num_left = self.store.add("left", 1)
            while num_left < self.world_size and time.monotonic() < deadline:
                time.sleep(0.05)
                num_left = self.store.add("left", 0)
            self._serve_a_little_longer()
        except RuntimeError as lost:
            print(f"rank {self.rank} could not tell the other ranks: {lost}".splitlines()[0], file=sys.stderr)

    def _serve_a_little_longer(self) -> None:
        """Rank 0's process may serve the store, which the others still look at."""
        if self.rank == 0:
            time.sleep(3 * POLL_SECONDS)

    def _look(self) -> None:
        while not self.stopped.wait(POLL_SECONDS):
            try:
                if not self.store.check(["failed"]):
                    continue
                status, _, text = self.store.get("failed").decode().partition(" ")
                self.store.add("left", 1)
                self._serve_a_little_longer()
            except RuntimeError:
                status, text = "1", "rank 0 is gone: the store it serves no longer answers"
            tqdm.write(f"error (rank {self.rank}): {text}", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(status))
