"""How processes find their place, their device and each other."""

import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from errors import UserError

ANSWER_SECONDS = 10.0  # how long a store that can be connected to may take to answer


def find_device(name: str, local_rank: int, local_world_size: int) -> torch.device:
    """The torch device of --device for this process, made the current one. Raises UserError where it is not there."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError:
        raise UserError(f"--device {name}: not a device; use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {name}: use auto, cpu, cuda or cuda:N")
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
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def place(dist_url: str, world_size: int, rank: int, local_rank: int) -> tuple[int, int, int, str]:
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
    elif int(os.environ.get("SLURM_NTASKS", 1)) > 1 and world_size == 0:
        raise UserError(
            f"SLURM_NTASKS is {os.environ['SLURM_NTASKS']}, but RANK and WORLD_SIZE are not set, so that each task would "
            "train alone: start one torchrun on each machine (README, 'Three ways in')"
        )
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
            f"environment variable {variable} is not set: start with torchrun, or set it (README, 'Three ways in')"
        )
    try:
        return int(value)
    except ValueError:
        raise UserError(f"environment variable {variable} is {value!r}, not a number") from None


def meet(dist_url: str, rank: int, world_size: int, timeout: timedelta) -> Callable[[], dist.Store]:
    """A function that opens a connection to the store at the URL; the first call on rank 0 serves it."""
    url = urlsplit(dist_url)
    if url.scheme == "file":
        if not os.path.isdir(os.path.dirname(url.path)) or os.path.isdir(url.path):
            raise UserError(
                f"--dist_url {dist_url}: give a file's absolute path in a folder that exists, as file:///shared/meet"
            )
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
    if not 0 <= port < 65536:
        raise UserError(f"port {port}: must be below 65536 (MASTER_PORT or --dist_url)")
    try:
        socket.getaddrinfo(host, port)
    except OSError as error:
        raise UserError(f"rank {rank}: MASTER_ADDR {host!r} is not a known host ({error.strerror})") from None
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


def wait_for_all(store: dist.Store, rank: int, world_size: int, dist_url: str, timeout: float) -> None:
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
