"""How processes find each other: the store at which all of a group meet."""

import contextlib
import os
import socket
import struct
import sys
import threading
import time
from datetime import timedelta
from urllib.parse import urlsplit
from urllib.request import url2pathname

import torch.distributed as dist

from distributed.signals import StopRequest
from errors import STOPPED, UserError

ANSWER_SECONDS = 10.0  # how long a store that can be connected to may take to answer
SIOCGIFADDR = 0x8915  # linux/sockios.h: the address of an interface
WAIT_SECONDS = 3.0  # how long a wait for other ranks may keep Ctrl-C waiting


def meet(dist_url: str, rank: int, world_size: int, timeout: timedelta, stop: StopRequest, gpu: str = "") -> dist.Store:
    """Join the store at the URL, which rank 0 serves (torchrun for env://). Its keys belong to this group and attempt.

    gpu: name of this process's GPU, for ranks_of_this_machine(). Raises UserError where no store answers in time.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"segtrain/{world_size}/{attempt}", _open_store(dist_url, rank, world_size, timeout, stop))
    store.set(f"machine/{rank}", f"{socket.gethostname()} {gpu}")
    if store.add(f"joined/{rank}", 1) > 1:
        raise UserError(
            f"rank {rank} has already joined at {dist_url}: two processes have the same RANK, or the address "
            "belongs to another or an earlier run; choose another MASTER_PORT or --dist_url"
        )
    return store


def _open_store(dist_url: str, rank: int, world_size: int, timeout: timedelta, stop: StopRequest) -> dist.Store:
    try:
        url = urlsplit(dist_url)
    except ValueError as error:
        raise UserError(f"--dist_url {dist_url}: {error}") from None
    if url.scheme == "file":
        path = url2pathname(url.path)  # C:\meet of file:///C:/meet
        if not os.path.isdir(os.path.dirname(path)) or os.path.isdir(path):
            raise UserError(
                f"--dist_url {dist_url}: give a file's absolute path in a folder that exists, as file:///shared/meet"
            )
        return dist.FileStore(path, world_size)
    if url.scheme == "env":  # what torchrun serves, at a port that it holds
        return _connect(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), rank, timeout, stop)
    if url.scheme != "tcp":
        raise UserError(f"--dist_url {dist_url}: expected env://, tcp://HOST:PORT or file:///PATH")
    try:
        host, port = url.hostname, url.port
    except ValueError:
        host = port = None
    if not host or port is None:
        raise UserError(f"--dist_url {dist_url}: expected tcp://HOST:PORT")
    try:
        socket.getaddrinfo(host, port)
    except OSError as error:
        raise UserError(f"rank {rank}: MASTER_ADDR {host!r} is not a known host ({error.strerror})") from None
    return _serve(host, port, timeout) if rank == 0 else _connect(host, port, rank, timeout, stop)


def has_libuv() -> bool:
    """Whether a store shall use libuv: those for Windows lack it, and USE_LIBUV=0 does without, as in torch itself."""
    return os.environ.get("USE_LIBUV", "0" if sys.platform == "win32" else "1") == "1"


def _serve(host: str, port: int, timeout: timedelta) -> dist.Store:
    try:
        # It listens at all addresses of this machine. Its own way there is the short one, which no wrong address
        # and no network can break: what is wrong with `host` shows on the ranks that do not find it.
        return dist.TCPStore(
            "localhost", port, is_master=True, timeout=timeout, wait_for_workers=False, use_libuv=has_libuv()
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
            reason = "the port is in use; choose another (MASTER_PORT or --dist_url)"
        raise UserError(f"rank 0 cannot listen at {host}:{port}: {reason}") from None


def _connect(host: str, port: int, rank: int, timeout: timedelta, stop: StopRequest) -> dist.Store:
    """A connection to rank 0's server, waited for; what answers must be such a server, and at once."""
    patience = _Patience(timeout.total_seconds(), stop)
    while True:
        try:
            socket.create_connection((host, port), timeout=2).close()
            break
        except OSError as error:
            if patience.ended():
                raise UserError(
                    f"rank {rank}: nothing answers at {host}:{port} ({error}) after "
                    f"{timeout.total_seconds():g} s; check MASTER_ADDR, MASTER_PORT and that rank 0 runs"
                ) from None
            patience.tell(
                f"rank {rank}: nothing answers at {host}:{port} yet ({error}); is rank 0 there (MASTER_ADDR)?"
            )
            time.sleep(0.2)

    # In a thread, as torch waits without end for an answer from something that is no store.
    stores: list[dist.Store] = []

    def connect() -> None:
        stores.append(
            dist.TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False, use_libuv=has_libuv())
        )

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if not stores:
        raise UserError(
            f"rank {rank}: the port {host}:{port} is in use by another program, or MASTER_ADDR is not rank 0's "
            "machine; choose another port (MASTER_PORT or --dist_url)"
        )
    return stores[0]


def ranks_of_this_machine(store: dist.Store, world_size: int) -> dict[int, str]:
    """{rank: the `gpu` that it gave meet()} of this machine's processes, by rank. Call it after wait_for_all()."""
    words = [value.decode().partition(" ") for value in store.multi_get([f"machine/{i}" for i in range(world_size)])]
    return {rank: gpu for rank, (host, _, gpu) in enumerate(words) if host == socket.gethostname()}


def choose_gloo_interface(store: dist.Store, rank: int, address: str) -> None:
    """Make gloo listen where other machines reach this one, unless GLOO_SOCKET_IFNAME is set. Call it on all ranks.

    By default gloo takes the address of the host name, which on Debian is 127.0.1.1. address: Watch.own_address().
    Other ranks on rank 0's machine have "", and use rank 0's. On one machine all have "", and gloo chooses.
    """
    if rank == 0:
        store.set("address", address)
    name = interface_of(address or store.get("address").decode())
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def interface_of(address: str) -> str:
    """This machine's network interface with the IPv4 address, such as eth0; "" where none has it, or not on Linux."""
    if not address or sys.platform != "linux":
        return ""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))  # a struct ifreq
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


def wait_for_all(
    store: dist.Store, rank: int, world_size: int, dist_url: str, timeout: float, stop: StopRequest
) -> None:
    """Return when every rank has come to the store. Raises UserError that names the ranks that have not."""
    keys = [f"joined/{other}" for other in range(world_size)]
    patience = _Patience(timeout, stop)
    while True:
        # A few seconds at a time, for Ctrl-C and a word on who is awaited.
        with contextlib.suppress(RuntimeError):
            store.wait(keys, timedelta(seconds=min(WAIT_SECONDS, timeout)))
            return
        try:
            missing = f"rank(s) {[other for other, key in enumerate(keys) if not store.check([key])]}"
            given_up = patience.ended() or store.check(["given_up"])
            if given_up:
                store.set("given_up", "")
        except RuntimeError:
            missing, given_up = "some", True  # rank 0 gave up first, and its store is gone
        if given_up:
            if rank == 0:
                time.sleep(WAIT_SECONDS + 1)  # the others still look at the store, which this process may serve
            raise UserError(
                f"rank {rank}: of {world_size} processes, {missing} did not come to {dist_url} within "
                f"{timeout:g} s (--dist_timeout); see whether they started"
            )
        patience.tell(f"rank {rank}: {missing} of {world_size} processes did not come to {dist_url} yet")


class _Patience:
    """A time to wait, and a line on the terminal now and then on what is waited for. A signal to stop ends the process."""

    def __init__(self, seconds: float, stop: StopRequest):
        self.seconds, self.stop, self.began, self.next_word = seconds, stop, time.monotonic(), 10.0

    def ended(self) -> bool:
        if self.stop:
            print(f"stopped by {self.stop.reason} before the group was complete", file=sys.stderr, flush=True)
            raise SystemExit(STOPPED)
        return time.monotonic() - self.began >= self.seconds

    def tell(self, text: str) -> None:
        waited = time.monotonic() - self.began
        if waited >= self.next_word:
            self.next_word = waited + max(10.0, waited)  # after 10 s, 20 s, 40 s ...
            left = self.seconds - waited
            print(f"{text}; waiting for {left:.0f} s more (--dist_timeout)", file=sys.stderr, flush=True)
