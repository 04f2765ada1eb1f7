"""How the processes of a group find each other: the address, and the store there that all of them connect to."""

import contextlib
import os
import re
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Mapping
from datetime import timedelta
from urllib.parse import urlsplit
from urllib.request import url2pathname

import torch.distributed as dist

from support import launched_by
from support.errors import STOPPED, UserError
from support.signals import StopRequest
from support.terminal import warn

ANSWER_SECONDS = 10.0  # how long a store that accepts connections may take to answer
SIOCGIFADDR = 0x8915  # linux/sockios.h: the address of an interface


def find_address(environment: Mapping[str, str], launch: launched_by.Launch) -> str:
    """Return where the group connects: tcp://HOST:PORT, or env:// for the store that torchrun serves.

    MASTER_ADDR and MASTER_PORT override what srun implies. Raises UserError if the host or port is missing or
    invalid.
    """
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return "env://"
    if launch.launcher == "flags" and launch.world_size == 1:
        return "tcp://127.0.0.1:0"  # a free port
    host, port = environment.get("MASTER_ADDR", "").strip("[]"), None  # IPv6 addresses may be in brackets
    if launch.launcher == "srun":
        host = host or first_host(environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "")
        # A port below Linux's ephemeral ones, from a hash of the step's name.
        step = f"{environment.get('SLURM_JOB_ID')}.{environment.get('SLURM_STEP_ID')}"
        port = 20_000 + zlib.crc32(step.encode()) % 12_000
    if port is None or "MASTER_PORT" in environment:
        port = launched_by.integer(environment, "MASTER_PORT")
    if not host:
        hint = launched_by.alone(environment)
        raise UserError(f"environment variable MASTER_ADDR is not set: it names rank 0's machine{hint}")
    least = 0 if launch.world_size == 1 else 1  # 0 is any free port, which the other ranks would not know
    if not least <= port < 65536:
        raise UserError(f"port {port}: must be {least} to 65535 (MASTER_PORT)")
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm node list: node03 of "node[03-05,9],other1". Raises UserError without one."""
    host = re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodes).split(",")[0]
    if not re.fullmatch(r"[\w.-]+", host):
        raise UserError(f"SLURM_STEP_NODELIST {nodes!r}: not a list of hosts; set MASTER_ADDR to the machine of rank 0")
    return host


class Deadline:
    """A time limit for the wait for other processes. A signal in `stop` ends it. hint: appended to the error."""

    def __init__(self, seconds: float, stop: StopRequest, hint: str = ""):
        self.seconds, self.stop, self.hint = seconds, stop, hint
        self.began, self.next_message = time.monotonic(), 10.0
        self.store: dist.Store | None = None  # has "refused" if a rank refuses the group

    def check(self, missing: str, remedy: str) -> None:
        """Print what is missing after 10 s, 20 s, 40 s ..., and raise UserError after the deadline.

        Also raises UserError if a rank refuses the group, and SystemExit if a signal asked this process to stop.
        """
        if self.stop:
            warn(f"stopped by {self.stop.reason} before the group was complete")
            raise SystemExit(STOPPED)
        if self.store and self.store.check(["refused"]):
            error = UserError(self.store.get("refused").decode())
            time.sleep(1)  # rank 0 serves the store: let the others read the reason before it ends
            raise error
        waited = time.monotonic() - self.began
        if waited >= self.seconds:
            raise UserError(f"{missing} within {self.seconds:g} s (--dist_timeout): {remedy}{self.hint}")
        if waited >= self.next_message:
            self.next_message = waited + max(10.0, waited)
            left = f"waiting for {self.seconds - waited:.0f} s more (--dist_timeout)"
            warn(f"{missing} yet: {remedy}; {left}")


def connect(dist_url: str, rank: int, world_size: int, deadline: Deadline) -> dist.Store:
    """Return the store at a URL. Rank 0 serves the store, or torchrun for env://.

    The keys of the returned store belong to this group and attempt. Raises UserError if no store answers before the
    deadline, the URL is invalid or the rank is taken.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    root = _open_store(dist_url, rank, world_size, deadline)
    if dist_url != "env://":  # torchrun's own ranks agree, and it may restart with another number of machines
        size = f"{world_size} on rank {rank}"
        first = root.compare_set("world_size", "", size).decode()
        if first.split()[0] != str(world_size):
            remedy = "give all processes the same WORLD_SIZE (another run must have another MASTER_PORT or --dist_url)"
            root.set("refused", f"world size is {first} but {size}: {remedy}")
        deadline.store = root
        deadline.check("", "")
    store = dist.PrefixStore(f"segtrain/{world_size}/{attempt}", root)
    store.set(f"machine/{rank}", socket.gethostname())
    if store.add(f"joined/{rank}", 1) > 1:
        raise UserError(
            f"rank {rank} has already connected to {dist_url}: give each process a RANK of its own; if another run "
            "uses the address, or an ended one left its file, choose another MASTER_PORT or --dist_url"
        )
    return store


def _open_store(dist_url: str, rank: int, world_size: int, deadline: Deadline) -> dist.Store:
    try:
        url = urlsplit(dist_url)
        host, port = url.hostname, url.port
    except ValueError as error:
        expected = "env://, tcp://HOST:PORT with a port from 1 to 65535, or file:///PATH"
        raise UserError(f"--dist_url {dist_url}: {error}: expected {expected}") from None
    if dist_url == "env://":  # torchrun serves it, and holds the port
        return _connect(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), rank, deadline)
    if url.scheme not in ("tcp", "file") or url.query or url.fragment:
        raise UserError(
            f"--dist_url {dist_url}: expected env://, tcp://HOST:PORT or file:///PATH, without anything after ? or #"
        )
    if url.scheme == "file":
        if url.netloc not in ("", "localhost"):
            remedy = f"write three slashes: file:///{url.netloc}{url.path}"
            raise UserError(f"--dist_url {dist_url}: {url.netloc} is read as the name of a machine: {remedy}")
        return _file_store(dist_url, url2pathname(url.path), world_size)  # C:\\store of file:///C:/store
    if not host or port is None or (port == 0 and world_size > 1):  # 0 is any free port: the others cannot know it
        raise UserError(f"--dist_url {dist_url}: expected tcp://HOST:PORT, with a port from 1 to 65535")
    try:
        socket.getaddrinfo(host, port)
    except (OSError, UnicodeError) as error:  # UnicodeError: not a host name, such as a..b
        reason = getattr(error, "strerror", error)
        raise UserError(f"rank {rank}: MASTER_ADDR {host!r} is not a known host ({reason})") from None
    if rank != 0:
        return _connect(host, port, rank, deadline)
    try:
        # Connect to localhost, which always works: the store listens on all addresses of this machine. If `host` is
        # wrong, the other ranks report it.
        return _tcp_store("localhost", port, deadline.seconds, is_master=True)
    except RuntimeError as error:  # torch's text says whether the port is in use
        remedy = "choose another port (MASTER_PORT or --dist_url)"
        raise UserError(f"rank 0 cannot listen at {host}:{port}: {remedy}; {str(error).splitlines()[0]}") from None


def _file_store(dist_url: str, path: str, world_size: int) -> dist.Store:
    """Return the store in a file. Raises UserError if the file cannot be written or is not a store's."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # opening a pipe would wait
            raise OSError("is not a file")
        # FileStore itself would try to open a file, or to read one of other content, for minutes.
        with open(path, "a+b") as file:
            file.seek(0)
            if any(file.read(4)[2:]):  # a store begins with the length of a short key, in 4 bytes or 8
                raise OSError("is a file of another kind")
        return dist.FileStore(path, world_size)
    except (OSError, ValueError, dist.DistStoreError) as error:  # ValueError: a null character
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        remedy = "use a new file in a folder that all processes can write to, such as file:///shared/store"
        raise UserError(f"--dist_url {dist_url}: {reason}: {remedy}") from None


def _tcp_store(host: str, port: int, timeout: float, *, is_master: bool = False) -> dist.Store:
    # torch for Windows has no libuv; elsewhere USE_LIBUV=0 turns it off, as in torch itself.
    libuv = os.environ.get("USE_LIBUV", "0" if sys.platform == "win32" else "1") == "1"
    wait = timedelta(seconds=timeout)
    return dist.TCPStore(host, port, is_master=is_master, timeout=wait, wait_for_workers=False, use_libuv=libuv)


def _connect(host: str, port: int, rank: int, deadline: Deadline) -> dist.Store:
    """Wait until a store listens at host:port, and return a client of it. Raises UserError after the deadline."""
    while True:
        try:
            socket.create_connection((host, port), timeout=2).close()
            break
        except OSError as error:
            missing = f"rank {rank}: nothing answers at {host}:{port} ({error})"
        deadline.check(missing, "check MASTER_ADDR, MASTER_PORT and that rank 0 runs")
        time.sleep(0.2)

    # In a thread, because torch waits forever for the answer of a server that is not a store.
    stores: list[dist.Store] = []
    thread = threading.Thread(target=lambda: stores.append(_tcp_store(host, port, deadline.seconds)), daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if not stores:
        raise UserError(
            f"rank {rank}: the port {host}:{port} is in use by another program, or MASTER_ADDR is not rank 0's "
            "machine; choose another port (MASTER_PORT or --dist_url)"
        )
    return stores[0]


def ranks_of_this_machine(store: dist.Store, world_size: int) -> list[int]:
    """Return the ranks of the processes on this machine."""
    hosts = store.multi_get([f"machine/{rank}" for rank in range(world_size)])
    return [rank for rank, host in enumerate(hosts) if host.decode() == socket.gethostname()]


def choose_gloo_interface(store: dist.Store, rank: int, address: str) -> None:
    """Make gloo listen where other machines reach this one, unless GLOO_SOCKET_IFNAME is set. Call it on all ranks.

    By default gloo listens at the address of the host name, which is 127.0.1.1 on Debian. address: result of
    Lifeline.own_address(). A rank with address "" uses rank 0's address; if that is also "", gloo chooses.
    """
    if rank == 0:
        store.set("address", address)
    name = interface_of(address or store.get("address").decode())
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def interface_of(address: str) -> str:
    """Return the name, such as eth0, of this machine's network interface with an IPv4 address; "" outside Linux."""
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
