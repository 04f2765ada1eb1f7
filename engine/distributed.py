"""The process group: joining it, its collectives, and one end for all ranks when one of them fails.

Everything outside this file calls the helpers of `Group`, which answer for one process when there is no
group, so that no caller branches on it.
"""

import contextlib
import inspect
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from errors import UserError

POLL_SECONDS = 0.5  # how often a rank looks whether another one failed
ANSWER_SECONDS = 10.0  # how long a store that can be connected to may take to answer
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

    def has_equal_weights(self, raw_model: nn.Module) -> bool:
        """Whether every rank holds the same parameters and buffers, by the sum of each, bit for bit."""
        sums = torch.stack([value.detach().double().sum() for value in raw_model.state_dict().values()]).tolist()
        return all(other == sums for other in self.gather(sums))


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
        yield Group(_device(device, local_rank=0, local_world_size=1))
        return

    rank, local_rank, world_size, dist_url = _place(dist_url, world_size, rank, local_rank)
    connect = _meet(dist_url, rank, world_size, timedelta(seconds=timeout))
    store, status_store = (dist.PrefixStore(f"segtrain/{world_size}", connect()) for _ in range(2))
    if store.add(f"joined/{rank}", 1) > 1:
        raise UserError(
            f"rank {rank} has already joined at {dist_url}: two processes have the same RANK, or the address "
            "belongs to another or an earlier run; choose another MASTER_PORT or --dist_url"
        )
    watch = _FailureWatch(status_store, rank, world_size)
    try:
        _wait_for_all(store, rank, world_size, dist_url, timeout)
        where = _device(device, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", local_rank + 1)))
        if backend == "auto":
            backend = "nccl" if where.type == "cuda" else "gloo"
        if backend == "nccl" and where.type != "cuda":
            raise UserError(f"--backend nccl on device {where}: NCCL needs CUDA, use --backend gloo")
        if where.type == "cuda":
            torch.cuda.set_device(where)
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


def _device(name: str, local_rank: int, local_world_size: int) -> torch.device:
    """The torch device of --device for this process. Raises UserError where it is not there."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError:
        raise UserError(f"--device {name}: not a device; use auto, cpu, cuda or cuda:N") from None
    if device.type != "cuda":
        return device
    num_gpus = torch.cuda.device_count()
    if local_world_size > num_gpus:
        raise UserError(
            f"--device {name}: {local_world_size} process(es) on this machine but {num_gpus} CUDA device(s) visible; "
            "start fewer processes, check CUDA_VISIBLE_DEVICES, or use --device cpu"
        )
    index = local_rank if device.index is None else device.index
    if device.index is not None and (index >= num_gpus or local_world_size > 1):
        raise UserError(f"--device {name}: use cuda:N for one process and N below {num_gpus}; else cuda")
    return torch.device("cuda", index)


def _place(dist_url: str, world_size: int, rank: int, local_rank: int) -> tuple[int, int, int, str]:
    """Rank, local rank, world size and URL, from the launcher's environment or the flags."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        env_world_size = _integer("WORLD_SIZE")
        if world_size not in (0, env_world_size):
            raise UserError(
                f"--world_size {world_size}, but WORLD_SIZE is {env_world_size}: drop the flag, the launcher sets it"
            )
        rank, world_size = _integer("RANK"), env_world_size
        if "LOCAL_RANK" in os.environ:
            local_rank = _integer("LOCAL_RANK")
    elif world_size <= 1 and rank <= 0:
        rank, world_size = 0, 1
        if dist_url == "env://":
            dist_url = "tcp://127.0.0.1:0"  # a group of one, on a free port
    elif rank < 0:
        raise UserError(
            f"--world_size {world_size} without a launcher: start with torchrun, or give each process its --rank"
        )
    if not 0 <= rank < world_size:
        raise UserError(
            f"rank {rank} with world size {world_size}: ranks are 0 to {world_size - 1}; check RANK, WORLD_SIZE"
        )
    # Without a word on it, all processes are taken to be on one machine.
    return rank, local_rank if local_rank >= 0 else rank, world_size, dist_url


def _integer(variable: str) -> int:
    value = os.environ.get(variable)
    if value is None:
        raise UserError(
            f"environment variable {variable} is not set: start with torchrun, or set it (README, 'Launching')"
        )
    try:
        return int(value)
    except ValueError:
        raise UserError(f"environment variable {variable} is {value!r}, not a number") from None


def _meet(dist_url: str, rank: int, world_size: int, timeout: timedelta) -> Callable[[], dist.Store]:
    """A function that opens a connection to the store at the URL; the first call on rank 0 serves it."""
    url = urlsplit(dist_url)
    if url.scheme == "file":
        if not url.path:
            raise UserError(f"--dist_url {dist_url}: give an absolute path, as file:///shared/meeting_point")
        return lambda: dist.FileStore(url.path, 2 * world_size)  # two connections a rank
    if url.scheme == "env" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # torchrun's own store, on a port that torchrun already holds.
        return lambda: next(dist.rendezvous("env://", rank, world_size, timeout=timeout))[0]
    if url.scheme == "env":
        host, port = os.environ.get("MASTER_ADDR"), _integer("MASTER_PORT")
        if not host:
            raise UserError("environment variable MASTER_ADDR is not set: it names the machine of rank 0")
    elif url.scheme == "tcp":
        try:
            host, given_port = url.hostname, url.port
        except ValueError:
            host = None
        if not host or given_port is None:
            raise UserError(f"--dist_url {dist_url}: expected tcp://HOST:PORT")
        port = given_port
    else:
        raise UserError(f"--dist_url {dist_url}: expected env://, tcp://HOST:PORT or file:///PATH")
    return _TCPMeeting(host, port, rank, timeout)


class _TCPMeeting:
    """Opens connections to the TCP store of a group: rank 0's first call starts its server."""

    def __init__(self, host: str, port: int, rank: int, timeout: timedelta):
        self.host, self.port, self.rank, self.timeout = host, port, rank, timeout
        self.serves = rank == 0

    def __call__(self) -> dist.Store:
        if not self.serves:
            return self._client()
        self.serves = False
        try:
            store = dist.TCPStore(self.host, self.port, is_master=True, timeout=self.timeout, wait_for_workers=False)
        except RuntimeError as error:
            taken = "EADDRINUSE" in str(error) or "address already in use" in str(error).lower()
            reason = (
                "the port is in use; choose another (MASTER_PORT or --dist_url)"
                if taken
                else str(error).splitlines()[0]
            )
            raise UserError(f"rank 0 cannot listen at {self.host}:{self.port}: {reason}") from None
        self.port = store.port  # where port 0 asked for a free one
        return store

    def _client(self) -> dist.Store:
        """A connection to rank 0's server, waited for; what answers must be such a server, and at once."""
        deadline = time.monotonic() + self.timeout.total_seconds()
        while True:
            try:
                socket.create_connection((self.host, self.port), timeout=5).close()
                break
            except socket.gaierror as error:
                raise UserError(
                    f"rank {self.rank}: MASTER_ADDR {self.host!r} is not a known host ({error.strerror})"
                ) from None
            except OSError as error:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"rank {self.rank}: nothing answers at {self.host}:{self.port} ({error}) after "
                        f"{self.timeout.total_seconds():g} s; check MASTER_ADDR, MASTER_PORT and that rank 0 runs"
                    ) from None
                time.sleep(0.2)
        # In a thread, as torch waits without end for an answer from something that is no store.
        stores: list[dist.Store] = []
        connect = threading.Thread(target=lambda: stores.append(self._connect()), daemon=True)
        connect.start()
        connect.join(ANSWER_SECONDS)
        if not stores:
            raise UserError(
                f"rank {self.rank}: the port {self.host}:{self.port} is in use by another program; choose another "
                "(MASTER_PORT or --dist_url)"
            )
        return stores[0]

    def _connect(self) -> dist.Store:
        return dist.TCPStore(self.host, self.port, is_master=False, timeout=self.timeout, wait_for_workers=False)


def _wait_for_all(store: dist.Store, rank: int, world_size: int, dist_url: str, timeout: float) -> None:
    """Return when every rank has come to the store. Raises UserError that names the ranks that have not."""
    keys = [f"joined/{other}" for other in range(world_size)]
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError:
        try:
            missing = f"rank(s) {[other for other, key in enumerate(keys) if not store.check([key])]}"
        except RuntimeError:
            missing = "some"  # rank 0 gave up first, and its store is gone
        raise UserError(
            f"rank {rank}: of {world_size} processes, {missing} did not come to {dist_url} within "
            f"{timeout:g} s (--dist_timeout); see whether they started"
        ) from None


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
            self.store.set("failed", f"{status} (rank {self.rank}) {' '.join(text.split())}")
            deadline = time.monotonic() + LEAVE_SECONDS
            num_left = self.store.add("left", 1)
            while num_left < self.world_size and time.monotonic() < deadline:
                time.sleep(0.05)
                num_left = self.store.add("left", 0)
        except RuntimeError as lost:
            print(f"rank {self.rank} could not tell the other ranks: {lost}".splitlines()[0], file=sys.stderr)

    def _look(self) -> None:
        while not self.stopped.wait(POLL_SECONDS):
            try:
                if not self.store.check(["failed"]):
                    continue
                status, _, text = self.store.get("failed").decode().partition(" ")
                self.store.add("left", 1)
            except RuntimeError:
                status, text = "1", "rank 0 is gone: the store it serves no longer answers"
            tqdm.write(f"error (rank {self.rank}): from another rank: {text}", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(status))
